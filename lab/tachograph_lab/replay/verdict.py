"""What a scenario expects against what was received, judged alike for a virtual and a live replay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tachograph_lab.scenario import Expected, Scenario, Tolerated

FIRING, RESOLVED = "firing", "resolved"

NOBODY = frozenset({"null", "watchdog"})
"""Receivers that tell no person of an incident."""

SAME_NOTIFICATION_SECONDS = 1.0
"""Alerts of one group that arrive this close together came in one notification: groups wait longer between two."""

_UNSPOKEN = ("runbook_url", "dashboard_url")


class ReceivedAlert(NamedTuple):
    """One alert of a notification, first told as firing or as resolved; `time` is in scenario seconds."""

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
        """What it says to a person, links left out."""
        return "\n".join(words for name, words in self.annotations.items() if name not in _UNSPOKEN)


@dataclass(frozen=True)
class ExpectationResult:
    """An expectation, what met it, how long after its fault, and what is wrong with that; empty if nothing is."""

    expected: Expected
    received: ReceivedAlert | None
    delay: float | None
    wrong: str


@dataclass(frozen=True)
class ReplayVerdict:
    """The outcome of a replay: `answers` to the expectations in order, and all that was received beside them."""

    title: str
    answers: tuple[ExpectationResult, ...]
    extra: tuple[ReceivedAlert, ...]
    tolerated: tuple[ReceivedAlert, ...]
    silent: tuple[ReceivedAlert, ...]
    resolved: tuple[ReceivedAlert, ...]
    errors: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all that was expected was received in time, and nothing else was sent to a person."""
        return not self.errors and not self.extra and not any(answer.wrong for answer in self.answers)

    @property
    def lines(self) -> tuple[str, ...]:
        """The verdict for a person to read, a line for each thing expected and each thing received."""
        return tuple(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{'ok  ' if self.ok else 'FAIL'} {self.title}"
        for error in self.errors:
            yield f"  error     {error}"
        for answer in self.answers:
            words = f"{answer.expected.receiver} {_described(answer.expected.alert, answer.expected.labels)}"
            if answer.received is None:
                yield f"  MISSING   {words} within {answer.expected.within:g} s: {answer.wrong}"
                continue
            took = f"after {answer.delay:.0f} s of {answer.expected.within:g}{answer.wrong and ': ' + answer.wrong}"
            yield f"  {'WRONG   ' if answer.wrong else 'received'}  {words} {took}"
            yield f"            “{answer.received.annotations.get('description', '')}”"
        for one in self.extra:
            yield f"  EXTRA     {_told(one)}"
            yield f"            “{one.annotations.get('description', '')}”"
        for word, ones in (("tolerated", self.tolerated), ("not sent ", self.silent), ("resolved ", self.resolved)):
            for one in ones:
                yield f"  {word} {_told(one)}"
        if not (self.answers or self.extra):
            yield "  nothing was expected, and nothing was sent to a person"


def judge(scenario: Scenario, received: Iterable[ReceivedAlert], errors: Sequence[str] = ()) -> ReplayVerdict:
    """Return the verdict on what was received.

    An expectation is met by the first alert of its receiver, name, labels (a subset) and words that was told after its
    fault, and by all such alerts of the same notification. What is told beside that – another alert, another rank in
    the same notification, a second notification for the same – is extra, unless the scenario tolerates it.
    """
    told = sorted(received, key=lambda one: (one.time, one.receiver, one.alert, sorted(one.labels.items())))
    firing = [one for one in told if one.status == FIRING]
    claimed: set[int] = set()
    taken = [_claim(scenario, expected, firing, claimed) for expected in scenario.expect]
    for one, expected in zip(taken, scenario.expect, strict=True):
        if one is not None:
            claimed |= {i for i, other in enumerate(firing) if _together(one, other) and not _differs(expected, other)}
    rest = [one for i, one in enumerate(firing) if i not in claimed]
    silent = tuple(one for one in rest if one.receiver in NOBODY)
    tolerated = tuple(one for one in rest if one not in silent and any(_tolerates(may, one) for may in scenario.may))
    extra = tuple(one for one in rest if one not in silent and one not in tolerated)
    return ReplayVerdict(
        title=scenario.title if scenario.incident is None else f"{scenario.incident}. {scenario.title}",
        answers=tuple(
            _answer(scenario, expected, one, rest) for expected, one in zip(scenario.expect, taken, strict=True)
        ),
        extra=extra,
        tolerated=tolerated,
        silent=tuple(one for one in silent if one.receiver != "watchdog"),
        resolved=tuple(one for one in told if one.status == RESOLVED and one.receiver not in NOBODY),
        errors=tuple(errors),
    )


def _claim(
    scenario: Scenario, expected: Expected, firing: Sequence[ReceivedAlert], claimed: set[int]
) -> ReceivedAlert | None:
    since = began(scenario, expected)
    for i, one in enumerate(firing):
        if i not in claimed and one.time >= since and not _differs(expected, one):
            claimed.add(i)
            return one
    return None


def began(scenario: Scenario, expected: Expected) -> float:
    """Return the scenario second from which an expectation's time counts: its fault's, or the start without faults."""
    return scenario.faults[expected.of - 1].at if scenario.faults else 0.0


def _together(one: ReceivedAlert, other: ReceivedAlert) -> bool:
    """Return whether two alerts came in one notification."""
    return (
        one.receiver == other.receiver
        and one.alert == other.alert
        and abs(one.time - other.time) < SAME_NOTIFICATION_SECONDS
    )


def _differs(expected: Expected, one: ReceivedAlert) -> str:
    """Return in what a received alert differs from the expected one, or an empty string."""
    if one.alert != expected.alert:
        return f"it is {one.alert}"
    if one.receiver != expected.receiver:
        return f"sent to {one.receiver}"
    for label, value in expected.labels.items():
        if one.labels.get(label) != value:
            return f"names {label} {one.labels.get(label) or 'none'}"
    spoken = one.text.casefold()
    missing = [words for words in expected.text if words.casefold() not in spoken]
    return f"does not say {' nor '.join(map(repr, missing))}" if missing else ""


def _tolerates(may: Tolerated, one: ReceivedAlert) -> bool:
    same = may.alert == one.alert and may.receiver == one.receiver
    return same and all(one.labels.get(label) == value for label, value in may.labels.items())


def _answer(
    scenario: Scenario, expected: Expected, one: ReceivedAlert | None, rest: Iterable[ReceivedAlert]
) -> ExpectationResult:
    since = began(scenario, expected)
    if one is not None:
        delay = one.time - since
        late = f"late by {delay - expected.within:.0f} s" if delay > expected.within else ""
        return ExpectationResult(expected, one, delay, late)
    near = [other for other in rest if other.alert == expected.alert]
    if not near:
        return ExpectationResult(expected, None, None, "never received")
    reasons = dict.fromkeys(_differs(expected, other) or f"told {since - other.time:.0f} s before" for other in near)
    return ExpectationResult(expected, None, None, "received, but " + "; ".join(list(reasons)[:3]))


def _described(alert: str, labels: Mapping[str, str]) -> str:
    shown = {name: value for name, value in labels.items() if name not in ("alertname", "severity", "uuid")}
    return alert + (" {" + ", ".join(f"{name} {value}" for name, value in sorted(shown.items())) + "}" if shown else "")


def _told(one: ReceivedAlert) -> str:
    return f"{one.receiver} {_described(one.alert, one.labels)} at {one.time:.0f} s"
