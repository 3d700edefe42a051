"""The recent ordinary steps of a rank, from what its frames count: how long they are, their waits and own time.

A window counted in steps belongs to the rank: it holds for steps of 5 ms and of 300 s, and however rarely its figures
are scraped. A rank that counts its ordinary steps itself is taken at its word; of one that sends plain counters only,
they are told from the others here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tachograph import diagnosis
from tachograph.catalog import index as catalog
from tachograph.catalog.rank import GENERATION, OWN_PHASES, PAUSE_SHARE, RECENT_SECONDS, RECENT_STEPS
from tachograph.node.ranks.series import RankSeries

GRACE_STEPS = 2
"""Usual steps beyond the window's length after which its figures are those of a time that is over."""

CLOCKS_APART_SECONDS = 2.0
"""Where the exporter's clock and the rank's differ by more over some steps, one was set or the exporter did not run."""

WORK = {"steps": catalog.TRAIN_STEPS.key, **catalog.WORK}
"""What steps are worth -> wire key of the counter."""

_STEPS = catalog.TRAIN_STEPS.key
_TAGGED = catalog.TRAIN_TAGGED_STEPS.key
_PHASES = catalog.TRAIN_PHASE_SECONDS.key
_WAIT = catalog.TRAIN_COLLECTIVE_WAIT.key
_ORDINARY_STEPS = catalog.TRAIN_ORDINARY_STEPS.key
_ORDINARY_SECONDS = catalog.TRAIN_ORDINARY_SECONDS.key
_ORDINARY_WAIT = catalog.TRAIN_ORDINARY_WAIT.key
_ORDINARY_PHASES = catalog.TRAIN_ORDINARY_PHASES.key
_RECENT_STEP = catalog.TRAIN_RECENT_STEP.key
_RECENT_STEPS = catalog.TRAIN_RECENT_STEPS.key
_RECENT_PHASE = catalog.TRAIN_RECENT_PHASE.key
_RECENT_WAIT = catalog.TRAIN_RECENT_WAIT.key


class Ordinary(NamedTuple):
    """All ordinary steps of a process up to `ended`: how many, their seconds, waits, and own seconds by phase.

    `wait` is None where no wait is measured: 0 would make the rank the one that waits least. `work` is what all steps
    were worth by then, ordinary or not.
    """

    ended: float
    steps: float
    seconds: float
    wait: float | None
    own: Mapping[str, float]
    work: Mapping[str, float] = MappingProxyType({})


NONE_YET = Ordinary(-math.inf, 0.0, 0.0, None, {})


class RecentSteps:
    """The window over one process: takes what each frame counts, and puts the figures beside its gauges."""

    __slots__ = (
        "_heard", "_holds_until", "_is_joined", "_lengths", "_plain", "_recent", "_window", "rates", "stood_still",
    )  # fmt: skip

    def __init__(self) -> None:
        self._window: deque[Ordinary] = deque([NONE_YET])
        self._lengths: deque[Sequence[tuple[float, float]]] = deque()
        """The lengths of the steps between two of the window, and how many are of each."""
        self._heard = -math.inf
        self._plain = PlainSteps()
        self._recent: dict[str, dict[str, float]] = {}
        self.rates: dict[str, float] = {}
        """What a second of ordinary steps is worth, by unit: of their mean, without those that stood still."""
        self.stood_still = False
        """Whether one of the steps took so much longer than usual that a mean of the others is lost in it."""
        self._holds_until = -math.inf
        self._is_joined = False
        """Whether an earlier exporter saw the process begin: its steps so far say what is usual, but nobody is late by
        what he waited then."""

    def take(self, series: RankSeries, now: float, ended: float | None, told: float | None = None) -> None:
        """Read the counters of a frame heard at `now`, whose last step ended at `ended`, and add its figures.

        Both are by the exporter's monotonic clock; `told` is the Unix time that the rank has for the latter.

        What the rank says itself stands: figures of a client that has a window of its own, or a wait measured in
        another way.
        """
        is_counted = _ORDINARY_STEPS in series.counters
        counted = _counted(series, ended) if is_counted else self._plain.take(series, ended, told)
        if counted is not None and counted.steps > self._window[-1].steps:
            work = {unit: done for unit, key in WORK.items() if (done := series.total(key)) is not None}
            self._add(counted._replace(work=work), self._heard - self._window[-1].ended)
        self._heard = now
        if now <= self._holds_until and _RECENT_STEP not in series.gauges:
            series.gauges = {**self._recent, **series.gauges}

    @property
    def step_seconds(self) -> float | None:
        """The usual step of the last window, also once its figures hold no more."""
        return self._recent.get(_RECENT_STEP, {}).get("")

    def _add(self, counted: Ordinary, stood: float) -> None:
        """Add what was counted since the last of the window; for `stood` seconds after that none of its steps ended."""
        if self._window[-1] is NONE_YET:
            self._is_joined = counted.seconds > RECENT_SECONDS and counted.steps > RECENT_STEPS
        window, made = self._window, counted.steps - self._window[-1].steps
        self._lengths.append(_lengths(counted.seconds - window[-1].seconds, made, stood, self.step_seconds))
        window.append(counted)
        while window[1].ended <= counted.ended - RECENT_SECONDS and counted.steps - window[1].steps >= RECENT_STEPS:
            window.popleft()
            self._lengths.popleft()
        first, steps = window[0], counted.steps - window[0].steps
        if steps < RECENT_STEPS:
            return
        lengths = sorted(length for each in self._lengths for length in each)
        usual = _median_step(lengths)
        self._look_at(lengths, usual, first, counted)
        own: dict[str, float] = {}
        for phase, seconds in counted.own.items():
            if (spent := seconds - first.own.get(phase, 0.0)) > 0:
                own[phase] = spent / steps
        self._recent = {_RECENT_STEP: {"": usual}, _RECENT_STEPS: {"": steps}, _RECENT_PHASE: own}
        if counted.wait is not None and not (self._is_joined and first is NONE_YET):
            self._recent[_RECENT_WAIT] = {"": max(0.0, counted.wait - (first.wait or 0.0)) / steps}
        self._holds_until = counted.ended + max(RECENT_SECONDS, RECENT_STEPS * usual) + GRACE_STEPS * usual

    def _look_at(self, lengths: Sequence[tuple[float, float]], usual: float, first: Ordinary, last: Ordinary) -> None:
        """Work out the rates, steps per second times what a step is worth, and whether one of the steps stood still."""
        seconds = completed = 0.0
        self.stood_still = False
        for length, steps in lengths:
            if (length - usual) * steps > diagnosis.STALL_SECONDS:
                self.stood_still = True
            if length <= usual + diagnosis.LONG_STEP_SECONDS:
                seconds += length * steps
                completed += steps
        self.rates = {}
        made = last.work.get("steps", 0.0) - first.work.get("steps", 0.0)
        if seconds <= 0 or made <= 0:
            return
        for unit, done in last.work.items():
            if 0 < (worth := (done - first.work.get(unit, 0.0)) / made) < math.inf:
                self.rates[unit] = worth * completed / seconds


class PlainSteps:
    """Tells ordinary steps from the others where the rank does not: between two frames with an end of a step each.

    Left out is what a tag, an evaluation or a pause lies in, and everything up to the first end, which compiles and
    connects.
    """

    __slots__ = ("_before", "_ordinary")

    def __init__(self) -> None:
        self._before: PlainCounts | None = None
        self._ordinary = NONE_YET

    def take(self, series: RankSeries, ended: float | None, told: float | None) -> Ordinary | None:
        """Return all ordinary steps so far; None before the rank counts steps that end."""
        steps, before = series.total(_STEPS), self._before
        if ended is None or not steps:
            return None
        if before is not None and steps <= before.steps:
            return self._ordinary
        waits, phases = series.total(_WAIT), series.counters.get(_PHASES, {})
        wait = waits if waits is not None else phases.get("collective") or None
        now = PlainCounts(ended, told, steps, series.total(_TAGGED) or 0.0, wait, dict(phases))
        self._before = now
        if before is not None and now.ended > before.ended and now.is_ordinary(before):
            self._ordinary = now.added_to(self._ordinary, before)
        return self._ordinary


class PlainCounts(NamedTuple):
    """The plain counters of a rank at the end of a step, by our clock and by its own."""

    ended: float
    told: float | None
    steps: float
    tagged: float
    wait: float | None
    phases: Mapping[str, float]

    def since(self, before: PlainCounts, phase: str) -> float:
        """Return the seconds in a phase since an earlier end."""
        return self.phases.get(phase, 0.0) - before.phases.get(phase, 0.0)

    def is_ordinary(self, before: PlainCounts) -> bool:
        """Return whether all steps since an earlier end were ordinary."""
        paused = self.since(before, "checkpoint") + self.since(before, "init")
        took = self.ended - before.ended
        by_rank = took if self.told is None or before.told is None else self.told - before.told
        if abs(took - by_rank) > CLOCKS_APART_SECONDS:
            return False
        short = paused <= PAUSE_SHARE * took
        return short and self.tagged == before.tagged and self.since(before, "eval") <= 0

    def added_to(self, ordinary: Ordinary, before: PlainCounts) -> Ordinary:
        """Return the ordinary steps with those since an earlier end."""
        own = {phase: self.since(before, phase) for phase in OWN_PHASES if phase in self.phases}
        wait = None if self.wait is None else self.wait - (before.wait or 0.0)
        if wait is not None and "backward" in own:  # what was not marked as a collective lies in backward
            own["backward"] -= max(0.0, wait - self.since(before, "collective"))
        return Ordinary(
            self.ended,
            ordinary.steps + self.steps - before.steps,
            ordinary.seconds + self.ended - before.ended - sum(self.since(before, phase) for phase in GENERATION),
            None if wait is None else (ordinary.wait or 0.0) + wait,
            {phase: ordinary.own.get(phase, 0.0) + seconds for phase, seconds in own.items()},
        )


def _lengths(seconds: float, made: float, stood: float, usual: float | None) -> Sequence[tuple[float, float]]:
    """Return the lengths of steps that took so many seconds together, and how many are of each.

    All are their mean, unless nothing ended for the first `stood` seconds of them: that is in the first one alone, and
    the others are no longer than usual, because some of the rest is the end of that.
    """
    if made <= 1 or not diagnosis.STALL_SECONDS < stood <= seconds:
        return [(seconds / made, made)]
    mean = (seconds - stood) / made
    other = mean if usual is None else min(mean, usual)
    return [(seconds - (made - 1) * other, 1.0), (other, made - 1)]


def _median_step(lengths: Sequence[tuple[float, float]]) -> float:
    """Return the length that half of the steps have at most."""
    all_steps = 0.0
    for _, steps in lengths:
        all_steps += steps
    shorter = 0.0
    for place, (length, steps) in enumerate(lengths):
        shorter += steps
        if shorter > all_steps / 2:
            return length
        if shorter == all_steps / 2:
            return (length + lengths[min(place + 1, len(lengths) - 1)][0]) / 2
    return lengths[-1][0]


def _counted(series: RankSeries, ended: float | None) -> Ordinary | None:
    """Return the ordinary steps as the rank itself counts them."""
    if ended is None:
        return None
    steps, seconds = series.total(_ORDINARY_STEPS) or 0.0, series.total(_ORDINARY_SECONDS) or 0.0
    return Ordinary(
        ended, steps, seconds, series.total(_ORDINARY_WAIT), dict(series.counters.get(_ORDINARY_PHASES, {}))
    )
