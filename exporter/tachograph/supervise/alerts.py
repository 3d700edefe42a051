"""The active alerts of a run that say what no single node can conclude, as an Alertmanager has them.

It is asked: there is no port, and no message that could be forged, replayed, late or out of order. What it answers is
its state now, without what is silenced, inhibited or over. Where it does not answer, nothing is known of these alerts,
and nothing is done about them. Where it cannot be asked, it may push them (`pushed_alerts`).
"""

from __future__ import annotations

import re
import socket
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tachograph.findings.kinds import kind_of
from tachograph.servers.alertmanager_api import Alertmanager, AlertmanagerError, time_of
from tachograph.servers.prometheus_api import quoted
from tachograph.supervise.asked_beside import KNOWN_SECONDS, WAIT_SECONDS, AskedBeside
from tachograph.supervise.run_seen import AlertSeen, RankSeen, RunSeen
from tachograph.supervise.silences import hosts_of
from tachograph.supervise.triggers import ALERTS, OF_ALERTS, SLOW
from tachograph.text.humanize import listed
from tachograph.text.printable import printable
from tachograph.text.redact import redact

FRESH_SECONDS = 15.0
"""Age of an answer from which it is asked again."""

MOST_BYTES, MOST_ALERTS = 1 << 20, 64
"""Of an answer: the rules name eight ranks or nodes of a run at most, in a kilobyte each."""

MOST_TEXT = 400

NAMES = tuple(name for trigger in OF_ALERTS for name in ALERTS[trigger])
ONLY_PAGES = (SLOW,)
"""Triggers whose alerts may be pages or tickets: a small lag is a ticket, and no reason for a restart."""


@dataclass(frozen=True)
class FiredAlert:
    """An alert as Alertmanager has it."""

    labels: Mapping[str, str]
    starts: datetime
    text: str


class AlertsOfRun:
    """Whom the alerts of a run are about, however they came here."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[str] = set()

    def about(self, alert: FiredAlert, seen: RunSeen) -> AlertSeen | None:
        """Return an alert with the ranks that it is about; None if it is about none of this run's ranks or nodes."""
        name, trigger = alert.labels["alertname"], kind_of(alert.labels["alertname"]).trigger
        rank, instance = alert.labels.get("rank", ""), alert.labels.get("instance", "")
        ranks = [
            one
            for one in seen.ranks
            if (not rank or str(one.rank) == rank) and (not instance or _is_on(instance, one, seen))
        ]
        if not rank and not instance:
            ranks = []
        elif not ranks:
            self._say_once(f"{name} of rank {rank or 'any'} on {instance or 'any node'} is left alone", seen)
            return None
        nodes = {one.node for one in ranks}
        return AlertSeen(
            name,
            trigger,
            alert.starts.timestamp(),
            f"{name}: {alert.text}" if alert.text else f"Alertmanager has {name} of run {seen.name}.",
            tuple(one.rank for one in ranks),
            nodes.pop() if len(nodes) == 1 else "",
        )

    def _say_once(self, what: str, seen: RunSeen) -> None:
        if what not in self._said and len(self._said) < MOST_ALERTS:
            self._said.add(what)
            nodes = listed(hosts_of(seen), 2)
            self._say(f"Alertmanager's {what}: run {seen.name} has no such rank there: it is on {nodes}")


class ActiveAlerts(AlertsOfRun):
    """The alerts of the Alertmanager at an address; raises AlertmanagerError where that is none."""

    def __init__(self, address: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(say)
        self._alertmanager, self._clock = Alertmanager(address), clock
        self._run = ""
        self._asked: AskedBeside[Sequence[FiredAlert]] | None = None

    def of(self, seen: RunSeen, wait: bool = False) -> tuple[AlertSeen, ...] | None:
        """Return those of a run, of this attempt and of earlier ones, None if they are not known now.

        `wait` for an answer of now, a few seconds, and take no older one.
        """
        if self._asked is None or self._run != seen.name:
            self._run, self._asked = seen.name, self._question(seen.name)
        began, known = self._clock(), KNOWN_SECONDS
        if wait:
            for _ in range(2):  # a question that is still open was asked before
                if self._asked.age() > self._clock() - began:
                    self._asked.ask(WAIT_SECONDS)
            known = self._clock() - began
        elif self._asked.age() > FRESH_SECONDS:
            self._asked.ask()
        if self._asked.answer is None or self._asked.age() > known:
            return None
        found = (self.about(alert, seen) for alert in self._asked.answer.content)
        return tuple(alert for alert in found if alert is not None)

    def _question(self, run: str) -> AskedBeside[Sequence[FiredAlert]]:
        def ask() -> Sequence[FiredAlert]:
            return self._alertmanager.ask("GET", _query(run), lambda said: read_alerts(said, run), most=MOST_BYTES)

        def on_error(error: str) -> None:
            self._say(f"{error}. What only its alerts say ({listed(OF_ALERTS)}) is not acted upon until it answers")

        return AskedBeside("alerts", ask, self._clock, on_error)


def _query(run: str) -> str:
    """Return the path of the question for these alerts of a run; a role's run has a name of its own."""
    wanted = {"active": "true", "silenced": "false", "inhibited": "false", "unprocessed": "false"}
    filters = [f"run={quoted(run)}", f"alertname=~{quoted('|'.join(map(re.escape, NAMES)))}"]
    return f"alerts?{urllib.parse.urlencode([*wanted.items(), *(('filter', one) for one in filters)])}"


def read_alerts(said: object, run: str) -> Sequence[FiredAlert]:
    """Return the alerts of an answer that count.

    Raise one of UNREADABLE for an answer of another form, AlertmanagerError for too many alerts.
    """
    if not isinstance(said, list):
        raise TypeError("not a list of alerts")
    found = [fired_alert(one) for one in said if _is_active(one["status"]) and counts(one["labels"], (run,))]
    if len(found) > MOST_ALERTS:
        raise AlertmanagerError(f"Alertmanager has {len(found)} alerts of run {run}, too many to name anybody")
    return found


def _is_active(status: Mapping[str, Any]) -> bool:
    """Return whether an alert is neither over, silenced nor inhibited: a server may not know these conditions."""
    return status["state"] == "active" and not status["silencedBy"] and not status["inhibitedBy"]


def counts(labels: Mapping[str, str], runs: Collection[str]) -> bool:
    """Return whether an alert with these labels is one of these runs' that counts; raise one of UNREADABLE."""
    name = labels["alertname"]
    return (
        labels.get("run") in runs
        and name in NAMES
        and (kind_of(name).trigger not in ONLY_PAGES or labels["severity"] == "critical")
    )


def fired_alert(said: Mapping[str, Any]) -> FiredAlert:
    """Return an alert as the API and the webhooks have it; raise one of UNREADABLE."""
    labels = said["labels"]
    words = " ".join(str(said["annotations"].get("description", ""))[: 4 * MOST_TEXT].split())
    text = printable(redact(words))
    return FiredAlert(
        {name: str(labels[name]) for name in ("alertname", "rank", "instance") if name in labels},
        time_of(said["startsAt"]),
        _sentence(text),
    )


def _sentence(text: str) -> str:
    """Return a text that is not too long, and ends as one does."""
    if len(text) > MOST_TEXT:
        return f"{text[:MOST_TEXT].rpartition(' ')[0]} …"
    return text if not text or text.endswith((".", "…")) else f"{text}."


def _is_on(instance: str, rank: RankSeen, seen: RunSeen) -> bool:
    """Return whether a rank is on the node that an alert names, with or without a port or a domain."""
    host = instance.rpartition(":")[0] if instance.rpartition(":")[2].isdigit() else instance
    here = [rank.node] if rank.node else [seen.node, socket.gethostname()]
    return any(_is_same(host, name) for name in here if name)


def _is_same(host: str, other: str) -> bool:
    """Return whether two names may be of one node: the same, or one of them without the other's domain."""
    return host == other or other.partition(".")[0] == host or host.partition(".")[0] == other
