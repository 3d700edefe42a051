"""The last so many numbers, ordered: their median and quartiles at any time, for the price of one insertion."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

_NORMAL_IQR = 1.349  # interquartile range of the standard normal distribution


class SortedWindow:
    """Holds at most `size` numbers; the oldest goes when one more comes. NaN must stay out."""

    __slots__ = ("_arrived", "_ordered")

    def __init__(self, size: int) -> None:
        self._arrived: deque[float] = deque(maxlen=size)
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._ordered)

    def push(self, value: float) -> None:
        """Take a number in."""
        if len(self._arrived) == self._arrived.maxlen:
            del self._ordered[bisect_left(self._ordered, self._arrived[0])]
        self._arrived.append(value)
        insort(self._ordered, value)

    @property
    def median(self) -> float:
        """The middle number, or the mean of the two in the middle; needs one at least."""
        ordered = self._ordered
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

    @property
    def spread(self) -> float:
        """The interquartile range, scaled to a standard deviation; up to a quarter of the values may be outliers."""
        count = len(self._ordered)
        return (self._ordered[(3 * count) // 4] - self._ordered[count // 4]) / _NORMAL_IQR


def median(ordered: list[float]) -> float:
    """Return the median of numbers in order; needs one at least."""
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
