"""The window of time a report is about: as a person writes it, as Prometheus is asked, and as an axis shows it."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone

from tachograph import duration

POINTS = 240
"""Samples of a line across the page: one for every 3 to 4 pixels."""
STEPS = (5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
"""Seconds between labels of a time axis: times that a clock face has."""
MOST_TICKS = 8
NONE = "–"
LAST_TIME = 2**36
"""The year 4147, as far as ranks may speak of."""
SHORTEST = 60
LONGEST = 31 * 86400
"""Prometheus keeps 15 days unless told otherwise."""


def moment(text: str, now: float) -> float:
    """Read `2h`, `1h30m` (that long ago), `now`, or an ISO time (UTC unless it says otherwise); raise ValueError."""
    if text == "now":
        return now
    with suppress(ValueError):
        return now - duration.parse(text)
    try:
        read = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        raise ValueError(f"{text!r} is no time: write 2h (ago), 1h30m or 2026-01-31T02:00:00Z") from None
    return (read if read.tzinfo else read.replace(tzinfo=timezone.utc)).timestamp()


@dataclass(frozen=True)
class Window:
    """From `start` to `end` in Unix seconds, asked for every `step` seconds."""

    start: float
    end: float
    step: int

    @classmethod
    def between(cls, start: float, end: float) -> Window:
        """Return the window, a little longer at its beginning where steps do not fit; raise ValueError."""
        if not SHORTEST <= end - start <= LONGEST:
            much = "too short" if end - start < SHORTEST else "too long"
            raise ValueError(f"{iso(start)} to {iso(end)} is {much}: give between a minute and {LONGEST // 86400} days")
        length = end - start
        step = next((step for step in STEPS if length <= step * POINTS), STEPS[-1])
        return cls(end - step * -(-length // step), end, step)

    @property
    def seconds(self) -> int:
        """Return its length."""
        return round(self.end - self.start)

    @property
    def coarse(self) -> int:
        """Return a step for what is dear to ask: a fourth of the points."""
        return 4 * self.step

    def ticks(self) -> list[float]:
        """Return the round times in the window that an axis labels, eight at most."""
        gap = next((gap for gap in TICKS if self.seconds / gap <= MOST_TICKS), TICKS[-1])
        first = -(-self.start // gap) * gap
        return [first + i * gap for i in range(MOST_TICKS + 1) if first + i * gap <= self.end]


def iso(time: float) -> str:
    """Return a time as `2026-01-31T02:00:00Z`."""
    return _written(time, "%Y-%m-%dT%H:%M:%SZ")


def clock(time: float, *, seconds: bool = True) -> str:
    """Return the time of day."""
    return _written(time, "%H:%M:%S" if seconds else "%H:%M")


def day(time: float) -> str:
    """Return the day of a time."""
    return _written(time, "%Y-%m-%d")


def _written(time: float, form: str) -> str:
    """Return a time in UTC, a dash for what is none: a rank may report any number."""
    if not 0 <= time <= LAST_TIME:
        return NONE
    return datetime.fromtimestamp(round(time), timezone.utc).strftime(form)


def length(seconds: float) -> str:
    """Return a length of time in its two largest units: `1 h 30 min`."""
    if not math.isfinite(seconds):
        return NONE
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{whole} s"
    sizes = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    at = next(i for i, (_, size) in enumerate(sizes) if whole >= size)
    parts = []
    for unit, size in sizes[at : at + 2]:
        number, whole = divmod(whole, size)
        parts += [f"{number} {unit}"] if number else []
    return " ".join(parts)
