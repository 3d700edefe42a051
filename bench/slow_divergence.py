"""The rule LossDiverging of prometheus/rules/learning.yml, written again in Python so that a bench can run it.

Step by step at one step a second, where Prometheus scrapes every 5 s and looks every 15 s.
tests/rules/test_divergence.py holds the two against each other.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from itertools import islice

SCRAPE, LOOK = 5, 15
WINDOW_SECONDS = 1200
LOOKS = WINDOW_SECONDS // LOOK
LEAST_LOOKS = 76
THIRD = 400
LEAST_CLIMB = 0.015
LEAST_CORRELATION = 0.7
LEAST_THIRD = 0.2
PERSISTS = 120
RATE_FACTOR = 1.5


class SlowDivergence:
    """Says whether the alert would fire."""

    def __init__(self) -> None:
        self._seconds = 0
        self._last_step = -1
        self._minute: deque[float] = deque(maxlen=60 // SCRAPE)
        self._means: deque[float] = deque(maxlen=LOOKS)
        self._medians: deque[float] = deque(maxlen=2 * THIRD // LOOK + 1)
        self._excused_until = 0
        self._rate: float | None = None
        self._since: int | None = None
        self._fires = False

    def learning_rate(self, rate: float) -> None:
        """Take the learning rate; a change by half within the window excuses."""
        if self._rate and max(rate, self._rate) > RATE_FACTOR * min(rate, self._rate):
            self._excused_until = self._seconds + WINDOW_SECONDS
        self._rate = rate

    def observe(self, step: int, loss: float, *, spike: bool = False) -> bool:
        """Take the loss of one step, a second after the one before."""
        if spike or step < self._last_step:
            self._excused_until = self._seconds + WINDOW_SECONDS
        self._last_step = step
        self._seconds += 1
        if self._seconds % SCRAPE == 0 and math.isfinite(loss):
            self._minute.append(loss)
        if self._seconds % LOOK == 0 and self._minute:
            self._look()
        return self._fires

    def _look(self) -> None:
        self._means.append(statistics.fmean(self._minute))
        self._medians.append(statistics.median(islice(self._means, max(0, len(self._means) - THIRD // LOOK), None)))
        if self._seconds < self._excused_until or not self._climbs():
            self._since, self._fires = None, False
            return
        self._since = self._seconds if self._since is None else self._since
        self._fires = self._seconds - self._since >= PERSISTS

    def _climbs(self) -> bool:
        count = len(self._means)
        if count < LEAST_LOOKS or len(self._medians) < 2 * THIRD // LOOK + 1:
            return False
        rise = LOOKS * slope(self._means)
        if rise < LEAST_CLIMB * abs(statistics.fmean(self._means)):
            return False
        if rise < LEAST_CORRELATION * math.sqrt(12) * statistics.pstdev(self._means):
            return False
        first, middle, last = self._medians[0], self._medians[THIRD // LOOK], self._medians[-1]
        least = LEAST_THIRD * (last - first)
        return middle - first >= least and last - middle >= least


def slope(values: Sequence[float]) -> float:
    """Return the slope of the line fitted to equidistant values, for each of their distances."""
    middle = (len(values) - 1) / 2
    weights = [i - middle for i in range(len(values))]
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(w * w for w in weights)
