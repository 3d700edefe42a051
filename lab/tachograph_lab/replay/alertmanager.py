"""A model of Alertmanager: which firing alerts become which notifications, to whom, and when.

Routing, grouping with its waits, inhibition, time intervals and the notification log follow Alertmanager 0.25 to 0.33
(packages dispatch, inhibit and notify); a test compares the model with the real one. Silences, clusters and failing
receivers are not modelled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from tachograph_lab.replay.alertmanager_config import Configuration, Route
from tachograph_lab.replay.matchers import all_hold
from tachograph_lab.replay.verdict import FIRING, RESOLVED, ReceivedAlert

RESEND_SECONDS = 60.0
"""How often Prometheus repeats an alert."""
RESOLVED_RESENT_SECONDS = 900.0
"""How long Prometheus repeats that an alert is resolved."""
MAINTENANCE_SECONDS = 30.0
"""How often Alertmanager removes empty groups; until then a group keeps its timer."""

Fingerprint: TypeAlias = tuple[tuple[str, str], ...]
_Sent: TypeAlias = tuple[ReceivedAlert, Fingerprint, float]
"""A notification, the alert's fingerprint and when it started to fire."""
_Action: TypeAlias = Callable[[float], Iterable[_Sent]]


class Firing(NamedTuple):
    """An alert that fired from second `start` until `end` (None: to the last); annotations as of the start."""

    labels: Mapping[str, str]
    start: float
    end: float | None
    annotations: Mapping[str, str]

    @property
    def alert(self) -> str:
        """The alert's name."""
        return self.labels["alertname"]


@dataclass
class _Alert:
    fingerprint: Fingerprint
    firing: Firing
    over: float | None = None
    """When it was resolved, as far as Alertmanager knows."""

    def is_over(self) -> bool:
        return self.over is not None


@dataclass
class _Group:
    key: tuple[str, Fingerprint]
    route: Route
    alerts: dict[Fingerprint, _Alert] = field(default_factory=dict)
    flushed: bool = False
    timer: int = 0
    """Counts how often the timer was set: an earlier setting that is still queued is void."""


@dataclass
class _Entry:
    """The last notification of a group."""

    firing: frozenset[Fingerprint]
    over: frozenset[Fingerprint]
    time: float


_DELIVER, _FLUSH, _MAINTAIN = 0, 1, 2
"""At the same moment, alerts are delivered before groups are flushed."""


def active(firings: Sequence[Firing], configuration: Configuration, now: float) -> list[Firing]:
    """Return what Alertmanager answers at a second to whoever asks for active alerts: without what is inhibited."""
    firing = [one for one in firings if one.start <= now and (one.end is None or now < one.end)]
    rules = configuration.inhibitions
    return [
        one for one in firing if not any(rule.holds(source.labels, one.labels) for rule in rules for source in firing)
    ]


class AlertmanagerModel:
    """One Alertmanager from its start at second 0, which is the Unix time `epoch` for its time intervals."""

    def __init__(self, configuration: Configuration, epoch: float = 0.0) -> None:
        self._configuration = configuration
        self._epoch = epoch
        self._alerts: dict[Fingerprint, _Alert] = {}
        self._groups: dict[tuple[str, Fingerprint], _Group] = {}
        self._log: dict[tuple[str, Fingerprint], _Entry] = {}
        self._sources: list[dict[tuple[str, ...], dict[Fingerprint, _Alert]]] = [{} for _ in configuration.inhibitions]
        self._due: list[tuple[float, int, int, _Action]] = []
        self._number = 0

    def notifications(self, firings: Iterable[Firing], until: float) -> list[ReceivedAlert]:
        """Return the notifications up to second `until`: each alert once as firing, once as resolved per receiver."""
        for firing in firings:
            self._schedule(firing.start, _DELIVER, partial(self._deliver, firing, False))
            if firing.end is not None:
                again = firing.end
                while again <= min(until, firing.end + RESOLVED_RESENT_SECONDS):
                    self._schedule(again, _DELIVER, partial(self._deliver, firing, True))
                    again += RESEND_SECONDS
        self._schedule(MAINTENANCE_SECONDS, _MAINTAIN, self._maintain)
        return list(_once(self._run(until)))

    def _schedule(self, time: float, order: int, action: _Action) -> None:
        self._number += 1
        heapq.heappush(self._due, (time, order, self._number, action))

    def _run(self, until: float) -> Iterator[_Sent]:
        while self._due and self._due[0][0] <= until:
            now, _, _, action = heapq.heappop(self._due)
            yield from action(now)

    def _maintain(self, now: float) -> Iterable[_Sent]:
        """Remove empty groups."""
        self._groups = {key: group for key, group in self._groups.items() if group.alerts}
        self._schedule(now + MAINTENANCE_SECONDS, _MAINTAIN, self._maintain)
        return ()

    def _deliver(self, firing: Firing, over: bool, now: float) -> Iterable[_Sent]:
        """Accept an alert from Prometheus, firing or resolved."""
        fingerprint = tuple(sorted(firing.labels.items()))
        known = self._alerts.get(fingerprint)
        if over and known is not None and known.firing is not firing:
            return ()  # it fires again: Prometheus sends nothing more about the earlier time
        alert = _Alert(fingerprint, firing, firing.end if over else None)
        self._alerts[fingerprint] = alert
        for rule, sources in zip(self._configuration.inhibitions, self._sources, strict=True):
            if all_hold(rule.source, firing.labels):
                sources.setdefault(rule.equal_values(firing.labels), {})[fingerprint] = alert
        for route in self._configuration.route.of(firing.labels):
            self._group(route, alert, now)
        return ()

    def _group(self, route: Route, alert: _Alert, now: float) -> None:
        own = tuple(pair for pair in alert.fingerprint if route.group_by is None or pair[0] in route.group_by)
        key = (route.key, own)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(key, route)
            self._set_timer(group, now + route.group_wait)
        group.alerts[alert.fingerprint] = alert
        # An alert that should have been sent by now need not wait once more.
        if not group.flushed and alert.firing.start + route.group_wait < now:
            self._set_timer(group, now)

    def _set_timer(self, group: _Group, time: float) -> None:
        group.timer += 1
        self._schedule(time, _FLUSH, partial(self._flush, group, group.timer))

    def _flush(self, group: _Group, timer: int, now: float) -> Iterator[_Sent]:
        if group.timer != timer or self._groups.get(group.key) is not group:
            return
        group.flushed = True
        self._set_timer(group, now + group.route.group_interval)
        if not group.alerts:
            return
        alerts = [group.alerts[fingerprint] for fingerprint in sorted(group.alerts)]
        audible = [] if self._muted(group.route, now) else [one for one in alerts if not self._inhibited(one)]
        if audible:
            yield from self._notify(group, audible, now)
        for one in alerts:
            if one.is_over() and group.alerts.get(one.fingerprint) is one:
                del group.alerts[one.fingerprint]

    def _muted(self, route: Route, now: float) -> bool:
        moment = self._epoch + now

        def within(names: Sequence[str]) -> bool:
            return any(one.holds(moment) for name in names for one in self._configuration.time_intervals[name])

        return within(route.muted) or bool(route.active and not within(route.active))

    def _inhibited(self, alert: _Alert) -> bool:
        labels = alert.firing.labels
        for rule, sources in zip(self._configuration.inhibitions, self._sources, strict=True):
            of_these = sources.get(rule.equal_values(labels), {}).values()
            if any(not source.is_over() and rule.holds(source.firing.labels, labels) for source in of_these):
                return True
        return False

    def _notify(self, group: _Group, alerts: Sequence[_Alert], now: float) -> Iterator[_Sent]:
        sends_resolved = self._configuration.receivers[group.route.receiver]
        firing = frozenset(one.fingerprint for one in alerts if not one.is_over())
        over = frozenset(one.fingerprint for one in alerts if one.is_over())
        before = self._log.get(group.key)
        if not _is_news(before, firing, over, bool(sends_resolved), now - group.route.repeat_interval):
            return
        self._log[group.key] = _Entry(firing, over, now)
        for one in alerts:
            if not one.is_over() or sends_resolved:
                status = RESOLVED if one.is_over() else FIRING
                received = ReceivedAlert(now, group.route.receiver, status, one.firing.labels, one.firing.annotations)
                yield received, one.fingerprint, one.firing.start


def _is_news(
    before: _Entry | None,
    firing: frozenset[Fingerprint],
    over: frozenset[Fingerprint],
    sends_resolved: bool,
    since: float,
) -> bool:
    """Return whether a group has changed since its last notification, or is due to be repeated."""
    if before is None:
        return bool(firing)
    if not firing <= before.firing:
        return True
    if not firing:
        return bool(before.firing)
    return (sends_resolved and not over <= before.over) or before.time < since


def _once(sent: Iterable[_Sent]) -> Iterator[ReceivedAlert]:
    """Yield each alert once as firing and once as resolved per receiver, as the pager keeps them."""
    known: set[tuple[str, str, Fingerprint, float]] = set()
    for received, fingerprint, start in sent:
        key = (received.receiver, received.status, fingerprint, start)
        if key not in known:
            known.add(key)
            yield received
