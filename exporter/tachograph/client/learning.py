"""Is the loss still learning? Spikes by a robust score against its own recent past, and the first NaN.

Runs in the sender thread on what the training thread logged.

Method. Training loss falls, so a plain trailing median lies above the healthy values and hides a spike early on. What
is scored is the *rise*: the loss minus the median of the last 8 normal losses, in units of how rises normally spread
(scaled interquartile range of the last 128; a quarter of them may be odd without moving it). Spikes never enter that
past, so a shift cannot hide itself. Six standard deviations is the limit of OLMo-core's `SkipStepOptimizer`, which
however lets outliers into its mean and leaves the first 64 steps unprotected.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping

from tachograph.catalog import NONFINITE_SOURCES

WINDOW = 128
LEVEL_WINDOW = 8
LEVEL_MINIMUM = 4
SPIKE_SCORE = 6.0
HEALED_SCORE = 3.0
"""A spike ends below half its limit, so that noise around the limit does not restart the count."""

MIN_RISES = 4
FEW_RISES = 20
FEW_RISE_RATIO = 0.5
"""With 4 to 19 rises the spread is a guess, so a spike must also stand half its level above it (4.4 standard deviations
of a loss with 10 % noise)."""

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
        if self._is_spike(rise, level):
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

    def _is_spike(self, rise: float, level: float) -> bool:
        if self.score is None:
            return False
        if self._began is not None:
            return self.score > HEALED_SCORE
        few = len(self._sorted_rises) < FEW_RISES
        return self.score > SPIKE_SCORE and (not few or rise > FEW_RISE_RATIO * abs(level))

    def _accept(self, loss: float, rise: float) -> None:
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
