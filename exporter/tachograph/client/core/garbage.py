"""Steps in which Python's garbage collector went through all objects."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tachograph.client.core.phases import PhaseClock
    from tachograph.client.core.steps import Step

FULL = 2
"""The oldest generation: with a model's objects alive, collecting it takes tens of milliseconds."""


class GarbageTag:
    """Tags the step under way `gc` when a full collection begins, unless the step before had one, too.

    Training code that collects at every step has made it part of the step.
    """

    __slots__ = ("_clock", "_last", "_step")

    def __init__(self, step: Step, clock: PhaseClock) -> None:
        self._step = step
        self._clock = clock
        self._last = -2

    def start(self) -> None:
        """Listen from now on."""
        gc.callbacks.append(self)

    def stop(self) -> None:
        """Listen no more."""
        for position, callback in enumerate(gc.callbacks):
            if callback is self:  # `in` would compare with callbacks of the training code
                del gc.callbacks[position]
                return

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Take note of a collection; called by Python in whatever thread caused it."""
        if info["generation"] != FULL or phase != "start":
            return
        completed = self._step.completed
        if self._clock.tag is None and completed > self._last + 1:
            self._clock.tag = "gc"
        self._last = completed
