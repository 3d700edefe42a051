"""The ordinary steps of the last 20 s: how long they are, how much of that is waiting, and where the rest goes.

A window counted in steps belongs to the rank: it holds for steps of 5 ms and of 300 s, and however rarely its figures
are scraped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

from tachograph.client.core.sorted_window import median
from tachograph.client.core.steps import StepRecord
from tachograph.client.signals.ordinary_steps import LEAST_STEPS, OWN_PHASES, WINDOW_SECONDS, OrdinarySteps, StepCost
from tachograph.client.signals.wait_by_lengths import WaitByLengths

GRACE_STEPS = 2
"""Usual steps beyond the window's length after which its figures are those of a time that is over."""

SLICE_SECONDS = 0.1
"""Shorter steps share a slice of the window, which so has 202 slices at most."""

SAMPLED = 5
"""Steps of a slice whose lengths are kept for the median: all, if they take 20 ms or more, and 1,010 in the window at
most. Of five in a row no more than two are long where every third step is."""


class _Slice:
    """Steps one after another, as many as it takes to fill `SLICE_SECONDS`: their sums."""

    __slots__ = ("_began", "ended", "lengths", "own", "steps", "wait")

    def __init__(self, step: StepCost) -> None:
        self._began = step.ended - step.seconds
        self.ended = step.ended
        self.steps = 1
        self.wait = step.wait
        self.own = step.own
        self.lengths = [step.seconds]

    @property
    def full(self) -> bool:
        return self.ended - self._began >= SLICE_SECONDS

    def add(self, step: StepCost) -> None:
        self.ended = step.ended
        self.steps += 1
        self.wait += step.wait
        self.own = [a + b for a, b in zip(self.own, step.own, strict=True)]
        if len(self.lengths) < SAMPLED:
            self.lengths.append(step.seconds)


class RecentSteps:
    """The usual step, and the mean wait and own time by phase of ordinary steps; a step observer and a metric source.

    `clock` is the one that steps are timed with. `lengths` have the wait where nothing measures it.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter, lengths: WaitByLengths | None = None) -> None:
        self._clock = clock
        self._lengths = lengths or WaitByLengths(lambda: False)
        self._ordinary = OrdinarySteps()
        self._slices: deque[_Slice] = deque()
        self._steps = 0
        self._waits_known = False
        self._figures: dict[str, object] = {}
        self._holds_until = 0.0
        self._stale = False

    def observe(self, record: StepRecord) -> None:
        """Take a completed step."""
        step = self._ordinary.cost(record)
        if step is None:
            return
        self._lengths.step(step.ended - step.seconds, step.ended)
        slices = self._slices
        if not slices or slices[-1].full:
            slices.append(_Slice(step))
        else:
            slices[-1].add(step)
        self._steps += 1
        while slices[0].ended <= step.ended - WINDOW_SECONDS and self._steps - slices[0].steps >= LEAST_STEPS:
            self._steps -= slices.popleft().steps
        self._waits_known = record.wait > 0
        self._stale = True

    def metrics(self) -> dict[str, object]:
        """Return the figures; nothing before there are `LEAST_STEPS`, and once the last of them is too long ago."""
        if self._steps < LEAST_STEPS:
            return {}
        if self._stale:
            self._stale = False
            self._sum_up()
        if self._clock() > self._holds_until:
            return {}
        if (wait := self._lengths.wait()) is not None:
            return {**self._figures, "recent_wait_seconds": wait}
        return self._figures

    def _sum_up(self) -> None:
        slices, steps = self._slices, self._steps
        usual = median(sorted([length for each in slices for length in each.lengths]))
        own = map(sum, zip(*[each.own for each in slices], strict=True))
        self._figures = {
            "recent_steps": steps,
            "recent_step_seconds": usual,
            "recent_phase_seconds": {
                name: seconds / steps for name, seconds in zip(OWN_PHASES, own, strict=True) if seconds > 0
            },
        }
        if self._waits_known and not self._lengths.chosen:
            self._figures["recent_wait_seconds"] = max(0.0, sum([each.wait for each in slices]) / steps)
        length = max(WINDOW_SECONDS, LEAST_STEPS * usual)
        self._holds_until = slices[-1].ended + length + GRACE_STEPS * usual
