"""Compares the notifications received with those a scenario expects, for virtual and live replays alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tachograph.text.humanize import span
from tachograph_lab.scenario import Expected, Scenario, Tolerated

FIRING, RESOLVED = "firing", "resolved"

NOBODY = frozenset({"null", "watchdog"})
"""Receivers that notify no person."""

SAME_NOTIFICATION_SECONDS = 1.0
"""Alerts of a group that arrive this close together came in one notification: groups wait longer between two."""

_LINKS = ("runbook_url", "dashboard_url")


class ReceivedAlert(NamedTuple):
    """An alert of a notification, sent for the first time as firing or as resolved; `time` is in scenario seconds."""

    time: float
    receiver: str
    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def alert(self) -> str:
        """The alert's name."""
        return self.labels.get("alertname", "")

    @property
    def text(self) -> str:
        """Its annotations, except links."""
        return "\n".join(words for name, words in self.annotations.items() if name not in _LINKS)


@dataclass(frozen=True)
class ExpectationResult:
    """An expectation, the alert that met it, its delay, its limit, and what is wrong; empty if nothing is."""

    expected: Expected
    received: ReceivedAlert | None
    delay: float | None
    limit: float
    wrong: str


@dataclass(frozen=True)
class ReplayVerdict:
    """The result of a replay: `expectations` in order with what met them, and everything else that was received."""

    title: str
    expectations: tuple[ExpectationResult, ...]
    extra: tuple[ReceivedAlert, ...]
    tolerated: tuple[ReceivedAlert, ...]
    silent: tuple[ReceivedAlert, ...]
    resolved: tuple[ReceivedAlert, ...]
    errors: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything expected was received in time, and nothing else was sent to a person."""
        return not self.errors and not self.extra and not any(one.wrong for one in self.expectations)

    @property
    def lines(self) -> tuple[str, ...]:
        """The verdict in lines: one for each expectation and each notification received."""
        return tuple(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{'ok  ' if self.ok else 'FAIL'} {self.title}"
        for error in self.errors:
            yield f"  error     {error}"
        for one in self.expectations:
            what = f"{one.expected.receiver} {_described(one.expected.alert, one.expected.labels)}"
            limit = span(one.limit)
            if one.received is None:
                yield f"  MISSING   {what} within {limit}: {one.wrong}"
                continue
            took = f"after {span(one.delay)}, limit {limit}{one.wrong and ': ' + one.wrong}"
            yield f"  {'WRONG   ' if one.wrong else 'received'}  {what} {took}"
            yield f"            “{one.received.annotations.get('description', '')}”"
        for extra in self.extra:
            yield f"  EXTRA     {_when(extra)}"
            yield f"            “{extra.annotations.get('description', '')}”"
        for word, alerts in (("tolerated", self.tolerated), ("not sent ", self.silent), ("resolved ", self.resolved)):
            for alert in alerts:
                yield f"  {word} {_when(alert)}"
        if not (self.expectations or self.extra):
            yield "  nothing was expected, and nothing was sent to a person"


def judge(scenario: Scenario, received: Iterable[ReceivedAlert], errors: Sequence[str] = ()) -> ReplayVerdict:
    """Return the verdict on what was received.

    An expectation is met by the first alert with its receiver, name, labels (a subset) and texts that was sent after
    its fault, and by all such alerts of the same notification. Everything else – another alert, another rank in the
    same notification, a second notification for the same alert – is extra, unless the scenario tolerates it. One that
    does not resolve is not met if it was resolved.
    """
    alerts = sorted(received, key=lambda one: (one.time, one.receiver, one.alert, sorted(one.labels.items())))
    firing = [one for one in alerts if one.status == FIRING]
    claimed: set[int] = set()
    taken = [_claim(scenario, expected, firing, claimed) for expected in scenario.expect]
    for one, expected in zip(taken, scenario.expect, strict=True):
        if one is not None:
            claimed |= {i for i, other in enumerate(firing) if _together(one, other) and not _differs(expected, other)}
    rest = [one for i, one in enumerate(firing) if i not in claimed]
    silent = tuple(one for one in rest if one.receiver in NOBODY)
    ended = [one for one in alerts if one.status == RESOLVED]
    tolerated = tuple(one for one in rest if one not in silent and any(_tolerates(may, one) for may in scenario.may))
    extra = tuple(one for one in rest if one not in silent and one not in tolerated)
    return ReplayVerdict(
        title=scenario.title if scenario.incident is None else f"{scenario.incident}. {scenario.title}",
        expectations=tuple(
            _result(scenario, expected, one, rest, ended) for expected, one in zip(scenario.expect, taken, strict=True)
        ),
        extra=extra,
        tolerated=tolerated,
        silent=tuple(one for one in silent if one.receiver != "watchdog"),
        resolved=tuple(one for one in alerts if one.status == RESOLVED and one.receiver not in NOBODY),
        errors=tuple(errors),
    )


def _claim(
    scenario: Scenario, expected: Expected, firing: Sequence[ReceivedAlert], claimed: set[int]
) -> ReceivedAlert | None:
    since = scenario.began(expected)
    for i, one in enumerate(firing):
        if i not in claimed and one.time >= since and not _differs(expected, one):
            claimed.add(i)
            return one
    return None


def _together(one: ReceivedAlert, other: ReceivedAlert) -> bool:
    """Return whether two alerts came in one notification."""
    return (
        one.receiver == other.receiver
        and one.alert == other.alert
        and abs(one.time - other.time) < SAME_NOTIFICATION_SECONDS
    )


def _differs(expected: Expected, one: ReceivedAlert) -> str:
    """Return how a received alert differs from the expected one, empty if it does not."""
    if one.alert != expected.alert:
        return f"it is {one.alert}"
    if one.receiver != expected.receiver:
        return f"sent to {one.receiver}"
    for label, value in expected.labels.items():
        if one.labels.get(label) != value:
            return f"names {label} {one.labels.get(label) or 'none'}"
    text = one.text.casefold()
    missing = [part for part in expected.text if part.casefold() not in text]
    return f"does not contain {' and '.join(map(repr, missing))}" if missing else ""


def _tolerates(may: Tolerated, one: ReceivedAlert) -> bool:
    same = may.alert == one.alert and may.receiver == one.receiver
    return same and all(one.labels.get(label) == value for label, value in may.labels.items())


def _result(
    scenario: Scenario,
    expected: Expected,
    one: ReceivedAlert | None,
    rest: Iterable[ReceivedAlert],
    ended: Iterable[ReceivedAlert],
) -> ExpectationResult:
    since, limit = scenario.began(expected), scenario.limit(expected)
    if one is not None:
        delay = one.time - since
        wrong = []
        if delay > limit:
            wrong.append(f"late by {span(delay - limit)}")
        if delay < expected.not_before:
            wrong.append(f"early by {span(expected.not_before - delay)}")
        if not expected.resolves:
            same = (other for other in ended if (other.receiver, other.labels) == (one.receiver, one.labels))
            wrong += [f"resolved {span(other.time - one.time)} later" for other in same]
        return ExpectationResult(expected, one, delay, limit, "; ".join(wrong))
    near = [other for other in rest if other.alert == expected.alert]
    if not near:
        return ExpectationResult(expected, None, None, limit, "never received")
    reasons = dict.fromkeys(_differs(expected, other) or f"sent {span(since - other.time)} before" for other in near)
    return ExpectationResult(expected, None, None, limit, "received, but " + "; ".join(list(reasons)[:3]))


def _described(alert: str, labels: Mapping[str, str]) -> str:
    hidden = ("alertname", "severity", "component", "uuid")
    shown = {name: value for name, value in labels.items() if name not in hidden}
    return alert + (" {" + ", ".join(f"{name} {value}" for name, value in sorted(shown.items())) + "}" if shown else "")


def _when(one: ReceivedAlert) -> str:
    return f"{one.receiver} {_described(one.alert, one.labels)} at {span(one.time)}"
