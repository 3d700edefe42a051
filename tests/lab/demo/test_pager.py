"""The pager: it keeps the notifications of Alertmanager."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from tachograph_lab.pager import FIRING, RESOLVED, PagedAlert, Pager


def alert(name: str, status: str = FIRING, started: str = "2025-11-21T05:00:00Z", **labels: str) -> dict[str, Any]:
    return {
        "status": status,
        "labels": {"alertname": name, "severity": "critical", **labels},
        "annotations": {"summary": f"{name}."},
        "startsAt": started,
        "fingerprint": name + "".join(labels.values()),
    }


def send(pager: Pager, *alerts: dict[str, Any], receiver: str = "page") -> None:
    body = json.dumps({"version": "4", "alerts": alerts}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{pager.url}/{receiver}", body), timeout=60) as response:
        assert response.status == 200


def test_a_page_is_kept_with_time_and_receiver() -> None:
    """A notification becomes one entry per alert, with its receiver and time of arrival."""
    with Pager() as pager:
        before = time.time()
        send(pager, alert("RankDead", rank="3"))
        (page,) = pager.pages()
    assert (page.alert, page.labels["rank"], page.receiver, page.critical) == ("RankDead", "3", "page", True)
    assert before <= page.time <= time.time()


def test_a_repetition_is_no_second_page() -> None:
    """Alertmanager sends a whole group again when one of its alerts changes; only new ones count."""
    with Pager() as pager:
        send(pager, alert("RankDead"))
        send(pager, alert("RankDead"), alert("RunHung"))
        send(pager, alert("RankDead", RESOLVED), alert("RunHung"))
        send(pager, alert("RankDead", started="2025-11-21T06:00:00Z"))
        told = [(page.alert, page.status) for page in pager.pages()]
        assert (pager.times_sent("RankDead"), pager.times_sent("RunHung")) == (3, 2)
        assert (pager.times_sent("RankDead", RESOLVED), pager.times_sent("RunHung", RESOLVED)) == (1, 0)
    assert told == [("RankDead", FIRING), ("RunHung", FIRING), ("RankDead", RESOLVED), ("RankDead", FIRING)]


def test_waiting_ends_with_the_page_or_with_the_time() -> None:
    """`wait_for` returns the first wanted page, also one from before, and None when there is none in time."""
    with Pager() as pager:
        send(pager, alert("RunHung"))
        found = pager.wait_for(lambda page: page.alert == "RunHung", 60)
        assert found is not None
        assert pager.wait_for(lambda page: page.alert == "RunHung", 0.05, after=found.time) is None
        assert pager.wait_for(lambda page: page.alert == "RankDead", 0.05) is None


def test_rubbish_is_refused_and_forgotten() -> None:
    """A malformed notification gets a 400 and no entry; the next one is accepted."""
    with Pager() as pager:
        for body in (b"{", b'{"alerts":[{}]}', b"[]"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(urllib.request.Request(pager.url, body), timeout=60)
            assert caught.value.code == 400
            caught.value.close()
        send(pager, alert("RankDead"))
        assert [page.alert for page in pager.pages()] == ["RankDead"]


def test_every_page_is_recorded_once() -> None:
    """`record` is called with each alert as it arrives."""
    recorded: list[PagedAlert] = []
    with Pager(record=recorded.append) as pager:
        send(pager, alert("RankDead"))
        send(pager, alert("RankDead"))
        assert recorded == pager.pages()
