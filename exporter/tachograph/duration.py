"""How long a silence lasts, as a person writes and reads it."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_WRITTEN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def parse(text: str) -> timedelta:
    """Read `20m`, `1h30m`, `2d`; a number without a unit is refused, as 20 could be anything. Raises ValueError."""
    found = _WRITTEN.fullmatch(text)
    length = timedelta(**{
        name: int(number) for name, number in zip(_UNITS.values(), found.groups(), strict=True) if number
    } if found else {})  # fmt: skip
    if not length:
        raise ValueError(f"{text!r} is no duration: write 20m, 90s or 1h30m")
    return length


def words(length: timedelta) -> str:
    """Write a duration as `parse` reads it, rounded to minutes beyond an hour: `1h30m`."""
    seconds = round(length.total_seconds())
    if seconds >= 3600:
        seconds = round(seconds / 60) * 60
    sizes = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    parts = []
    for unit, size in sizes.items():
        number, seconds = divmod(seconds, size)
        parts += [f"{number}{unit}"] if number else []
    return "".join(parts) or "0s"
