"""The boxes of other nodes: whom an exporter asks, for how long, and what it believes."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tachograph.blackbox import served
from tachograph.blackbox.served import ServedBox, ServedRun
from tachograph.node.evidence import peers
from tachograph.node.evidence.peers import PeerError, addresses, boxes, fetched, indexes, of_interest
from tests.collect.pretender import NOBODY, Pretender

SOON = 20.0


@pytest.fixture
def silent() -> Iterator[str]:
    """Something that takes a connection and says nothing."""
    listening = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                held.append(listening.accept()[0])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    for one in held:
        one.close()


def deadline(seconds: float = SOON) -> float:
    return time.monotonic() + seconds


def box(rank: int, at: float = 100.0, attempt: int = 0) -> ServedBox:
    return ServedBox(attempt, rank, at, "", 10)


def test_through_prometheus(pretender: Pretender) -> None:
    """The exporters are those that had a rank of the run, at the addresses that are scraped."""
    pretender.knows("r", "http://node-1:10024", "https://proxy/node-2")
    found = addresses(f"http://{pretender.address}/", "r", deadline())
    assert found == ["http://node-1:10024", "https://proxy/node-2"]
    assert all(one.startswith("GET /api/v1/") for one in pretender.asked)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"[" * 100_000, b'{"data": {"result": [{"metric": 1}]}}'])
def test_a_prometheus_that_is_none(pretender: Pretender, body: bytes) -> None:
    """Whatever answers in its place, the reason is one line."""
    pretender.answers["/api/v1/query"] = pretender.answers["/api/v1/targets"] = (200, body)
    with pytest.raises(PeerError) as error:
        addresses(f"http://me:geheim@{pretender.address}", "r", deadline())
    assert "\n" not in str(error.value)
    assert "geheim" not in str(error.value)


def test_a_file_of_targets(tmp_path: Path) -> None:
    """A file for file_sd_configs, in JSON or YAML, with the scheme and path of its labels."""
    groups = [
        {"targets": ["node-1:10024", "[::1]:99"], "labels": {"cluster": "a"}},
        {"targets": ["node-2"], "labels": {"__scheme__": "https", "__metrics_path__": "/t/metrics"}},
        {"targets": ["node-1:10024"]},
    ]
    file = tmp_path / "targets.json"
    file.write_text(json.dumps(groups))
    assert addresses(str(file), "r", deadline()) == ["http://node-1:10024", "http://[::1]:99", "https://node-2/t"]
    yml = tmp_path / "targets.yml"
    yml.write_text("- targets: [node-1:10024]\n")
    assert addresses(str(yml), "r", deadline()) == ["http://node-1:10024"]


@pytest.mark.parametrize("text", [None, "{", "7", "- 7", "- targets: 7", "- {targets: ['/x']}", "\x00"])
def test_a_file_that_is_none(text: str | None, tmp_path: Path) -> None:
    """A file that is missing or says something else is a reason on one line."""
    file = tmp_path / "targets.yml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(PeerError, match=str(file)):
        addresses(str(file), "r", deadline())


def test_who_has_what(pretender: Pretender, silent: str) -> None:
    """Those that know the run are told from those that do not, and from those that do not answer in time."""
    pretender.has("r", box(3))
    found = indexes([f"http://{pretender.address}", silent, f"http://{NOBODY}"], "r", deadline(4.0))
    assert [one.node for one in found.runs.values()] == ["node-9"]
    assert found.silent == {silent: peers.LATE, f"http://{NOBODY}": "Connection refused"}
    assert indexes([f"http://{pretender.address}"], "other", deadline()).silent == {}


def test_boxes_come_as_they_can(pretender: Pretender, silent: str) -> None:
    """A box that does not come costs its rank alone, and what has no time left is not waited for."""
    url = f"http://{pretender.address}"
    pretender.has("r", box(0), box(1), texts={0: b"{}", 1: b"x" * (served.LARGEST_BOX + 1)})
    failed: dict[int, str] = {}
    wanted = [(url, box(0)), (url, box(1)), (silent, box(2)), (url, box(3))]
    came = [(one.rank, text) for one, text in boxes(wanted, "r", deadline(4.0), failed)]
    assert came == [(0, b"{}")]
    assert failed == {1: "its answer is too large", 2: peers.LATE, 3: "it knows no such run"}


def test_no_redirect_is_followed(pretender: Pretender) -> None:
    """An exporter cannot send another one's requests elsewhere."""
    pretender.answers["/x"] = (302, b"")
    with pytest.raises(PeerError, match="it answers 302"):
        fetched(f"http://{pretender.address}/x", deadline(), 100)
    assert len(pretender.asked) == 1


def test_a_login_of_netrc(pretender: Pretender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """User and password are those of the netrc file, where it has some for the host."""
    file = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(file))
    pretender.answers["/x"] = (200, b"ok")
    fetched(f"http://{pretender.address}/x", deadline(), 100)
    file.write_text("machine 127.0.0.1 login me password geheim\n")
    file.chmod(0o600)
    fetched(f"http://{pretender.address}/x", deadline(), 100)
    assert pretender.logins == ["", "Basic " + base64.b64encode(b"me:geheim").decode()]


def test_what_is_of_interest() -> None:
    """Boxes of the newest attempt that are not here, or newer than here."""

    def run(*own: ServedBox) -> ServedRun:
        return ServedRun("r", "n", 1.0, 4, own, ())

    here, there = run(box(0, 100.0), box(1, 100.0)), run(box(0, 200.0), box(1, 50.0), box(2))
    assert of_interest({"a": there}, here) == [("a", box(0, 200.0)), ("a", box(2))]
    assert of_interest({"a": run(box(3, attempt=1)), "b": there}, here) == [("a", box(3, attempt=1))]
