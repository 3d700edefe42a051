"""Jumps of the learning rate: after one the loss may move, which is not a spike.

Runs in the sender thread.
"""

from __future__ import annotations

import math

FACTOR = 1.5
"""A larger change between two logged steps is a jump, except on a warm-up ramp."""


class LearningRateWatch:
    """Distinguishes a jump of the learning rate from a schedule, warm-up and a decay to zero included."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._slope = 0.0

    def observe(self, step: int, rate: float) -> bool:
        """Take the rate of one step and return whether it jumped, up or down, by more than a schedule does.

        A rise from 0 is never a jump: that is how a warm-up begins. A step number that goes back starts over.
        """
        if not math.isfinite(rate) or rate < 0:
            return False
        if self._last is None or step < self._last[0]:
            self._last, self._slope = (step, rate), 0.0
            return False
        before, old = self._last
        if step == before:
            return False
        slope, former = (rate - old) / (step - before), self._slope
        self._last, self._slope = (step, rate), slope
        if old == 0 or (old <= FACTOR * rate and rate <= FACTOR * old):
            return False
        line = step / before if before else step + 1
        if old < rate <= FACTOR * line * old:
            return False  # no steeper than a straight line from zero at the first step
        return slope * former <= 0 or abs(slope) > FACTOR * abs(former)
