"""The alerts of a run, asked from a real Alertmanager, and from servers that are none."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tachograph.servers.alertmanager_api import Alertmanager, AlertmanagerError
from tachograph.silence.alertmanager import Silence, SilenceMatcher, Silences
from tachograph.supervise import alerts
from tachograph.supervise.alerts import ActiveAlerts
from tachograph.supervise.run_seen import AlertSeen, RunSeen
from tachograph.supervise.triggers import DIVERGING, RESTART_LOOP, SILENT_CORRUPTION, SLOW
from tachograph_lab.processes import free_port
from tests.supervise.conftest import until
from tests.supervise.world import World, rank, run

ROOT = Path(__file__).parents[2]
NOW = datetime.now(timezone.utc)


def post(url: str, *labels: Mapping[str, str], minutes: float = 0.0, for_minutes: float = 60.0) -> None:
    """Have an Alertmanager take in these alerts, as Prometheus would, which began so many minutes ago."""
    starts = NOW - timedelta(minutes=minutes)
    body = [
        {
            "labels": one, "annotations": {"description": f"{one['alertname']} holds.\nLook at it"},
            "startsAt": starts.isoformat(), "endsAt": (NOW + timedelta(minutes=for_minutes)).isoformat(),
        }
        for one in labels
    ]  # fmt: skip
    Alertmanager(url).ask("POST", "alerts", lambda _: None, body)


def alert(name: str = "StragglerRank", run: str = "r", **more: str) -> dict[str, str]:
    return {"alertname": name, "run": run, "severity": "critical", "component": "tachograph", **more}


def of_nodes(name: str = "r") -> RunSeen:
    """A run of two ranks on each of two nodes."""
    ranks = [rank(number, node="node-7" if number < 2 else "node-8.site") for number in range(4)]
    return run(*ranks, name=name, world_size=4)


def asked(url: str, seen: RunSeen, say: Callable[[str], None] = pytest.fail) -> tuple[AlertSeen, ...]:
    """Return the alerts of a run, once the Alertmanager has answered."""
    one = ActiveAlerts(url, say)
    return until(lambda: (found := one.of(seen)) is not None and [found])[0]  # type: ignore[no-any-return]


CASES: dict[str, tuple[dict[str, str], list[tuple[str, tuple[int, ...], str]]]] = {
    "a rank": (alert(rank="1", instance="node-7"), [(SLOW, (1,), "node-7")]),
    "a rank by its node's address": (alert(rank="1", instance="node-7:10024"), [(SLOW, (1,), "node-7")]),
    "a rank without its domain": (alert(rank="2", instance="node-8"), [(SLOW, (2,), "node-8.site")]),
    "a node": (alert("StragglerNode", instance="node-8.site"), [(SLOW, (2, 3), "node-8.site")]),
    "nobody": (alert(), [(SLOW, (), "")]),
    "a small lag": (alert(rank="1", instance="node-7", severity="warning"), []),
    "a rank of another node": (alert(rank="1", instance="node-8"), []),
    "a node of another run": (alert("StragglerNode", instance="node-9"), []),
    "a rank that is not there": (alert(rank="9", instance="node-7"), []),
    "a role's rank": (alert(run="r/critic", rank="1", instance="node-7"), []),
    "another owner's run": (alert(run="ada/r", rank="1", instance="node-7"), []),
    "a loss": (alert("LossDiverging", severity="warning"), [(DIVERGING, (), "")]),
    "a GPU": (
        alert("SilentDataCorruptionSuspected", rank="3", instance="node-8", gpu="1"),
        [(SILENT_CORRUPTION, (3,), "node-8.site")],
    ),
    "a loop": (alert("RestartLoop"), [(RESTART_LOOP, (), "")]),
    "what a node says itself": (alert("RankDead", rank="1", instance="node-7"), []),
    "what is no trigger": (alert("MfuDropped"), []),
}


@pytest.mark.e2e
def test_which_alerts_count(alertmanager_url: str) -> None:
    """Those of this run that no node says itself, with the ranks and the node that they blame."""
    for number, (labels, _) in enumerate(CASES.values()):
        post(alertmanager_url, {**labels, "run": f"{number}{labels['run']}"})
    for number, (case, (_, expected)) in enumerate(CASES.items()):
        said: list[str] = []
        found = asked(alertmanager_url, of_nodes(f"{number}r"), said.append)
        assert [(one.trigger, one.ranks, one.node) for one in found] == expected, case
        assert all(one.text.endswith(" holds. Look at it.") for one in found)
        assert all(abs(one.starts - NOW.timestamp()) < 1.0 for one in found)
        assert [said] == [[]] or "is left alone" not in said[0] or "another" in case or "not there" in case, case


@pytest.mark.parametrize(
    ("node", "instance", "counts"),
    [
        ("gpu-1", "gpu-1", True), ("gpu-1", "gpu-1.site-a:10024", True), ("gpu-1.site-a", "gpu-1", True),
        ("gpu-1.site-a", "gpu-1.site-b", False), ("10.0.0.7", "10.0.0.8", False), ("10.0.0.7", "10.0.0.7:10024", True),
        ("west.192.168.1.5", "west.192.168.1.6:10024", False), ("west.192.168.1.5", "west.192.168.1.5:10024", True),
    ],
)  # fmt: skip
def test_a_run_of_one_node(
    hostile: str, monkeypatch: pytest.MonkeyPatch, node: str, instance: str, counts: bool
) -> None:
    """Two names of a node are one without the other's domain, and not two of the same beginning."""
    monkeypatch.setattr(Hostile, "answers", {"r": (200, taken(labels=alert(rank="1", instance=instance)))})
    assert bool(asked(hostile, run(node=node), lambda _: None)) is counts


@pytest.mark.e2e
@pytest.mark.parametrize("hours", [-7.0, 0.0, 5.5])
@pytest.mark.parametrize("precision", ["seconds", "milliseconds", "microseconds"])
def test_an_alert_began_when_it_did(alertmanager_url: str, hours: float, precision: str) -> None:
    """A real Alertmanager hands on the offset of whoever sent the alert, which may be in another time zone."""
    name = f"began-{hours}-{precision}"
    local = NOW.astimezone(timezone(timedelta(hours=hours)))
    body = [{"labels": alert("RestartLoop", name), "startsAt": local.isoformat(timespec=precision)}]
    Alertmanager(alertmanager_url).ask("POST", "alerts", lambda _: None, body)
    (found,) = asked(alertmanager_url, of_nodes(name))
    assert abs(found.starts - NOW.timestamp()) <= 1.0


@pytest.mark.e2e
def test_an_alert_of_another_node_is_named(alertmanager_url: str) -> None:
    """Once: where Prometheus calls nodes by their address, nobody would know why nothing is done."""
    post(alertmanager_url, alert(run="named", rank="1", instance="10.0.0.7:10024"))
    said: list[str] = []
    one = ActiveAlerts(alertmanager_url, said.append)
    until(lambda: one.of(of_nodes("named")) is not None)
    for _ in range(3):
        assert one.of(of_nodes("named")) == ()
    assert said == [
        "Alertmanager's StragglerRank of rank 1 on 10.0.0.7:10024 is left alone: run named has no such rank there: "
        f"it is on {said[0].rpartition('is on ')[2]}"
    ]


@pytest.mark.e2e
def test_what_is_silenced_inhibited_or_over_is_not_there(alertmanager_url: str) -> None:
    """Alertmanager says so itself."""
    quiet = SilenceMatcher("run", "silenced")
    Silences(alertmanager_url).add(
        Silence((quiet,), datetime.now(timezone.utc), NOW + timedelta(hours=1), "ada", "new switch")
    )
    post(alertmanager_url, alert("NodeDown", "inhibited", instance="node-7"))
    post(alertmanager_url, alert(run="over", rank="1", instance="node-7"), minutes=60.0, for_minutes=-1.0)
    for name in ("silenced", "inhibited", "open"):
        post(alertmanager_url, alert(run=name, rank="2" if name == "open" else "1", instance="node-7"))
    post(alertmanager_url, alert("RestartLoop", "open"))
    assert [one.trigger for one in asked(alertmanager_url, of_nodes("open"), lambda _: None)] == [RESTART_LOOP]
    for name in ("silenced", "inhibited", "over"):
        assert asked(alertmanager_url, of_nodes(name)) == (), name


@pytest.mark.e2e
def test_ten_thousand_alerts_change_nothing(alertmanager_url: str, tmp_path: Path) -> None:
    """Whoever may write to Alertmanager writes them: they are too many to be true, and that is said once."""
    name = 'so "many"'
    post(alertmanager_url, alert("RestartLoop", name))
    assert len(asked(alertmanager_url, of_nodes(name))) == 1, "a name is quoted"
    for begin in range(0, 10_000, 1_000):
        post(alertmanager_url, *(
            alert("RestartLoop", name, rank=str(number), cluster=str(number)) for number in range(begin, begin + 1_000)
        ))  # fmt: skip
    said: list[str] = []
    one = ActiveAlerts(alertmanager_url, said.append)
    until(lambda: one.of(of_nodes(name)) is not None or said)
    world = World(tmp_path, lambda *_: run(name=name), ends=[(0, 900.0)], alerts=one.of)
    assert world.supervise() == 0
    assert world.did == ["started"]
    assert world.decisions() == []
    assert len(said) == 1
    assert "silent_corruption" in said[0]


class Hostile(BaseHTTPRequestHandler):
    """A server that is no Alertmanager: it answers by the name of the run that it is asked for."""

    answers: Mapping[str, tuple[int, bytes]] = {}

    def do_GET(self) -> None:
        name = self.path.partition("run%3D%22")[2].partition("%22")[0]
        status, body = self.answers.get(name, (404, b""))
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def taken(**changes: Any) -> bytes:
    """An answer with one alert, as a real one gives it but for these changes."""
    status = {"state": "active", "silencedBy": [], "inhibitedBy": []}
    one = {
        "labels": alert("RestartLoop"), "annotations": {}, "startsAt": "2126-11-29T00:00:00.000Z", "status": status,
    }  # fmt: skip
    return json.dumps([{**one, **changes}]).encode()


@pytest.fixture(scope="module")
def hostile() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


BAD: dict[str, tuple[int, bytes]] = {
    "HTML": (200, b"<html><body>Log in</body></html>"),
    "nothing": (200, b""),
    "an object": (200, b'{"data": []}'),
    "a list of texts": (200, b'["RestartLoop"]'),
    "no labels": (200, taken(labels=None)),
    "labels of another form": (200, taken(labels=["RestartLoop"])),
    "no status": (200, taken(status="active")),
    "no annotations": (200, taken(annotations=7)),
    "no time": (200, taken(startsAt="soon")),
    "a time without an offset": (200, taken(startsAt="2026-11-29T00:00:00")),
    "a number for a time": (200, taken(startsAt=1e300)),
    "deeply nested": (200, b"[" * 100_000),
    "huge": (200, b"[" + b" " * (2 << 20) + b"]"),
    "too many": (200, json.dumps(json.loads(taken()) * (alerts.MOST_ALERTS + 1)).encode()),
    "a failure": (500, b"no"),
    "a redirect": (302, b""),
    "a refusal": (401, b"Unauthorized"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_answer_that_is_none(hostile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Nothing is known then, nothing is done, and it is said once."""
    monkeypatch.setattr(Hostile, "answers", {"r": BAD[case]})
    said: list[str] = []
    one = ActiveAlerts(hostile, said.append)
    world = World(tmp_path, lambda *_: run(), ends=[(0, 300.0)], alerts=one.of)
    world.on_wait = lambda world: world.now > 10.0 and until(lambda: said)
    assert world.supervise() == 0
    assert world.did == ["started"]
    assert [one["kind"] for one in world.entries if one["kind"] in ("decision", "fault")] == []
    assert len(said) == 1
    refused = f"Alertmanager at {hostile} refused: ", "Alertmanager has 65 alerts of run r, too many"
    assert said[0].startswith((f"no Alertmanager at {hostile}: ", *refused))
    assert "\n" not in said[0]


def test_a_good_answer_of_that_server(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above fail for what they say; and what was asked for is checked in the answer, too."""
    silenced = {"state": "active", "silencedBy": ["1"], "inhibitedBy": []}
    other = {"state": "suppressed", "silencedBy": [], "inhibitedBy": []}
    answers = {"r": (200, taken()), "s": (200, taken()), "t": (200, taken(status=silenced, labels=alert(run="t")))}
    answers["u"] = (200, taken(status=other, labels=alert(run="u")))
    monkeypatch.setattr(Hostile, "answers", answers)
    (found,) = asked(hostile, run())
    assert found.text == "Alertmanager has RestartLoop of run r."
    for name in ("s", "t", "u"):
        assert asked(hostile, run(name=name)) == ()


def test_what_is_over_by_now(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is ended, an answer of now counts alone: a few seconds ago it was another."""
    monkeypatch.setattr(Hostile, "answers", {"r": (200, taken())})
    said: list[str] = []
    one = ActiveAlerts(hostile, said.append)
    until(lambda: one.of(run()))
    monkeypatch.setattr(Hostile, "answers", {"r": (200, b"[]")})
    assert one.of(run())
    assert one.of(run(), True) == ()
    monkeypatch.setattr(Hostile, "answers", {"r": (500, b"")})
    assert one.of(run()) == ()
    assert one.of(run(), True) is None


def test_an_answer_that_comes_byte_by_byte() -> None:
    """It keeps nobody waiting, and is said once; a connection is left open for hours that way."""
    now, said, ended = [0.0], list[str](), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            with server.accept()[0] as connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while not ended.wait(0.05):
                    connection.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        one = ActiveAlerts(f"http://127.0.0.1:{server.getsockname()[1]}", said.append, lambda: now[0])
        try:
            assert one.of(run()) is None
            now[0] = 61.0
            assert one.of(run()) is None
            assert one.of(run()) is None
        finally:
            ended.set()
            thread.join()
    assert len(said) == 1
    assert said[0].startswith(
        "the question to Alertmanager for alerts has had no answer for 60 s. What only its alerts"
    )


def test_nobody_answers() -> None:
    """Nothing is known; a wrong address is refused at the start."""
    said: list[str] = []
    one = ActiveAlerts(f"http://127.0.0.1:{free_port()}", said.append)
    assert one.of(run()) is None
    until(lambda: said)
    assert one.of(run()) is None
    expected = (
        ". What only its alerts say (restart_loop, silent_corruption, slow, diverging) is not acted upon until it"
    )
    assert said[0].endswith(f"{expected} answers")
    with pytest.raises(AlertmanagerError):
        ActiveAlerts("ftp://nowhere", said.append)


def test_an_answer_does_not_count_for_long(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute; it is said again if it fails again after it has answered."""
    now, said = [0.0], []
    monkeypatch.setattr(Hostile, "answers", {"r": (200, taken())})
    one = ActiveAlerts(hostile, said.append, lambda: now[0])
    until(lambda: one.of(run()))
    monkeypatch.setattr(Hostile, "answers", {"r": (500, b"")})
    now[0] = alerts.FRESH_SECONDS + 1.0
    assert one.of(run())
    until(lambda: said)
    now[0] = alerts.KNOWN_SECONDS + 1.0
    assert one.of(run()) is None
    monkeypatch.setattr(Hostile, "answers", {"r": (200, taken())})
    until(lambda: one.of(run()))
    assert len(said) == 1
