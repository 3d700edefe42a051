"""The maximum over the last one to two minutes, so that a scrape every 5 to 60 s does not miss a peak."""

from __future__ import annotations

from collections.abc import Callable

HALF_SECONDS = 60.0


class RecentPeak:
    """The largest value noted within the last one to two minutes, 0 if there is none; reading changes nothing."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._before = self._now = 0.0

    def note(self, value: float) -> None:
        """Take a value into account."""
        half = self._halves()
        if half > 0:
            self._before = self._now if half == 1 else 0.0
            self._now = 0.0
            self._began += half * HALF_SECONDS
        self._now = max(self._now, value)

    def read(self) -> float:
        """Return the peak."""
        half = self._halves()
        return max(self._before, self._now) if half == 0 else self._now if half == 1 else 0.0

    def _halves(self) -> int:
        return int((self._clock() - self._began) // HALF_SECONDS)
