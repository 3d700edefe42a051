"""The alerts of a run that an Alertmanager pushes, where it cannot be asked.

A message has neither a number nor a time (https://prometheus.io/docs/alerting/latest/configuration/#webhook_config).
The same one comes again every half a minute while its alerts last, from each of a pair of Alertmanagers. What tells an
old one is what it says: an alert that is over begins after its end if it fires again. One that is not repeated for a
minute is over, silenced or inhibited, or its sender is gone.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from tachograph.catalog.run import WEBHOOK_OUTCOMES
from tachograph.files.unreadable import UNREADABLE
from tachograph.servers.alertmanager_api import time_of
from tachograph.supervise.alerts import MOST_ALERTS, AlertsOfRun, FiredAlert, counts, fired_alert
from tachograph.supervise.asked_beside import KNOWN_SECONDS
from tachograph.supervise.run_seen import AlertSeen, RunSeen

VERSION = "4"
"""Of the messages that are understood, which is Alertmanager's since 0.5."""

OTHER, REPEATED, TAKEN, LATE, MALFORMED, FORGED, TOO_MANY = WEBHOOK_OUTCOMES
"""What becomes of a message: the last one of what becomes of its alerts."""
REFUSED = {
    LATE: "what it says is older than what is known",
    MALFORMED: "it is no message of Alertmanager's, version 4",
    FORGED: "it lacks the secret, or a trusted certificate",
    TOO_MANY: f"more than {MOST_ALERTS} alerts of the run, or too many connections at once",
}
"""Why a message, or an alert of it, changes nothing."""

MOST_LABELS_BYTES = 4096
MOST_ENDED = 256
"""Of alerts that are over, whose ends are remembered one by one; of earlier ones the last end is."""

LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class PushedAlert:
    """An alert of a message, by a digest of its labels; `ends` is None while it fires."""

    key: bytes
    run: str
    alert: FiredAlert
    ends: datetime | None


@dataclass
class _Known:
    said: PushedAlert
    heard: float


class PushedAlerts(AlertsOfRun):
    """The last word on each alert of a run, under any of its names, and how many messages came of which kind.

    Messages are taken by any thread. `clock` is monotonic.
    """

    def __init__(
        self, runs: Collection[str], say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(say)
        self._runs, self._clock = frozenset(runs), clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._firing: dict[bytes, _Known] = {}
        self._ended: dict[bytes, datetime] = {}
        self._ended_before = LONG_AGO
        self._heard = self._overrun = float("-inf")

    def counted(self) -> Mapping[str, int]:
        """Return how many messages came, by what became of them."""
        with self._lock:
            return dict(self._counts)

    def count(self, outcome: str, sender: str) -> None:
        """Count a message, or a connection without one; say it if it is the first of its kind that is refused."""
        with self._lock:
            self._counts[outcome] += 1
            is_first = self._counts[outcome] == 1
        if is_first and outcome in REFUSED:
            self._say(
                f"a webhook from {sender} is refused: {REFUSED[outcome]}. Further ones are counted, but not reported"
            )

    def take(self, body: bytes) -> str:
        """Take a message of a sender that may send it, and return what became of it."""
        try:
            alerts = read_message(json.loads(body), self._runs)
        except UNREADABLE:
            return MALFORMED
        with self._lock:
            self._heard = self._clock()
            outcomes = [self._note(one) for one in alerts]
        return max(outcomes, key=WEBHOOK_OUTCOMES.index, default=OTHER)

    def of(self, seen: RunSeen, wait: bool = False) -> tuple[AlertSeen, ...] | None:
        """Return the alerts of a run that were said to fire within the last minute, None if none was and nothing else.

        There is no answer of now to `wait` for.
        """
        with self._lock:
            since = self._clock() - KNOWN_SECONDS
            if self._heard < since or self._overrun >= since:
                return None
            fresh = [one.said for one in self._firing.values() if one.heard >= since and one.said.run == seen.name]
        found = (self.about(one.alert, seen) for one in fresh)
        return tuple(alert for alert in found if alert is not None)

    def _note(self, said: PushedAlert) -> str:
        """Note an alert, and return what became of it."""
        known, ended = self._firing.get(said.key), self._ended.get(said.key, self._ended_before)
        if said.ends is not None:
            if known is not None and said.ends < known.said.alert.starts:
                return LATE
            if said.ends <= ended:
                return REPEATED
            self._firing.pop(said.key, None)
            self._end(said.key, said.ends)
            return TAKEN
        if said.alert.starts <= ended:
            return LATE
        if known is None:
            old = self._heard - KNOWN_SECONDS
            self._firing = {key: one for key, one in self._firing.items() if one.heard >= old}
            if len(self._firing) >= MOST_ALERTS:
                self._overrun = self._heard
                return TOO_MANY
        self._firing[said.key] = _Known(said, self._heard)
        return TAKEN if known is None else REPEATED

    def _end(self, key: bytes, ends: datetime) -> None:
        self._ended[key] = ends
        if len(self._ended) > MOST_ENDED:
            first = min(self._ended, key=self._ended.__getitem__)
            self._ended_before = max(self._ended_before, self._ended.pop(first))


def read_message(said: Mapping[str, Any], runs: Collection[str]) -> Sequence[PushedAlert]:
    """Return the alerts of a message that are about these runs and count; raise one of UNREADABLE."""
    if said["version"] != VERSION or said.get("truncatedAlerts"):
        raise ValueError("another version, or not the whole message: max_alerts must be 0")
    return [_pushed(one) for one in said["alerts"] if counts(_labels(one), runs)]


def _labels(said: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels of an alert; raise one of UNREADABLE if it has another form."""
    labels: Mapping[str, str] = said["labels"]
    if not all(isinstance(each, str) for pair in labels.items() for each in pair) or "alertname" not in labels:
        raise TypeError("labels are texts")
    if said["status"] not in ("firing", "resolved"):
        raise ValueError("it fires, or it is resolved")
    return labels


def _pushed(said: Mapping[str, Any]) -> PushedAlert:
    labels = said["labels"]
    text = json.dumps(labels, sort_keys=True).encode()
    if len(text) > MOST_LABELS_BYTES:
        raise ValueError("labels are longer than any of ours")
    ends = time_of(said["endsAt"]) if said["status"] == "resolved" else None
    return PushedAlert(hashlib.sha256(text).digest(), labels["run"], fired_alert(said), ends)
