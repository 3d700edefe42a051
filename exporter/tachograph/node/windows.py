"""A reading over a stretch of time up to now: by how much it grew, its mean, the highest of it.

Looks may fail and come late; what was read before the stretch is not known any more.
"""

from __future__ import annotations

from collections import deque


class Growth:
    """Takes a counter; one that falls has begun again at 0, as Prometheus sees it."""

    __slots__ = ("_grown", "_last", "_points", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._grown, self._last = 0.0, 0.0
        self._points: deque[tuple[float, float]] = deque()

    def note(self, now: float, count: float) -> None:
        """Take the counter now."""
        points = self._points
        if points:
            self._grown += count - self._last if count >= self._last else count
        self._last = count
        if len(points) > 1 and points[-2][1] == points[-1][1] == self._grown:
            points.pop()  # where it stands still, the ends are enough
        points.append((now, self._grown))
        while len(points) > 1 and points[1][0] <= now - self._seconds:
            points.popleft()

    def per_second(self, now: float) -> float | None:
        """Return its growth divided by all of the stretch, also while less of it is known; None if nothing is."""
        points, begin = self._points, now - self._seconds
        if not points or points[-1][0] <= begin:
            return None
        (first, before), (second, after) = points[0], points[min(1, len(points) - 1)]
        if first < begin < second:
            before += (after - before) * (begin - first) / (second - first)
        return (points[-1][1] - before) / self._seconds


class Mean:
    """Takes a gauge; each look counts the same."""

    __slots__ = ("_points", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._points: deque[tuple[float, float]] = deque()

    def note(self, now: float, value: float) -> None:
        """Take the gauge now."""
        self._points.append((now, value))
        while self._points[0][0] <= now - self._seconds:
            self._points.popleft()

    def value(self, now: float) -> float | None:
        """Return its mean; None if it has not been read."""
        values = [value for at, value in self._points if at > now - self._seconds]
        return sum(values) / len(values) if values else None


class Highest:
    """Takes a gauge, and keeps of it what may still become the highest."""

    __slots__ = ("_points", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._points: deque[tuple[float, float]] = deque()

    def note(self, now: float, value: float) -> None:
        """Take the gauge now."""
        points = self._points
        while points and points[-1][1] <= value:
            points.pop()
        points.append((now, value))
        while points[0][0] <= now - self._seconds:
            points.popleft()

    def value(self, now: float) -> float | None:
        """Return its highest value; None if it has not been read."""
        return next((value for at, value in self._points if at > now - self._seconds), None)
