"""Is the loss still learning? Spikes by a robust score against its own recent past, and the first NaN.

Runs in the sender thread on what the training thread logged.

Method. Training loss falls, so a plain trailing median lies above the healthy values and hides a spike early on. What
is scored is the *rise*: the loss minus the median of the last 8 normal losses, in units of how rises normally spread
(scaled interquartile range of the last 128; a quarter of them may be odd without moving it). Spikes never enter that
past, so a shift cannot hide itself. Six standard deviations, the limit of OLMo-core's `SkipStepOptimizer`, are the
least; noise with heavy tails raises the limit to twice the highest score it normally has, and so does a short past.
docs/detectors.md has precision and recall beside three peers; `python bench/detectors.py` prints them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping

from tachograph.training_catalog import NONFINITE_SOURCES

WINDOW = 128
LEVEL_WINDOW = 8
LEVEL_MINIMUM = 4
SPIKE_SCORE = 6.0
HEALED_SCORE = 3.0
"""A spike ends below half its limit, so that noise around the limit does not restart the count."""

MIN_RISES = 4
SHORT_PAST = 5.0
"""The spread of few rises is a guess: the limit is raised by this over their number, × 2.25 with 4, × 1.04 with 128."""

TAIL_FACTOR = 2.0
MOST_SCORE = 10.0
TAIL_AT_FIRST: float = 4.0
TAIL_KEPT = 0.9995
"""A new baseline expects scores up to 4; what it has seen fades by half in 1,400 steps. The factor leaves room for the
rare score of a heavy tail: Student's t with five degrees of freedom takes the limit to 8 or 9, and at most to 10, while
normal noise leaves it near 6."""

TAIL_MIN_RISES = 20
"""Scores against fewer rises are too rough to learn a tail from."""

SPREAD_FLOOR = 0.02
"""Least spread, as a share of the level: a loss that hardly moves is not in alarm over a rise of less than 12 %."""

NEW_LEVEL_STEPS = 200
"""A spike that stays this long is the new normal: the past is forgotten and the baseline starts again from here."""

_NORMAL_IQR = 1.349  # interquartile range of the standard normal distribution


class LossWatch:
    """Scores each loss against the ones before it.

    `score` is None until there are enough of them and after a loss that is not finite; `spike_steps` is 0 while the
    loss is normal, 1 on the first step of a spike.
    """

    def __init__(self) -> None:
        self.spikes = 0
        self.spike_steps = 0
        self.score: float | None = None
        self._last_step = -1
        self._began: int | None = None
        self._tail = TAIL_AT_FIRST
        self._score_before = 0.0
        self._forget()

    def observe(self, step: int, loss: float) -> None:
        """Take the loss of one step; a step number that goes back (a rollback, a restart) starts a new baseline."""
        if step < self._last_step:
            self._forget()
        self._last_step = step
        if not math.isfinite(loss):
            self.score = None
            return
        level = _median(sorted(self._recent)) if self._recent else loss
        rise = loss - level
        self.score = self._score(rise, level)
        if self._is_spike():
            if self._began is None:
                self._began = step
                self.spikes += 1
            self.spike_steps = step - self._began + 1
            if self.spike_steps > NEW_LEVEL_STEPS:
                self._forget()
            return
        self._began = None
        self.spike_steps = 0
        self._accept(loss, rise)

    def _score(self, rise: float, level: float) -> float | None:
        count = len(self._sorted_rises)
        if count < MIN_RISES:
            return None
        spread = (self._sorted_rises[(3 * count) // 4] - self._sorted_rises[count // 4]) / _NORMAL_IQR
        return rise / max(spread, SPREAD_FLOOR * abs(level), 1e-12)

    def _is_spike(self) -> bool:
        if self.score is None:
            return False
        return self.score > (HEALED_SCORE if self._began is not None else self._limit())

    def _limit(self) -> float:
        by_tail = min(max(SPIKE_SCORE, TAIL_FACTOR * self._tail), MOST_SCORE)
        return by_tail * (1 + SHORT_PAST / len(self._rises))

    def _accept(self, loss: float, rise: float) -> None:
        if self.score is not None and len(self._rises) >= TAIL_MIN_RISES:
            if self.score < HEALED_SCORE:  # the one before stood alone: two high ones are no tail, they begin something
                self._tail = max(self._score_before, TAIL_KEPT * self._tail)
            self._score_before = self.score
        if len(self._recent) >= LEVEL_MINIMUM:
            if len(self._rises) == WINDOW:
                del self._sorted_rises[bisect_left(self._sorted_rises, self._rises[0])]
            self._rises.append(rise)
            insort(self._sorted_rises, rise)
        self._recent.append(loss)

    def _forget(self) -> None:
        self._recent: deque[float] = deque(maxlen=LEVEL_WINDOW)
        self._rises: deque[float] = deque(maxlen=WINDOW)
        self._sorted_rises: list[float] = []
        self._tail = TAIL_AT_FIRST
        self._score_before = 0.0
        self._began = None
        self.spike_steps = 0


class NonfiniteWatch:
    """Counts NaN and infinite values by source and remembers the step of the first."""

    def __init__(self) -> None:
        self.totals = dict.fromkeys(NONFINITE_SOURCES, 0)
        self.first_steps: dict[str, int] = {}

    def observe(self, step: int, values: Mapping[str, float]) -> None:
        """Look at the values logged for one step."""
        for source in NONFINITE_SOURCES:
            value = values.get(source)
            if value is not None and not math.isfinite(value):
                self.totals[source] += 1
                self.first_steps.setdefault(source, step)


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
