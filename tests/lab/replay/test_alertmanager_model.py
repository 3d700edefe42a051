"""The model against the real Alertmanager of both generations: the same notifications in the same order.

Every case happens at once, in runs of their own, with waits of seconds.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tachograph_lab import binaries
from tachograph_lab.checkout import root
from tachograph_lab.pager import Pager
from tachograph_lab.processes import Children, answers, free_port
from tachograph_lab.replay import alertmanager_config
from tachograph_lab.replay.alertmanager import AlertmanagerModel, Firing
from tachograph_lab.replay.verdict import ReceivedAlert

LASTS = 16.0
DEADLINE = 60.0
CLOSE = 1.2
"""Seconds within which the model leaves open what comes first: no two moments of a case that matter are closer."""

CONFIGURATION = """
time_intervals:
  - {name: always, time_intervals: [{weekdays: ['sunday:saturday'], months: ['january:december']}]}
  - {name: never, time_intervals: [{years: ['1971']}]}
route:
  receiver: fallback
  group_by: [run, alertname]
  group_wait: 2s
  group_interval: 4s
  repeat_interval: 1h
  routes:
    - {matchers: [severity="info"], receiver: "null"}
    - {match: {severity: warning}, receiver: terse, group_by: [run]}
    - {matchers: [run="both"], receiver: first, continue: true, group_wait: 4s}
    - {matchers: ['{run=~"both|second"}'], receiver: second}
    - {match_re: {run: muted.*}, receiver: first, mute_time_intervals: [always]}
    - {matchers: [run="asleep"], receiver: first, active_time_intervals: [never]}
    - {matchers: [run="awake"], receiver: first, active_time_intervals: [always], mute_time_intervals: [never]}
    - matchers: [run=~"deep", rank!=""]
      receiver: first
      routes:
        - {matchers: [rank!~"1|2"], receiver: second, group_by: ['...']}
inhibit_rules:
  - {source_matchers: [alertname="Cause"], target_matchers: [alertname=~"Symptom.*", run!=""], equal: [run, rank]}
  - {source_match: {alertname: Old}, target_match_re: {alertname: 'Old(er)?'}, equal: [run]}
receivers:
  - {name: fallback, webhook_configs: [{url: URL/fallback, send_resolved: true}]}
  - {name: first, webhook_configs: [{url: URL/first}]}
  - {name: second, webhook_configs: [{url: URL/second}]}
  - {name: terse, webhook_configs: [{url: URL/terse, send_resolved: false}]}
  - {name: "null"}
"""


def alert(run: str, name: str, start: float, end: float | None = None, **labels: str) -> Firing:
    return Firing({"alertname": name, "run": run, "severity": "critical", **labels}, start, end, {})


ALERTS = (
    alert("plain", "A", 0, 7),
    alert("joined", "A", 0, rank="1"),
    alert("joined", "A", 4, rank="2"),
    alert("joined", "A", 4, 7, rank="3"),
    alert("joined", "B", 4),
    alert("brief", "A", 0, 1),
    alert("flaps", "A", 0, 3.4),
    alert("flaps", "A", 4.6),
    alert("again", "A", 0, 3.4),
    alert("again", "A", 7),
    alert("hidden", "Symptom", 0),
    alert("hidden", "Cause", 0.8, 7.2),
    alert("unlike", "Symptom", 0, rank="1"),
    alert("unlike", "Cause", 0, rank="2"),
    alert("late", "Symptom", 0),
    alert("late", "Cause", 4),
    alert("over", "Symptom", 0, 7.2),
    alert("over", "Cause", 4),
    alert("two", "Old", 0),
    alert("two", "Older", 0),
    alert("itself", "Old", 0, rank="1"),
    alert("itself", "Old", 0, rank="2"),
    alert("hush", "A", 0, severity="info"),
    alert("terse", "A", 0, 3.4, severity="warning"),
    alert("terse", "B", 4, severity="warning"),
    alert("both", "A", 0),
    alert("second", "A", 0, 7),
    alert("muted-1", "A", 0),
    alert("asleep", "A", 0),
    alert("awake", "A", 0),
    alert("deep", "A", 0, rank="1"),
    alert("deep", "A", 0, rank="2"),
    alert("deep", "A", 0, rank="3"),
    alert("deep", "A", 0.8, rank="4"),
    alert("deep", "A", 0),
)


class Listener(Pager):
    """Keeps notifications in the model's form: each alert once as firing, once as resolved, for each receiver."""

    def __init__(self) -> None:
        self.began = time.time()
        self.heard: dict[object, ReceivedAlert] = {}
        super().__init__()
        # All groups come at once: a connection beyond the queue's five would be tried again a second later.
        self._server.socket.listen(128)

    def accept(self, receiver: str, notification: Mapping[str, Any]) -> None:
        now = time.time() - self.began
        for one in notification["alerts"]:
            key = (receiver, one["fingerprint"], one["status"], one["startsAt"])
            self.heard.setdefault(key, ReceivedAlert(now, receiver, one["status"], one["labels"], {}))


class Told(NamedTuple):
    run: str
    alert: str
    rank: str
    receiver: str
    status: str
    time: float


class Heard(NamedTuple):
    sent: dict[float, float]
    """When the alerts of each moment were sent."""
    told: list[Told]


def told(received: list[ReceivedAlert]) -> list[Told]:
    return sorted(
        Told(one.labels["run"], one.alert, one.labels.get("rank", ""), one.receiver, one.status, one.time)
        for one in received
    )


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory, modelled: list[Told]) -> dict[str, Heard]:
    """What the real Alertmanager of each available generation was sent and sends; both run at once."""
    folder = tmp_path_factory.mktemp("alertmanager")
    with ExitStack() as running:
        listeners = {}
        urls = {}
        for suite in ("bookworm", "sid"):
            try:
                program = binaries.find(suite)["alertmanager"]
            except binaries.BinariesUnavailable:
                continue
            listeners[suite] = running.enter_context(Listener())
            urls[suite] = running.enter_context(started(program, folder / suite, listeners[suite].url))
        began = time.time()
        for listener in listeners.values():
            listener.began = began
        sent: dict[str, dict[float, float]] = {suite: {} for suite in urls}
        for moment in sorted({one.start for one in ALERTS} | {one.end for one in ALERTS if one.end}):
            time.sleep(max(0.0, began + moment - time.time()))
            for suite, url in urls.items():
                sent[suite][moment] = time.time() - began
                send(url, moment, began)
        time.sleep(max(0.0, began + LASTS - time.time()))  # for one too many, too
        deadline = time.time() + DEADLINE
        while any(len(each.heard) < len(modelled) for each in listeners.values()) and time.time() < deadline:
            time.sleep(0.05)
        return {suite: Heard(sent[suite], told(list(each.heard.values()))) for suite, each in listeners.items()}


class started:  # noqa: N801
    """A real Alertmanager with the configuration above."""

    def __init__(self, program: Path, folder: Path, pager: str) -> None:
        folder.mkdir()
        (folder / "alertmanager.yml").write_text(CONFIGURATION.replace("URL", pager), encoding="utf-8")
        self.children = Children(folder)
        self.url = f"http://127.0.0.1:{free_port()}"
        self.command = [program, f"--config.file={folder / 'alertmanager.yml'}", f"--storage.path={folder / 'data'}",
                        f"--web.listen-address={self.url[7:]}", "--cluster.listen-address="]  # fmt: skip

    def __enter__(self) -> str:
        self.children.__enter__()
        child = self.children.start("alertmanager", self.command)
        child.wait_until(lambda: answers(f"{self.url}/-/ready"), 90)
        return self.url

    def __exit__(self, *error: Any) -> None:
        self.children.__exit__(*error)


def send(url: str, moment: float, began: float) -> None:
    """Send the alerts that start or end now, as Prometheus does."""

    def stamp(second: float) -> str:
        return datetime.fromtimestamp(began + second, timezone.utc).isoformat()

    content = [
        {"labels": one.labels, "startsAt": stamp(one.start), **({"endsAt": stamp(moment)} if one.end == moment else {})}
        for one in ALERTS
        if moment in (one.start, one.end)
    ]
    request = urllib.request.Request(
        f"{url}/api/v2/alerts", json.dumps(content).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=60).close()


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """The model's notifications for the same alerts, without the null receiver's."""
    path = tmp_path_factory.mktemp("model") / "alertmanager.yml"
    path.write_text(CONFIGURATION, encoding="utf-8")
    received = AlertmanagerModel(alertmanager_config.read(path)).notifications(ALERTS, LASTS)
    return told([one for one in received if one.receiver != "null"])


@pytest.mark.e2e
@pytest.mark.parametrize("suite", ["bookworm", "sid"])
def test_the_model_tells_what_alertmanager_tells(heard: dict[str, Heard], modelled: list[Told], suite: str) -> None:
    """The same alerts to the same receivers, as firing and as resolved, between the same others and what was sent."""
    if suite not in heard:
        assert suite != "bookworm", "Alertmanager cannot be had"
        pytest.skip(f"no Alertmanager of {suite}")
    sent, real = heard[suite]
    assert [one[:5] for one in modelled] == [one[:5] for one in real]
    events = [(ours.time, theirs.time) for ours, theirs in zip(modelled, real, strict=True)] + list(sent.items())
    assert not [(one, other) for one in events for other in events if other[0] - one[0] > CLOSE and other[1] < one[1]]
    assert len(modelled) > 25


def test_the_shipped_configuration_is_understood() -> None:
    """A cause pages at once, a symptom only if it lasts longer, info goes to nobody, the watchdog to its receiver."""
    configuration = alertmanager_config.read(root() / "alertmanager/alertmanager.yml")
    received = AlertmanagerModel(configuration).notifications(
        [
            alert("r", "RankDead", 100, 200, rank="1"),
            alert("r", "RunHung", 97, 250),
            alert("r", "LossSpike", 90, severity="info"),
            Firing({"alertname": "TachographWatchdog", "severity": "none"}, 0, None, {}),
        ],
        240,
    )
    assert [(one.receiver, one.status, one.alert) for one in received if one.alert != "TachographWatchdog"] == [
        ("page", "firing", "RankDead"),
        ("null", "firing", "LossSpike"),
        ("page", "resolved", "RankDead"),
        ("page", "firing", "RunHung"),
    ]
    first = {one.receiver: one.time for one in reversed(received)}
    assert first["watchdog"] == 0
    assert first["page"] == 101


def test_a_group_is_told_again_only_for_something_new(tmp_path: Path) -> None:
    """An alert that ends and fires again between two flushes of its group is not sent again until its end was sent."""
    path = tmp_path / "alertmanager.yml"
    path.write_text(CONFIGURATION, encoding="utf-8")
    model = AlertmanagerModel(alertmanager_config.read(path))
    flapping = [alert("r", "A", 100 + 0.5 * i, 100.3 + 0.5 * i) for i in range(40)]
    assert [one.status for one in model.notifications(flapping, 1000)].count("firing") == 1
