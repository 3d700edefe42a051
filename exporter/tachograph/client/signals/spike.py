"""The spike that a rank's loss or gradient norm is in."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

NEW_LEVEL_STEPS, NEW_LEVEL_SECONDS = 200, 120.0
"""A spike that stays for both is the new normal: the past is forgotten and the baseline starts again from here. With
steps of milliseconds the first alone would be over before Prometheus looks."""


class Spike:
    """Counts a spike's steps: `steps` is 0 while there is none, 1 on its first step."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.steps = 0
        self._clock = clock
        self._began = 0
        self._since = 0.0

    def go_on(self, step: int) -> bool:
        """Take a step beyond the limit, the first of a spike or a later one; return whether it has become normal."""
        if not self.steps:
            self._began, self._since = step, self._clock()
        self.steps = step - self._began + 1
        return self.steps > NEW_LEVEL_STEPS and self._clock() - self._since >= NEW_LEVEL_SECONDS

    def end(self) -> None:
        """End it, if there is one."""
        self.steps = 0
