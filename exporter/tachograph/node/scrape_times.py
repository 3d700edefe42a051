"""When the exporter was scraped, and so until when a last scrape is worth waiting for."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

REMEMBERED = 4
LATENESS = 1.2
"""Of the longest time between two scrapes, after which the next one does not come."""
LONGEST_WAIT = 8.0
"""Seconds: systemd and Kubernetes kill the exporter 10 s after they have asked it to end."""


class ScrapeTimes:
    """The times of the last scrapes, in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=REMEMBERED)

    def note(self, now: float) -> None:
        """Remember a scrape."""
        self._times.append(now)

    def has_shown(self, happened: float) -> bool:
        """Return whether what happened at a time has been scraped since."""
        return bool(self._times) and self._times[-1] >= happened

    def seconds_left(self, now: float) -> float:
        """Return within how many seconds the next scrape comes; 0 if none is to be expected, or not so soon."""
        longest = max((after - before for before, after in pairwise(self._times)), default=0.0)
        left = self._times[-1] + LATENESS * longest - now if self._times else 0.0
        return left if 0.0 < left <= LONGEST_WAIT else 0.0
