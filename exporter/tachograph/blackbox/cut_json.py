"""Reads JSON, and of JSON that was cut short what stands before the cut."""

from __future__ import annotations

import json
import re

DEEPEST = 6
"""A dump's values lie less deep than this; what lies deeper is left out of a file that was cut short."""

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n,:]*")


def load(data: bytes) -> object:
    """Return the value of a JSON text; raises ValueError where it is damaged."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def salvage(data: bytes) -> object:
    """Return what a JSON text that was cut short holds up to the cut; None where that is nothing."""
    return _value(data.decode("utf-8", "replace"), 0, 0)[0]


def _value(text: str, at: int, depth: int) -> tuple[object, int | None]:
    """Return the value that begins at a place, and where it ends; None for the end where the text was cut in it."""
    try:
        value: object
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        if depth > DEEPEST:
            return None, None
        if text[at : at + 1] == "{":
            return _object(text, at + 1, depth)
        if text[at : at + 1] == "[":
            return _array(text, at + 1, depth)
        return None, None
    return value, end


def _object(text: str, start: int, depth: int) -> tuple[object, None]:
    found: dict[str, object] = {}
    at: int | None = start
    while at is not None:
        key, at = _value(text, _after_space(text, at), DEEPEST + 1)
        if at is None or not isinstance(key, str):
            break
        value, at = _value(text, _after_space(text, at), depth + 1)
        if at is not None or value is not None:
            found[key] = value
    return found, None


def _array(text: str, start: int, depth: int) -> tuple[object, None]:
    found: list[object] = []
    at: int | None = start
    while at is not None:
        value, at = _value(text, _after_space(text, at), depth + 1)
        if at is not None:
            found.append(value)
    return found, None


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
