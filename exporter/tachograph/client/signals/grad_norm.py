"""The usual level of the gradient norm, and spikes above it.

Runs in the sender thread. Norms scatter by factors, so all is done on their logarithms: the median of the last 128
normal norms, and how they spread around it (scaled interquartile range). A spike, and a norm that has all but vanished,
never enter that past. A spike is 4.25 standard deviations above it, and two and a half times the usual norm at least.
docs/evidence/detectors.md has precision and recall.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from time import monotonic

from tachograph.client.core.sorted_window import SortedWindow, median
from tachograph.client.signals.spike import Spike

WINDOW = 128
MIN_NORMS = 16
SPIKE_SCORE = 4.25
SPIKE_FACTOR = 2.5
HEALED = 0.6
"""A spike ends below this share of its limit, so that noise around the limit does not restart the count."""

SPREAD_FLOOR = 0.05
SHORT_PAST = 5.0
"""The spread of few norms is a guess: the limit is raised by this over their number."""

VANISHED = 0.01
VANISHED_MIN_NORMS = 64
"""Below this share of its level a norm is not normal, once there are enough norms to define a level."""

BLOCK = 32
BLOCKS = 15


class GradNormWatch:
    """Follows the gradient norm of one rank."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.spike = Spike(clock)
        self._last_step = -1
        self._nonfinite_since: int | None = None
        self._forget()

    def observe(self, step: int, norm: float) -> None:
        """Take the norm of one step; a step number that goes back starts a new baseline."""
        if step < self._last_step:
            self._forget()
            self._nonfinite_since = None
        self._last_step = step
        if not math.isfinite(norm):  # mixed precision overflows it now and then
            self._nonfinite_since = step if self._nonfinite_since is None else self._nonfinite_since
            return
        self._nonfinite_since = None
        rise = self._rise(norm)
        limit = self._limit()
        if rise > (HEALED * limit if self.spike.steps else limit):
            if self.spike.go_on(step):
                self._forget()
            return
        self.spike.end()
        if norm > 0 and not (len(self._logs) >= VANISHED_MIN_NORMS and rise < math.log(VANISHED)):
            self._accept(math.log(norm))

    @property
    def level(self) -> float | None:
        """The usual norm: the median of the last 480 normal ones, by blocks of 32; None until there are 16."""
        if len(self._logs) < MIN_NORMS:
            return None
        return math.exp(median(sorted(self._blocks)) if self._blocks else self._logs.median)

    def metrics(self) -> dict[str, object]:
        """Return what is known of the norm."""
        metrics: dict[str, object] = {} if self._last_step < 0 else {"grad_norm_spike_steps": self.spike.steps}
        if (level := self.level) is not None:
            metrics["grad_norm_level"] = level
        if self._nonfinite_since is not None:
            metrics["grad_norm_nonfinite_steps"] = self._last_step - self._nonfinite_since + 1
        return metrics

    def _rise(self, norm: float) -> float:
        if not self._logs:
            return 0.0
        return math.log(norm) - self._logs.median if norm > 0 else -math.inf

    def _limit(self) -> float:
        count = len(self._logs)
        if count < MIN_NORMS:
            return math.inf
        score = SPIKE_SCORE * (1 + SHORT_PAST / count)
        return max(score * max(self._logs.spread, SPREAD_FLOOR), math.log(SPIKE_FACTOR))

    def _accept(self, log: float) -> None:
        self._logs.push(log)
        self._block.append(log)
        if len(self._block) == BLOCK:
            self._blocks.append(median(sorted(self._block)))
            self._block.clear()

    def _forget(self) -> None:
        self._logs = SortedWindow(WINDOW)
        self._block: list[float] = []
        self._blocks: deque[float] = deque(maxlen=BLOCKS)
        self.spike.end()
