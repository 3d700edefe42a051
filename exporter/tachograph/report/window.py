"""The time window of a report: as Prometheus is queried, and as an axis shows it."""

from __future__ import annotations

from dataclasses import dataclass

from tachograph.text.moments import iso

POINTS = 240
"""Samples of a line across the page: one every 3 to 4 pixels."""
STEPS = (5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
"""Seconds between the labels of a time axis."""
MOST_TICKS = 8
SHORTEST = 60
LONGEST = 31 * 86400
"""Prometheus keeps 15 days by default."""


@dataclass(frozen=True)
class Window:
    """From `start` to `end` in Unix seconds, with a sample every `step` seconds."""

    start: float
    end: float
    step: int

    @classmethod
    def between(cls, start: float, end: float) -> Window:
        """Return the window, starting a little earlier if it is not a multiple of the step; raise ValueError."""
        length = round(end - start, 3)  # the minute before a fraction of a second is one, however floats round
        if not SHORTEST <= length <= LONGEST:
            much = "too short" if length < SHORTEST else "too long"
            raise ValueError(f"{iso(start)} to {iso(end)} is {much}: give between a minute and {LONGEST // 86400} days")
        step = next((step for step in STEPS if end - start <= step * POINTS), STEPS[-1])
        return cls(end - step * -(-(end - start) // step), end, step)

    @property
    def seconds(self) -> int:
        """Return its length in whole seconds."""
        return round(self.end - self.start)

    @property
    def coarse(self) -> int:
        """Return the step for expensive queries: a fourth of the points."""
        return 4 * self.step

    def ticks(self) -> list[float]:
        """Return the round times in the window at which an axis has a label, about eight at most."""
        gap = next((gap for gap in TICKS if self.seconds / gap <= MOST_TICKS), TICKS[-1])
        first = -(-self.start // gap) * gap
        return [first + i * gap for i in range(MOST_TICKS + 1) if first + i * gap <= self.end]
