"""A symptom whose cause pages is not sent when Alertmanager starts or reloads its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tachograph_lab.pager import PagedAlert, Pager
from tachograph_lab.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = (ROOT / "alertmanager/alertmanager.yml").read_text(encoding="utf-8")
PAGER = "http://localhost:5001"
CAUSE = {"alertname": "StragglerRank", "run": "r", "rank": "3", "instance": "node-1"}
SYMPTOM = {"alertname": "MfuDropped", "run": "r"}


def flags(generation: str) -> list[str]:
    """Return the flags that the head of alertmanager.yml requires, with a tenth of the time."""
    if "--dispatch.start-delay=60s" in SHIPPED and generation == "sid":
        return ["--dispatch.start-delay=6s", "--cluster.listen-address="]
    assert "--cluster.gossip-interval=1200ms" in SHIPPED
    return [f"--cluster.listen-address=127.0.0.1:{free_port()}", "--cluster.gossip-interval=120ms"]


@pytest.mark.e2e
def test_old_alerts_wait_for_their_causes(
    programs: Mapping[str, Path], alertmanager: Callable[..., Any], tmp_path: Path
) -> None:
    """Prometheus resends firing alerts in any order; Alertmanager would send those older than group_wait at once."""
    generation = "sid" if ".tools/sid" in str(programs["alertmanager"]) else "bookworm"
    with Pager() as pager:
        text = SHIPPED.replace(PAGER, pager.url)
        with alertmanager(programs["alertmanager"], tmp_path / "am", text, *flags(generation)) as running:
            running.raise_alerts([SYMPTOM], seconds_ago=300)
            pager.wait_for(lambda page: False, 0.3)
            running.raise_alerts([CAUSE], seconds_ago=310)
            assert pager.wait_for(lambda page: page.alert == "StragglerRank", 90)
            for _ in range(3 if generation == "sid" else 0):  # 0.25 forgets what inhibits for a moment: docs/pages.md
                running.reload()
                pager.wait_for(is_symptom, 0.5)
            pager.wait_for(is_symptom, 0.5)
        assert not [page for page in pager.pages() if is_symptom(page)]


def is_symptom(page: PagedAlert) -> bool:
    return page.alert == SYMPTOM["alertname"]
