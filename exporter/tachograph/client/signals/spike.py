"""The spike that a rank's loss or gradient norm is in."""

from __future__ import annotations

NEW_LEVEL_STEPS = 200
"""A spike that stays this long is the new normal: the past is forgotten and the baseline starts again from here."""


class Spike:
    """Counts a spike's steps: `steps` is 0 while there is none, 1 on its first step."""

    def __init__(self) -> None:
        self.steps = 0
        self._began = 0

    def go_on(self, step: int) -> bool:
        """Take a step beyond the limit, the first of a spike or a later one; return whether it has become normal."""
        if not self.steps:
            self._began = step
        self.steps = step - self._began + 1
        return self.steps > NEW_LEVEL_STEPS

    def end(self) -> None:
        """End it, if there is one."""
        self.steps = 0
