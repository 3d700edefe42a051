"""What a value in a scenario file may be: each kind reads the text of one scalar and says what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from tachograph.duration import parse

Read = Callable[[str], str]
"""Turns a scalar's text into its value; raises ValueError with what is allowed."""


def text(value: str) -> str:
    """Read any text but the empty one."""
    if not value.strip():
        raise ValueError("a text that is not empty")
    return value


def duration(value: str) -> float:
    """Read seconds: `90`, `90s`, `12m`, `1h30m`, `0.5s`, `200ms`, `1d`."""
    try:
        return parse(value, bare=True)
    except ValueError:
        raise ValueError("a duration such as 90, 90s, 12m or 1h30m, never negative") from None


def some_time(value: str) -> float:
    """Read a duration above zero."""
    seconds = duration(value)
    if seconds == 0:
        raise ValueError("a duration above 0")
    return seconds


def _number(value: str, allowed: str) -> float:
    try:
        number = float(value.replace("_", ""))
    except ValueError:
        raise ValueError(allowed) from None
    if not math.isfinite(number):
        raise ValueError(allowed)
    return number


def number(value: str) -> float:
    """Read any finite number."""
    return _number(value, "a number")


def positive(value: str) -> float:
    """Read a number above 0."""
    allowed = "a number above 0"
    result = _number(value, allowed)
    if result <= 0:
        raise ValueError(allowed)
    return result


def not_negative(value: str) -> float:
    """Read a number from 0 on."""
    allowed = "a number of at least 0"
    result = _number(value, allowed)
    if result < 0:
        raise ValueError(allowed)
    return result


def share(value: str) -> float:
    """Read a share: above 0, below 1."""
    allowed = "a share above 0 and below 1"
    result = _number(value, allowed)
    if not 0 < result < 1:
        raise ValueError(allowed)
    return result


def whole(value: str) -> int:
    """Read a whole number from 0 on."""
    if not re.fullmatch(r"\d[\d_]*", value):
        raise ValueError("a whole number of at least 0")
    return int(value)


def count(value: str) -> int:
    """Read a whole number from 1 on."""
    if not re.fullmatch(r"\d[\d_]*", value) or int(value) == 0:
        raise ValueError("a whole number of at least 1")
    return int(value)


def flag(value: str) -> bool:
    """Read true or false."""
    if value not in ("true", "false"):
        raise ValueError("true or false")
    return value == "true"


def choice(*allowed: str) -> Read:
    """Make a kind that reads one of a few words."""

    def read(value: str) -> str:
        if value not in allowed:
            raise ValueError("one of " + ", ".join(word or '""' for word in allowed))
        return value

    return read
