"""Events before failures: how many times as often runs fail soon after one as else, and when they fail."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tachograph.history.chance import gathered, rate_ratio
from tachograph.history.recorded import EVENTS, STEP, RunPast, merged

HANDFUL = 5
"""Of fewer failures or events no ratio is named."""
CONFIDENCE = 1 - 0.05 / len(EVENTS)
"""Of each interval, so that all of them hold with 95 %."""
RUNNING = 600.0
"""Seconds before a failure within which the run must have run, or the failure is of something else."""
BURST = 1200.0
"""Failures of a run that follow each other within so many seconds, as in a loop of crashes, have one cause: the first
counts."""
TOGETHER = 300.0
"""Seconds within which runs that fail have one cause, as when the storage that they share goes away."""
PERIODS = (("hour", 3600.0), ("day", 86_400.0), ("week", 7 * 86_400.0))
SEEN = 3
"""Periods that a run must have run for, or nothing is said of them."""
REGULAR = 0.2
"""Of times until a failure, the deviation over the mean; by chance it is about 1."""


@dataclass(frozen=True)
class Precedence:
    """How failures lie to the events of one kind. `verdict`: precedes, fewer, no difference, too few, or always.

    `within` seconds after an event is soon; `after` of the failures came soon after one, `expected` did by chance.
    `always`: nearly all of the time is soon after one, or none is, and nothing can be compared.
    """

    event: str
    events: int
    within: float
    failures: int
    after: int
    expected: float
    verdict: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Periodicity:
    """When failures come: after a time since the start (`uptime`), or at a moment of an hour, day or week (UTC)."""

    period: str
    at: float
    spread: float | None
    chance: float | None
    failures: int


def precedences(runs: Mapping[str, RunPast], after: float) -> list[Precedence]:
    """Return for each kind of event how failures lie to it; soon is `after` seconds, less where events are dense."""
    return [_precedence(kind, runs, after) for kind in EVENTS]


def _precedence(kind: str, runs: Mapping[str, RunPast], longest: float) -> Precedence:
    times = {name: past.events[kind] for name, past in runs.items()}
    events = sum(map(len, times.values()))
    gaps = [after - before for of_run in times.values() for before, after in pairwise(of_run)]
    within = min(longest, max(2.0 * STEP, statistics.median(gaps) / 2)) if gaps else longest
    share_of = {name: _share_soon(past.minutes, times[name], within) for name, past in runs.items()}
    causes = _causes({name: past for name, past in runs.items() if 0 < share_of[name] < 1})
    shares = [share_of[name] for name, _ in causes]
    count = sum(_is_soon(at, times[name], within) for name, at in causes)
    found = Precedence(kind, events, within, len(shares), count, sum(shares), "too few")
    if events >= HANDFUL and len(_causes(runs)) >= HANDFUL > len(shares):
        return _with(found, "always")
    if min(events, len(shares)) < HANDFUL or max(count, found.expected) < HANDFUL:
        return found
    ratio, low, high = rate_ratio(shares, count, CONFIDENCE)
    return _with(found, "precedes" if low > 1 else "fewer" if high < 1 else "no difference", ratio, low, high)


def _with(found: Precedence, verdict: str, *interval: float) -> Precedence:
    ratio, low, high = interval or (None, None, None)
    return Precedence(
        found.event, found.events, found.within, found.failures, found.after, found.expected, verdict, ratio, low, high
    )


def failures(runs: Mapping[str, RunPast]) -> int:
    """Return how many failures there were of runs that ran."""
    return sum(len(_failures(past)) for past in runs.values())


def _failures(past: RunPast) -> list[float]:
    """Return the failures before which the run ran."""
    return [one.at for one in past.failures if _last(past.minutes, one.at) >= one.at - RUNNING]


def _bursts(past: RunPast) -> list[float]:
    """Return the first failure of each burst before which the run ran."""
    return merged(_failures(past), BURST)


def _causes(runs: Mapping[str, RunPast]) -> list[tuple[str, float]]:
    """Return the first failure of each burst with its run, and of runs that fail together the first one's."""
    found: list[tuple[str, float]] = []
    for at, name in sorted((at, name) for name, past in runs.items() for at in _bursts(past)):
        if not found or at - found[-1][1] > TOGETHER:
            found.append((name, at))
    return found


def _last(times: Sequence[float], at: float) -> float:
    """Return the last of the sorted times up to a moment."""
    place = bisect_right(times, at)
    return times[place - 1] if place else float("-inf")


def _is_soon(at: float, events: Sequence[float], within: float) -> bool:
    return at - _last(events, at) <= within


def _share_soon(minutes: Sequence[float], events: Sequence[float], within: float) -> float:
    """Return the share of the minutes that are soon after an event."""
    soon, end = 0, float("-inf")
    for at in events:
        soon += bisect_right(minutes, at + within) - bisect_left(minutes, max(at, end))
        end = at + within + 1e-6
    return soon / len(minutes) if minutes else 0.0


def periodicities(runs: Mapping[str, RunPast]) -> list[Periodicity]:
    """Return what is regular about the times of failures; nothing of fewer than a handful."""
    causes = _causes(runs)
    times = [at for _, at in causes]
    uptimes = [at - begun for name, at in causes if (begun := _last(runs[name].starts, at)) > 0]
    found = []
    if len(uptimes) >= HANDFUL:
        mean, spread = statistics.fmean(uptimes), statistics.stdev(uptimes)
        if spread < REGULAR * mean and mean > 10 * STEP:
            found.append(Periodicity("uptime", mean, spread, None, len(uptimes)))
    long = max((past.minutes[-1] - past.minutes[0] for past in runs.values() if past.minutes), default=0.0)
    for name, period in PERIODS:
        apart = merged(times, period / 2)
        if len(apart) >= HANDFUL and long >= SEEN * period:
            at, chance = gathered(apart, period)
            if chance < 0.05 / len(PERIODS):
                found.append(Periodicity(name, at, None, chance, len(apart)))
    return found
