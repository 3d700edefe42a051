"""The time window of a report: as a person writes it, as Prometheus is queried, and as an axis shows it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone

from tachograph import duration, humanize

POINTS = 240
"""Samples of a line across the page: one every 3 to 4 pixels."""
STEPS = (5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
"""Seconds between the labels of a time axis."""
MOST_TICKS = 8
SHORTEST = 60
LONGEST = 31 * 86400
"""Prometheus keeps 15 days by default."""


def moment(text: str, now: float) -> float:
    """Return the Unix time of `2h` or `1h30m` (ago), `now`, or an ISO time (UTC by default); raise ValueError."""
    if text == "now":
        return now
    with suppress(ValueError):
        return now - duration.parse(text)
    try:
        read = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        raise ValueError(f"{text!r} is not a time: write 2h (ago), 1h30m or 2026-01-31T02:00:00Z") from None
    return (read if read.tzinfo else read.replace(tzinfo=timezone.utc)).timestamp()


@dataclass(frozen=True)
class Window:
    """From `start` to `end` in Unix seconds, with a sample every `step` seconds."""

    start: float
    end: float
    step: int

    @classmethod
    def between(cls, start: float, end: float) -> Window:
        """Return the window, starting a little earlier if it is not a multiple of the step; raise ValueError."""
        if not SHORTEST <= end - start <= LONGEST:
            much = "too short" if end - start < SHORTEST else "too long"
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


def iso(time: float) -> str:
    """Return a time, to the nearest second, as `2026-01-31T02:00:00Z`."""
    return humanize.utc(time + 0.5, "%Y-%m-%dT%H:%M:%SZ")
