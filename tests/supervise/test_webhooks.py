"""Alertmanager's webhooks: taken from a real one, and from nobody else; only what is new changes what is known."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tachograph.node.web.web_config_file import WebConfigFile
from tachograph.servers.alertmanager_api import Alertmanager
from tachograph.silence.alertmanager import Silence, SilenceMatcher, Silences
from tachograph.supervise import webhook
from tachograph.supervise.alerts import MOST_ALERTS, MOST_BYTES, NAMES
from tachograph.supervise.asked_beside import KNOWN_SECONDS
from tachograph.supervise.observer import ATTEMPT_SECONDS
from tachograph.supervise.pushed_alerts import MOST_ENDED, PushedAlerts
from tachograph.supervise.run_seen import AlertSeen
from tachograph.supervise.triggers import DIVERGING, RESTART_LOOP, SLOW
from tachograph.supervise.webhook import Admission, WebhookError, WebhookServer, address_of
from tachograph_lab.processes import free_port
from tests.node.web.conftest import Certificates
from tests.supervise.conftest import RANKS, Supervised, alertmanager, until
from tests.supervise.test_alert_triggers import impatient
from tests.supervise.test_alerts import alert, of_nodes, post
from tests.supervise.test_heartbeat import families
from tests.supervise.world import BEGIN, World, run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "alertmanager/examples/supervise.yml"
SECRET = "a secret of 31 characters, here"


def at(seconds: float) -> str:
    return datetime.fromtimestamp(BEGIN + seconds, timezone.utc).isoformat()


def one(labels: Mapping[str, str], starts: float = 120.0, ends: float | None = None) -> dict[str, Any]:
    """An alert of a message, which began so many seconds after the first attempt."""
    return {
        "status": "firing" if ends is None else "resolved", "labels": labels, "annotations": {"description": "So."},
        "startsAt": at(starts), "endsAt": "0001-01-01T00:00:00Z" if ends is None else at(ends),
        "generatorURL": "", "fingerprint": "0123456789abcdef",
    }  # fmt: skip


def message(*alerts: object, **changes: object) -> bytes:
    """A message as Alertmanager sends it, but for these changes."""
    usual = {
        "version": "4", "groupKey": "{}:{}", "truncatedAlerts": 0, "status": "firing", "receiver": "supervisor",
        "groupLabels": {}, "commonLabels": {}, "commonAnnotations": {}, "externalURL": "http://alertmanager",
        "alerts": list(alerts),
    }  # fmt: skip
    return json.dumps({**usual, **changes}).encode()


LOOP = alert("RestartLoop")


@dataclass
class Receiver:
    """A receiver of webhooks for the run `r`, with a clock that a test turns."""

    folder: Path
    now: float = 0.0
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.secret = self.folder / "secret"
        self.secret.write_text(f"{SECRET}\n")
        self.secret.chmod(0o600)
        self.alerts = PushedAlerts(["r"], self.said.append, lambda: self.now)
        self.server = WebhookServer("127.0.0.1", 0, Admission(self.secret, None), self.alerts)
        self.url = self.server.__enter__()
        self.port = int(self.url.rstrip("/").rpartition(":")[2])

    def post(
        self, body: bytes, secret: str | None = SECRET, *, method: str = "POST", path: str = "/", **headers: str
    ) -> int:
        """Send a message, and return the status of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if secret is not None:
            headers["Authorization"] = f"Bearer {secret}"
        try:
            connection.request(method, path, body, headers)
            return connection.getresponse().status
        finally:
            connection.close()

    def known(self) -> list[str] | None:
        found = self.alerts.of(run())
        return None if found is None else sorted(each.name for each in found)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    found = Receiver(tmp_path)
    yield found
    found.server.__exit__(None, None, None)


def test_a_message_is_taken(receiver: Receiver) -> None:
    """An alert of the run that counts is known for a minute after each time that it is said."""
    assert receiver.known() is None
    body = message(one(LOOP), one(alert("MfuDropped")), one(alert("RankDead")), one(alert(run="other")))
    assert receiver.post(body) == 200
    (found,) = receiver.alerts.of(run()) or ()
    assert found == AlertSeen("RestartLoop", RESTART_LOOP, BEGIN + 120.0, "RestartLoop: So.")
    receiver.now = KNOWN_SECONDS
    assert receiver.post(body) == 200
    receiver.now = 2 * KNOWN_SECONDS
    assert receiver.known() == ["RestartLoop"]
    receiver.now += 1.0
    assert receiver.known() is None, "it is silenced, or its sender is gone"
    assert receiver.post(message(one(LOOP, ends=150.0))) == 200
    assert receiver.known() == []
    assert receiver.alerts.counted() == {"taken": 2, "repeated": 1}
    assert receiver.said == []


def test_which_alerts_count(receiver: Receiver) -> None:
    """Those that count when Alertmanager is asked, with the same ranks and nodes to blame."""
    slow = alert(rank="1", instance="node-7")
    body = message(one(slow), one({**slow, "severity": "warning", "rank": "2"}), one(alert("LossDiverging")))
    assert receiver.post(body) == 200
    found = receiver.alerts.of(of_nodes())
    assert found is not None
    assert [(each.trigger, each.ranks, each.node) for each in found] == [(SLOW, (1,), "node-7"), (DIVERGING, (), "")]


def test_what_of_a_group_is_not_repeated_is_over(receiver: Receiver) -> None:
    """A message has all alerts of its group: what is missing in it a minute later is silenced or inhibited."""
    receiver.post(message(one(LOOP), one(alert("LossDiverging"))))
    receiver.now = 40.0
    receiver.post(message(one(LOOP)))
    receiver.now = KNOWN_SECONDS + 1.0
    assert receiver.known() == ["RestartLoop"]


SEQUENCES: dict[str, tuple[list[tuple[float, float | None]], list[str], str]] = {
    "a replayed message": ([(120, None), (120, 130), (120, None)], [], "late"),
    "an end that overtakes its beginning": ([(120, 130), (120, None)], [], "late"),
    "an end of before": ([(120, 130), (140, None), (120, 130)], ["RestartLoop"], "late"),
    "an end twice": ([(120, 130), (120, 130)], [], "repeated"),
    "an earlier end": ([(120, 130), (100, 110)], [], "repeated"),
    "from a pair": ([(120, None), (120, None)], ["RestartLoop"], "repeated"),
    "by another clock of a pair": ([(120, None), (118, None)], ["RestartLoop"], "repeated"),
    "again": ([(120, None), (120, 130), (131, None)], ["RestartLoop"], "taken"),
}


@pytest.mark.parametrize("case", SEQUENCES)
def test_in_whatever_order_they_come(receiver: Receiver, case: str) -> None:
    """What is known is what is newest by its own times; each is counted, and what is refused is said once."""
    sent, known, outcome = SEQUENCES[case]
    for starts, ends in sent:
        before = receiver.alerts.counted()
        assert receiver.post(message(one(LOOP, starts, ends))) == 200
    assert receiver.known() == known
    assert receiver.alerts.counted().get(outcome, 0) == before.get(outcome, 0) + 1
    assert len(receiver.said) == (outcome == "late")


def test_an_end_is_remembered(receiver: Receiver) -> None:
    """However many others ended since: of those that are forgotten, none fires again that began before the last end."""
    receiver.alerts.take(message(one(LOOP, 120.0, 130.0)))
    for number in range(MOST_ENDED + 10):
        receiver.alerts.take(message(one({**LOOP, "cluster": str(number)}, 200.0, 210.0 + number)))
    assert receiver.alerts.take(message(one(LOOP, 120.0))) == "late"
    assert receiver.known() == []


MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "HTML": b"<html>",
    "not UTF-8": b'{"version": "\xff\xfe\xfd"}',
    "a list": b"[]",
    "a text": b'"firing"',
    "deeply nested": b'{"version": "4", "alerts": ' + b"[" * 100_000,
    "another version": message(one(LOOP), version="3"),
    "no version": json.dumps({"alerts": [one(LOOP)]}).encode(),
    "not all alerts": message(one(LOOP), truncatedAlerts=3),
    "alerts of another form": message(alerts={"status": "firing"}),
    "an alert of another form": message("RestartLoop"),
    "one faulty alert of two": message(one(LOOP), {**one(LOOP), "status": "burning"}),
    "no status": message({**one(LOOP), "status": None}),
    "no labels": message({**one(LOOP), "labels": None}),
    "labels of another form": message({**one(LOOP), "labels": {**LOOP, "rank": 1}}),
    "no annotations": message({**one(LOOP), "annotations": 7}),
    "no time": message({**one(LOOP), "startsAt": "soon"}),
    "a time without an offset": message({**one(LOOP), "startsAt": "2026-11-29T00:00:00"}),
    "a number for a time": message({**one(LOOP), "startsAt": 1e300}),
    "no end": message({**one(LOOP), "status": "resolved", "endsAt": ""}),
    "a label without an end": message(one({**LOOP, "cluster": "x" * 10_000})),
    "huge": message(one(LOOP), padding=" " * (MOST_BYTES + 1)),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_is_no_message(receiver: Receiver, case: str) -> None:
    """It is refused as a whole and counted, said once, and nothing is known by it."""
    with suppress(BrokenPipeError, ConnectionResetError):  # it is not read to its end if it is too long
        assert receiver.post(MALFORMED[case]) == 400
    until(lambda: receiver.alerts.counted() == {"malformed": 1})
    assert receiver.known() is None
    (said,) = receiver.said
    assert said.startswith("a webhook from 127.0.0.1 is refused: it is no message of Alertmanager's, version 4.")
    assert receiver.post(message(one(LOOP))) == 200
    assert receiver.known() == ["RestartLoop"]


def test_what_is_no_request(receiver: Receiver) -> None:
    """Another method, path or protocol, headers without an end, a body that is cut short or packed."""
    assert receiver.post(message(one(LOOP)), method="PUT") == 501
    assert receiver.post(message(one(LOOP)), path="/other") == 400
    packed = {"Transfer-Encoding": "chunked"}
    assert receiver.post(b"0\r\n\r\n", **packed) == 400
    raw = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nAuthorization: Bearer " + SECRET.encode() + b"\r\nContent-Length: 100\r\n\r\n{",
    ]
    for number, text in enumerate(raw):
        with socket.create_connection(("127.0.0.1", receiver.port)) as connection, suppress(OSError):
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(100)
        until(lambda number=number: receiver.alerts.counted() == {"malformed": 4 + number})  # type: ignore[misc]
    assert receiver.known() is None


FORGED: dict[str, str | None] = {
    "none": None, "empty": "", "wrong": SECRET[:-1] + "x", "a part": SECRET[:-1], "longer": SECRET + "x",
    "not ASCII": "\xe9" * 31,
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_what_has_not_the_secret(receiver: Receiver, case: str) -> None:
    """It is refused before it is read, whatever it says."""
    for _ in range(3):
        assert receiver.post(message(one(LOOP)), FORGED[case]) == 401
    assert receiver.post(b"{", FORGED[case]) == 401
    assert receiver.alerts.counted() == {"forged": 4}
    assert receiver.known() is None
    (said,) = receiver.said
    assert said.startswith("a webhook from 127.0.0.1 is refused: it lacks the secret")


def test_a_secret_is_replaced(receiver: Receiver) -> None:
    """It counts at once, as a training is not restarted for it; without one nobody is let in."""
    receiver.secret.write_text("another one of 31 characters ...")
    assert receiver.post(message(one(LOOP))) == 401
    assert receiver.post(message(one(LOOP)), "another one of 31 characters ...") == 200
    for break_it in (
        lambda: receiver.secret.write_text(""),
        lambda: receiver.secret.chmod(0o604),
        receiver.secret.unlink,
    ):
        break_it()
        assert receiver.post(message(one(LOOP)), "") == 401
    assert receiver.post(message(one(LOOP)), SECRET, **{"authorization": f"Basic {SECRET}"}) == 401


def test_who_says_nothing_gets_no_place_for_long(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that are held open, and such that send a byte now and then, are closed; the next one is heard."""
    monkeypatch.setattr(webhook, "MESSAGE_SECONDS", 1.0)
    ended = threading.Event()
    held = [socket.create_connection(("127.0.0.1", receiver.port)) for _ in range(webhook.MOST_CONNECTIONS)]

    def drip() -> None:
        while not ended.wait(0.05):
            for each in held[::2]:
                with suppress(OSError):
                    each.sendall(b"P")

    thread = threading.Thread(target=drip)
    thread.start()
    try:

        def refused() -> bool:
            with suppress(OSError, http.client.HTTPException):
                receiver.post(message(one(LOOP)))
            return receiver.alerts.counted().get("too_many", 0) > 0

        until(refused)
        until(lambda: receiver.alerts.counted().get("malformed", 0) >= webhook.MOST_CONNECTIONS)

        def taken() -> bool:
            with suppress(OSError, http.client.HTTPException):
                return receiver.post(message(one(LOOP))) == 200
            return False

        until(taken)
    finally:
        ended.set()
        thread.join()
        for each in held:
            each.close()


def test_ten_thousand_change_nothing(receiver: Receiver, tmp_path: Path) -> None:
    """Whoever sends them: a run that trains is left alone, and no more is remembered than a few hundred alerts."""
    for number in range(10_000):
        labels = {**LOOP, "cluster": str(number)}
        body = (message(one(labels)), message(one(labels, 120.0, 130.0 + number)), b"{", message(one(LOOP)))[number % 4]
        receiver.alerts.count(receiver.alerts.take(body), "127.0.0.1")
    counted = receiver.alerts.counted()
    assert sum(counted.values()) == 10_000
    assert counted["malformed"] == 2500
    assert counted["too_many"] + counted["late"] >= 2500 - MOST_ALERTS
    assert len(receiver.alerts._firing) <= MOST_ALERTS
    assert len(receiver.alerts._ended) <= MOST_ENDED
    assert len(receiver.said) == 3
    policy = impatient(tmp_path, RESTART_LOOP, asks=False)
    world = World(tmp_path / "state", lambda *_: run(), ends=[(0, 900.0)], policy=policy, alerts=receiver.alerts.of)
    world.supervise()
    assert world.did == ["started"]
    assert world.decisions() == []


@pytest.mark.slow
def test_ten_thousand_posts_change_nothing(receiver: Receiver) -> None:
    """Over the socket, as fast as they come from two senders: forged, malformed, replayed and repeated ones."""
    receiver.post(message(one(LOOP, 120.0, 130.0)))
    bodies = [(message(one(LOOP)), "wrong"), (b"{", SECRET), (message(one(LOOP)), SECRET), (message(), SECRET)]
    done = [0, 0]

    def send(sender: int) -> None:
        while done[sender] < 5_000:
            with suppress(OSError, http.client.HTTPException):
                receiver.post(*bodies[done[sender] % 4])
                done[sender] += 1

    senders = [threading.Thread(target=send, args=(number,)) for number in range(2)]
    for each in senders:
        each.start()
    for each in senders:
        each.join()
    assert receiver.known() == []
    counted = receiver.alerts.counted()
    assert [counted[name] for name in ("forged", "malformed", "late", "other")] == [2_500] * 4
    assert len(receiver.said) == 3


def test_two_witnesses_are_one_event(receiver: Receiver, tmp_path: Path) -> None:
    """Both of a pair of Alertmanagers send it, again and again: it is decided once, in its own attempt alone."""
    policy = impatient(tmp_path, RESTART_LOOP, asks=False)
    for name, starts, expected in (("now", 120.0, 1), ("before", ATTEMPT_SECONDS - 1.0, 0)):
        world = World(tmp_path / name, lambda *_: run(), ends=[(0, 900.0)], policy=policy, mode="shadow")
        labels = {**LOOP, "cluster": name}

        def push(world: World, labels: Mapping[str, str] = labels, starts: float = starts) -> None:
            receiver.now = world.now
            for _ in range(2 if world.now > starts else 0):
                receiver.alerts.take(message(one(labels, starts)))

        world.on_wait, world.alerts = push, receiver.alerts.of
        world.supervise()
        assert [found for _, found, _ in world.decisions()].count(RESTART_LOOP) == expected
        receiver.alerts.take(message(one(labels, starts, 900.0)))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def tls_file(certificates: Certificates, *lines: str) -> Path:
    path = certificates.folder / f"{len(list(certificates.folder.iterdir()))}.yml"
    path.write_text("\n  ".join(["tls_server_config:", "cert_file: server.pem", "key_file: server.key", *lines]))
    return path


MUTUAL = ("client_ca_file: ca.pem", "client_auth_type: RequireAndVerifyClientCert")


def test_only_with_a_certificate(certificates: Certificates) -> None:
    """One that the file's authority has issued, in a name that it allows; then no secret is needed."""
    alerts = PushedAlerts(["r"], lambda _: None)
    tls = WebConfigFile(tls_file(certificates, *MUTUAL, "client_allowed_sans: [prometheus.example]"))
    with WebhookServer("127.0.0.1", 0, Admission(None, tls), alerts) as url:
        assert url.startswith("https://127.0.0.1:")

        def sent(client: str) -> bool:
            context = certificates.context(client)
            connection = http.client.HTTPSConnection(url.split("/")[2], context=context, timeout=60)
            try:
                connection.request("POST", "/", message(one(LOOP)))
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False
            finally:
                connection.close()

        assert [name for name in ("", "scraper", "other", "old-scraper", "intruder") if sent(name)] == ["scraper"]
        until(lambda: alerts.counted() == {"taken": 1, "forged": 4})


UNSAFE: dict[str, tuple[list[str], str]] = {
    "nobody is asked for anything": (["--webhook", "0"], "expected a secret, or client_auth_type"),
    "no secret": (["--webhook", "0", "--webhook-secret", "none"], "none: No such file or directory"),
    "a secret of everybody": (
        ["--webhook", "0", "--webhook-secret", "open"],
        "open may be read by everybody: chmod o=",
    ),
    "a short one": (["--webhook", "0", "--webhook-secret", "short"], "short must have at least 16 characters"),
    "from elsewhere in the clear": (
        ["--webhook", "0.0.0.0:0", "--webhook-secret", "s"],
        "can be reached from elsewhere",
    ),
    "no certificate": (["--webhook", "0", "--webhook-tls", "none"], "none: cannot be read: No such file"),
    "no port": (["--webhook", "here", "--webhook-secret", "s"], "expected HOST:PORT, with a port"),
    "all addresses by accident": (["--webhook", ":10025", "--webhook-secret", "s"], "expected PORT, HOST:PORT"),
    "no host": (["--webhook", "no-such-host.invalid:1", "--webhook-secret", "s"], "no-such-host.invalid: "),
    "both": (["--webhook", "0", "--alertmanager", "a"], "--webhook is for an Alertmanager that cannot be asked"),
    "neither": (["--webhook-secret", "s"], "--webhook-secret and --webhook-tls are for --webhook"),
}


@pytest.mark.parametrize("case", UNSAFE)
def test_what_is_not_safe_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """With what is wrong with it, and status 2."""
    from tachograph.supervise.command import main

    monkeypatch.chdir(tmp_path)
    for name, text, mode in (("s", SECRET, 0o600), ("open", SECRET, 0o644), ("short", "1234", 0o600)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    options, why = UNSAFE[case]
    assert main([*options, "--", "touch", "started"]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "started").exists()


def test_addresses() -> None:
    """A port alone is this machine's."""
    found = [address_of(text) for text in ("10025", "10.0.0.7:80", "[::1]:443", "localhost:0")]
    assert found == [("127.0.0.1", 10025), ("10.0.0.7", 80), ("::1", 443), ("localhost", 0)]
    with pytest.raises(WebhookError, match="expected a secret"):
        WebhookServer("127.0.0.1", 0, Admission(None, None), PushedAlerts(["r"], lambda _: None))


def test_the_example_has_the_alerts_that_count() -> None:
    """Its route sends all of them, and no other."""
    assert f'alertname=~"{"|".join(NAMES)}"' in EXAMPLE.read_text()


@dataclass
class Pushing:
    """A real Alertmanager with the example's route, which sends to a port."""

    url: str
    port: int
    secret: Path


@pytest.fixture(scope="module")
def pushing(programs: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pushing]:
    folder, to = tmp_path_factory.mktemp("pushing"), free_port()
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o600)
    example = EXAMPLE.read_text().replace("/etc/alertmanager/secrets/supervisor", str(folder / "secret"))
    example = example.replace("10025/", f"{to}/").replace("group_interval: 10s", "group_interval: 1s")
    example = example.replace("repeat_interval: 30s", "repeat_interval: 1s")
    with alertmanager(programs["alertmanager"], folder, example) as url:
        yield Pushing(url, to, folder / "secret")


@pytest.mark.e2e
def test_a_real_alertmanager_pushes(pushing: Pushing) -> None:
    """What it has, with what it blames; what is silenced is not repeated, and what is over is said to be so."""
    alerts = PushedAlerts(["r", "quiet"], pytest.fail)
    with WebhookServer("127.0.0.1", pushing.port, Admission(pushing.secret, None), alerts):
        post(pushing.url, alert(rank="1", instance="node-7"), alert("RankDead", rank="1"), minutes=5.0)
        (found,) = until(lambda: alerts.of(of_nodes()))
        assert (found.trigger, found.ranks, found.node) == (SLOW, (1,), "node-7")
        assert found.text == "StragglerRank: StragglerRank holds. Look at it."
        until(lambda: alerts.counted().get("repeated", 0) > 1)
        post(pushing.url, alert(rank="1", instance="node-7"), minutes=5.0, for_minutes=-1.0)
        until(lambda: alerts.of(of_nodes()) == ())
        post(pushing.url, alert("RestartLoop", "quiet"))
        until(lambda: alerts.of(of_nodes("quiet")))
        now = datetime.now(timezone.utc)
        quiet = SilenceMatcher("run", "quiet")
        Silences(pushing.url).add(Silence((quiet,), now, now + timedelta(hours=1), "ada", "new switch"))

        def is_quiet() -> bool:
            before = alerts.counted()
            time.sleep(3.0)  # in which it would have been repeated three times
            return alerts.counted() == before

        until(is_quiet)
    assert "forged" not in alerts.counted()


@pytest.mark.e2e
def test_a_real_run_is_stopped_on_a_pushed_alert(pushing: Pushing, supervised: Supervised) -> None:
    """A whole supervisor, a real exporter, which shows what was refused, and a real Alertmanager."""
    policy = impatient(supervised.folder, DIVERGING, asks=False)
    policy.write_text(policy.read_text().replace("lower_rate: {per_hour: 1, per_run: 2}, leave", "stop"))
    command = [sys.executable, RANKS, supervised.folder, "--steps", "100000"]
    options = ["--policy", policy, "--webhook", pushing.port, "--webhook-secret", pushing.secret]
    process = supervised.start("act", command, *options)
    made = supervised.folder / "steps-0"
    until(lambda: made.exists() and made.read_text().count("\n") > 200)
    connection = http.client.HTTPConnection("127.0.0.1", pushing.port, timeout=60)
    connection.request("POST", "/", message(one(alert("LossDiverging", supervised.name))))
    assert connection.getresponse().status == 401
    connection.close()
    shown: Callable[[], dict[str, float]] = lambda: families(supervised.exporter, supervised.name)  # noqa: E731
    until(lambda: shown().get('webhooks_total{outcome="forged"}') == 1)
    starts = datetime.now(timezone.utc) + timedelta(seconds=ATTEMPT_SECONDS - 1.0)  # as of a clock that is ahead
    body = {
        "labels": alert("LossDiverging", supervised.name), "annotations": {"description": "It climbs."},
        "startsAt": starts.isoformat(), "endsAt": (starts + timedelta(hours=1)).isoformat(),
    }  # fmt: skip
    Alertmanager(pushing.url).ask("POST", "alerts", lambda _: None, [body])
    status, said = supervised.end(process)
    assert status == 3, said
    assert supervised.decisions() == [("act", DIVERGING, "stop")]
    assert "LossDiverging: It climbs. To be done: stop" in said
    assert f"Alertmanager may send its webhooks to http://127.0.0.1:{pushing.port}/" in said


def test_a_port_that_is_taken(supervised: Supervised, tmp_path: Path) -> None:
    """Nothing is started, and the journal is free again."""
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as other:
        options = ["--webhook", other.getsockname()[1], "--webhook-secret", tmp_path / "secret"]
        status, said = supervised.end(supervised.start("act", ["touch", tmp_path / "started"], *options))
    assert status == 1
    assert "Address already in use" in said
    assert not (tmp_path / "started").exists()
