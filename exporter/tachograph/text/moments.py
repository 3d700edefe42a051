"""Moments as people give them to a command, and as every command shows them."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime, timezone

from tachograph.text import duration, humanize


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


def iso(time: float) -> str:
    """Return a time, to the nearest second, as `2026-01-31T02:00:00Z`."""
    return humanize.utc(time + 0.5, "%Y-%m-%dT%H:%M:%SZ")
