"""Exponential back-off, for everything that is tried again."""

from __future__ import annotations


class Backoff:
    """Delays in seconds that double from `first` up to `last`."""

    __slots__ = ("_delay", "_first", "_last")

    def __init__(self, first: float, last: float) -> None:
        self._first, self._last = first, last
        self._delay = first

    def next(self) -> float:
        """Return how long to wait now; the next wait is twice as long."""
        delay, self._delay = self._delay, min(2 * self._delay, self._last)
        return delay

    def reset(self) -> None:
        """Begin with `first` again, after a success."""
        self._delay = self._first
