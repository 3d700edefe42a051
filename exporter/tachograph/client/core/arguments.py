"""Arguments as a caller gave them, turned into what they are meant to be; nothing here raises."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable

from tachograph.client.core.notice import notice, raised_by_signal
from tachograph.wire import is_name, socket_path

LARGEST = 2**53
"""The largest whole number that JSON carries exactly."""

COUNT_LIMIT = 2**31


def flag(value: object) -> bool | None:
    """Return whether `value` is true; None where it cannot say, or only after a wait for the GPU."""
    try:
        return None if getattr(value, "is_cuda", False) else bool(value)
    except Exception as error:
        if raised_by_signal(error):
            raise
        return None


def path_of(socket: object) -> str:
    """Return the path of the exporter's socket, the usual one where `socket` is none."""
    try:
        return os.fsdecode(socket) if socket is not None else socket_path()  # type: ignore[arg-type]
    except Exception as error:
        if raised_by_signal(error):
            raise
        notice("argument socket", "socket is not a path: the default is used", error)
        return socket_path()


def location(value: object) -> str | None:
    """Return the text of a path; None for anything else; never raises."""
    try:
        return os.fsdecode(value)  # type: ignore[arg-type]
    except Exception as error:
        if raised_by_signal(error):
            raise
        return None


def name(value: object) -> str | None:
    """Return `value` if it can name something in a frame: printable, 1 to 128 bytes in UTF-8; never raises."""
    if not issubclass(type(value), str):  # a dead `weakref.proxy` raises where isinstance asks for its class
        return None
    text = str.strip(value)  # type: ignore[arg-type]  # str's own: a subclass may do anything
    return text if is_name(text) else None


def one_of(words: Iterable[str], value: object) -> str | None:
    """Return the word that `value` is, itself a plain string; None for anything else; never raises."""
    text = name(value)
    return text if text is not None and text in tuple(words) else None


def count(value: object) -> int | None:
    """Return a whole number from 0 to 2^31 - 1, also from its decimal text; None for anything else; never raises."""
    if type(value) is not int and (text := name(value)) is not None and text.isdecimal():
        value = int(text)
    return whole(value, COUNT_LIMIT - 1)


def decimal(text: str) -> float:
    """Return the number that a text says, NaN for any other text."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def of_numpy(kind: type, *words: str) -> bool:
    """Return whether a type is a scalar of numpy's whose name begins with one of these words."""
    return kind.__module__ == "numpy" and kind.__name__.startswith(words)


def whole(value: object, limit: int) -> int | None:
    """Return a whole number from 0 to `limit`, as a plain int; None for anything else; never raises."""
    kind = type(value)
    if of_numpy(kind, "int", "uint"):
        value = kind.__int__(value)  # type: ignore[attr-defined]
    elif kind is not int and (kind is bool or not issubclass(kind, int)):
        return None
    number = int.__int__(value)  # type: ignore[arg-type]  # int's own, as above
    return number if 0 <= number <= limit else None
