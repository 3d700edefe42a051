"""The batches that a script has trained on, where its loader may be read ahead of it."""

from __future__ import annotations


class BatchCount:
    """Counts batches by step; `per_step` is how many a step takes, 1 until that is known.

    A wrapper that fetches ahead has what it is ahead by from the first step on, gives it back in the last step of an
    epoch, and takes it again in the first of the next. The first two steps show by how much.
    """

    def __init__(self) -> None:
        self.per_step = 1
        self.since_step = 0
        self._steps = 0
        self._ahead = 0
        self._is_ahead = True

    def step_completed(self) -> int:
        """Return how many batches the step has used; `since_step`, those delivered since the last one, begins anew."""
        came, self.since_step = self.since_step, 0
        self._steps += 1
        if self._steps == 1:
            self.per_step = came
        elif self._steps == 2:
            ahead, self.per_step = self.per_step - came, came
            if 0 < ahead <= came:
                self._ahead = ahead
                return came - ahead
        elif self._ahead and came == self.per_step + (-self._ahead if self._is_ahead else self._ahead):
            self._is_ahead = not self._is_ahead
            return self.per_step
        return came
