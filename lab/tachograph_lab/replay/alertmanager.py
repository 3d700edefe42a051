"""A model of Alertmanager: which firing alerts become which notifications, to whom, and when.

Routing, grouping with its waits, inhibition, time intervals and the memory of what was told follow Alertmanager 0.25
to 0.33 (packages dispatch, inhibit and notify); a test compares the model with the real one. Silences, clusters and
receivers that fail are not modelled.
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
"""How long Prometheus repeats that an alert is over."""
MAINTENANCE_SECONDS = 30.0
"""How often Alertmanager looks for groups that are empty; until then one keeps its rhythm."""

Fingerprint: TypeAlias = tuple[tuple[str, str], ...]
_Told: TypeAlias = tuple[ReceivedAlert, Fingerprint, float]
"""What is received, and of which alert since when."""
_Action: TypeAlias = Callable[[float], Iterable[_Told]]


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
    """When it was resolved, as far as Alertmanager has been told."""

    def is_over(self) -> bool:
        return self.over is not None


@dataclass
class _Group:
    key: tuple[str, Fingerprint]
    route: Route
    alerts: dict[Fingerprint, _Alert] = field(default_factory=dict)
    flushed: bool = False
    timer: int = 0
    """Counts the timer's settings: an older one that is still due is void."""


@dataclass
class _Entry:
    """What a group told last."""

    firing: frozenset[Fingerprint]
    over: frozenset[Fingerprint]
    time: float


_DELIVER, _FLUSH, _MAINTAIN = 0, 1, 2
"""At one moment, what Prometheus sends is there before a group is flushed."""


class AlertmanagerModel:
    """One Alertmanager from its start at second 0, which is Unix time `epoch` to its time intervals."""

    def __init__(self, configuration: Configuration, epoch: float = 0.0) -> None:
        self._configuration = configuration
        self._epoch = epoch
        self._alerts: dict[Fingerprint, _Alert] = {}
        self._groups: dict[tuple[str, Fingerprint], _Group] = {}
        self._told: dict[tuple[str, Fingerprint], _Entry] = {}
        self._sources: list[dict[tuple[str, ...], dict[Fingerprint, _Alert]]] = [{} for _ in configuration.inhibitions]
        self._due: list[tuple[float, int, int, _Action]] = []
        self._number = 0

    def notifications(self, firings: Iterable[Firing], until: float) -> list[ReceivedAlert]:
        """Return what every receiver is told up to second `until`: each alert once as firing, once as resolved."""
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

    def _run(self, until: float) -> Iterator[_Told]:
        while self._due and self._due[0][0] <= until:
            now, _, _, action = heapq.heappop(self._due)
            yield from action(now)

    def _maintain(self, now: float) -> Iterable[_Told]:
        """Forget the groups that are empty."""
        self._groups = {key: group for key, group in self._groups.items() if group.alerts}
        self._schedule(now + MAINTENANCE_SECONDS, _MAINTAIN, self._maintain)
        return ()

    def _deliver(self, firing: Firing, over: bool, now: float) -> Iterable[_Told]:
        """Take what Prometheus sends: an alert that fires, or that is over."""
        fingerprint = tuple(sorted(firing.labels.items()))
        known = self._alerts.get(fingerprint)
        if over and known is not None and known.firing is not firing:
            return ()  # it fires again: Prometheus tells no more of the time before
        alert = _Alert(fingerprint, firing, firing.end if over else None)
        self._alerts[fingerprint] = alert
        for rule, sources in zip(self._configuration.inhibitions, self._sources, strict=True):
            if all_hold(rule.source, firing.labels):
                sources.setdefault(rule.place(firing.labels), {})[fingerprint] = alert
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
        # One that should have been told by now need not wait once more.
        if not group.flushed and alert.firing.start + route.group_wait < now:
            self._set_timer(group, now)

    def _set_timer(self, group: _Group, time: float) -> None:
        group.timer += 1
        self._schedule(time, _FLUSH, partial(self._flush, group, group.timer))

    def _flush(self, group: _Group, timer: int, now: float) -> Iterator[_Told]:
        if group.timer != timer or self._groups.get(group.key) is not group:
            return
        group.flushed = True
        self._set_timer(group, now + group.route.group_interval)
        if not group.alerts:
            return
        alerts = [group.alerts[fingerprint] for fingerprint in sorted(group.alerts)]
        heard = [] if self._muted(group.route, now) else [one for one in alerts if not self._inhibited(one)]
        if heard:
            yield from self._tell(group, heard, now)
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
            if not all_hold(rule.target, labels):
                continue
            # Of two alerts that each match both sides, neither inhibits the other.
            both_sides = all_hold(rule.source, labels)
            for source in sources.get(rule.place(labels), {}).values():
                if not source.is_over() and not (both_sides and all_hold(rule.target, source.firing.labels)):
                    return True
        return False

    def _tell(self, group: _Group, alerts: Sequence[_Alert], now: float) -> Iterator[_Told]:
        told_when_over = self._configuration.receivers[group.route.receiver]
        firing = frozenset(one.fingerprint for one in alerts if not one.is_over())
        over = frozenset(one.fingerprint for one in alerts if one.is_over())
        before = self._told.get(group.key)
        if not _is_news(before, firing, over, bool(told_when_over), now - group.route.repeat_interval):
            return
        self._told[group.key] = _Entry(firing, over, now)
        for one in alerts:
            if not one.is_over() or told_when_over:
                status = RESOLVED if one.is_over() else FIRING
                received = ReceivedAlert(now, group.route.receiver, status, one.firing.labels, one.firing.annotations)
                yield received, one.fingerprint, one.firing.start


def _is_news(
    before: _Entry | None,
    firing: frozenset[Fingerprint],
    over: frozenset[Fingerprint],
    told_when_over: bool,
    since: float,
) -> bool:
    """Return whether a group has more to tell than it told last, or is to be told again."""
    if before is None:
        return bool(firing)
    if not firing <= before.firing:
        return True
    if not firing:
        return bool(before.firing)
    return (told_when_over and not over <= before.over) or before.time < since


def _once(told: Iterable[_Told]) -> Iterator[ReceivedAlert]:
    """Yield each alert once as firing and once as resolved for each receiver, as the pager keeps them."""
    known: set[tuple[str, str, Fingerprint, float]] = set()
    for received, fingerprint, start in told:
        key = (received.receiver, received.status, fingerprint, start)
        if key not in known:
            known.add(key)
            yield received
