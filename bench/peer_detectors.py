"""The rules by which three peers detect a spike of the loss, from what their code does, with their defaults."""

from __future__ import annotations

import math
from collections import deque


class KillLossSpike:
    """llm-foundry's callback: losses of at least 2 × the mean of the last 100, more than `patience` in a row.

    Its other alarm: at least half of the window above the highest loss of the first window (at most 10), from step 200
    on. NaN enters the mean; the window grows with a planned duration, here it is the least, 100.
    """

    WINDOW = 100

    def __init__(self, patience: int = 4) -> None:
        self._patience = patience
        self._window: deque[float] = deque(maxlen=self.WINDOW)
        self._outliers = 0
        self._cap = 10.0
        self._above_cap = 0

    def __call__(self, step: int, value: float) -> bool:
        """Return whether either alarm is active."""
        window, wrong = self._window, False
        if len(window) == self.WINDOW:
            if step == self.WINDOW:
                self._cap = min(self._cap, max(window))
                self._above_cap = 0
            self._outliers = self._outliers + 1 if value >= 2 * sum(window) / self.WINDOW else 0
            wrong = self._outliers > self._patience or (step >= 200 and 2 * self._above_cap >= self.WINDOW)
            self._above_cap -= window[0] > self._cap
        window.append(value)
        self._above_cap += value > self._cap
        return wrong


class SkipStep:
    """OLMo-core's optimizer: more than 6 standard deviations above the mean of the last 128, from the 64th value on.

    Values that are not finite are skipped and stay out of the mean; all others enter it.
    """

    WINDOW, LEAST, SIGMA = 128, 64, 6.0

    def __init__(self) -> None:
        self._window: deque[float] = deque()
        self._count, self._sum, self._squares = 0, 0.0, 0.0

    def __call__(self, step: int, value: float) -> bool:
        """Return whether the optimizer would skip this step."""
        finite = math.isfinite(value)
        wrong = False
        if len(self._window) + 1 >= self.LEAST:
            mean = self._sum / self._count
            variance = max(0.0, self._squares - self._count * mean * mean) / (self._count - 1)
            wrong = not finite or value - mean > self.SIGMA * math.sqrt(variance)
        self._window.append(value)
        self._weigh(value, 1)
        if len(self._window) > self.WINDOW:
            self._weigh(self._window.popleft(), -1)
        return wrong

    def _weigh(self, value: float, sign: int) -> None:
        if math.isfinite(value):
            self._count += sign
            self._sum += sign * value
            self._squares += sign * value * value


class RerunMachine:
    """Megatron's check: at least 10 × the highest of the first 100 values; NaN and infinite always."""

    SAMPLES, FACTOR = 100, 10

    def __init__(self) -> None:
        self._seen = 0
        self._highest = 0.0

    def __call__(self, step: int, value: float) -> bool:
        """Return whether the check would fail."""
        if not math.isfinite(value):
            return True
        if self._seen < self.SAMPLES:
            self._seen += 1
            self._highest = max(self._highest, abs(value))
            return False
        return abs(value) >= self.FACTOR * self._highest
