"""The fields of a scenario's dataclasses: how each is declared, and how the text of its value is read and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Literal, TypeVar

from tachograph.findings.limits import LIMITS, SECONDS, LimitName
from tachograph.text.duration import parse

Kind = TypeVar("Kind")
Default = TypeVar("Default")

Read = Callable[[str], str]
"""Reads a scalar's text; raises ValueError with what is allowed."""


def text(value: str) -> str:
    """Read a non-empty text."""
    if not value.strip():
        raise ValueError("a non-empty text")
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


def offset(value: str) -> float:
    """Read a duration that may be negative: `40s`, `-40s`."""
    return -duration(value[1:]) if value.startswith("-") else duration(value)


def some_time_or_never(value: str) -> float:
    """Read a duration above zero, or `never`."""
    return math.inf if value == "never" else some_time(value)


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
    """Read a number of at least 0."""
    allowed = "a number of at least 0"
    result = _number(value, allowed)
    if result < 0:
        raise ValueError(allowed)
    return result


def share(value: str) -> float:
    """Read a share above 0 and below 1."""
    allowed = "a share above 0 and below 1"
    result = _number(value, allowed)
    if not 0 < result < 1:
        raise ValueError(allowed)
    return result


def limit(name: LimitName) -> Callable[[str], float]:
    """Return what reads a limit in its range."""
    row = LIMITS[name]

    def read(value: str) -> float:
        result = duration(value) if row.unit == SECONDS else share(value)
        if not row.admits(result):
            raise ValueError(row.expected)
        return result

    return read


def whole(value: str) -> int:
    """Read a whole number of at least 0."""
    if not re.fullmatch(r"\d[\d_]*", value):
        raise ValueError("a whole number of at least 0")
    return int(value)


def count(value: str) -> int:
    """Read a whole number of at least 1."""
    if not re.fullmatch(r"\d[\d_]*", value) or int(value) == 0:
        raise ValueError("a whole number of at least 1")
    return int(value)


def flag(value: str) -> bool:
    """Read true or false."""
    if value not in ("true", "false"):
        raise ValueError("true or false")
    return value == "true"


def choice(*allowed: str) -> Read:
    """Return a reader that accepts only these words."""

    def read(value: str) -> str:
        if value not in allowed:
            raise ValueError("one of " + ", ".join(word or '""' for word in allowed))
        return value

    return read


def size(read: Callable[[str], Kind]) -> Kind:
    """Declare a required field."""
    made: Kind = field(metadata={"read": read})
    return made


def optional(read: Callable[[str], Kind], default: Default, key: str = "") -> Kind | Default:
    """Declare a field with a default; `key` is its name in the file if that is a reserved word in Python."""
    metadata = {"read": read, "key": key} if key else {"read": read}
    made: Kind | Default = field(default=default, metadata=metadata)
    return made


def several(
    read: Callable[[str], Kind], default: tuple[Kind, ...] | None, words: Mapping[str, tuple[Kind, ...] | None] = {}
) -> tuple[Kind, ...] | None:
    """Declare a list with a default; `words` stand for whole lists."""
    made: tuple[Kind, ...] | None = field(default=default, metadata={"each": read, "words": words})
    return made


def place(kind: Literal["rank", "node"]) -> int:
    """Declare a field that names one rank or one node."""
    made: int = field(metadata={"place": kind})
    return made


def places(kind: Literal["ranks", "nodes"]) -> tuple[int, ...]:
    """Declare a field that names several ranks or nodes."""
    made: tuple[int, ...] = field(metadata={"place": kind})
    return made
