"""One log record as one line of JSON, with the place in the run at which it was written.

    {"timestamp": "2026-11-21T10:00:00.123456Z", "level": "error", "run": "llama-7b", "rank": 5, "step": 480,
     "phase": "backward", "event": "exception", "message": "…", "logger": "train", "fields": {"batch": 17},
     "traceback": "Traceback (most recent call last): …"}

(Written as one line.) `event` is a word to search for, absent if none was given; `fields` holds everything else.
"""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Protocol

from tachograph.client.hello.identity import Identity

MESSAGE_LIMIT = 8192
"""Characters of a message, and four times that of a traceback: a line stays below 64 KiB, which Loki takes whole."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "event", "fields"}


class RunPosition(Protocol):
    """The position of a process in a run; `tachograph.Recorder` implements it."""

    @property
    def identity(self) -> Identity:
        """Run, rank and the rest."""
        ...

    def position(self) -> tuple[int, str]:
        """Return the step and the phase the training thread is in."""
        ...


class JsonLines(logging.Formatter):
    """Formats records as JSON lines; never raises for what a record carries, and never writes more than one line.

    `kept` is given each of them, for the rank's box.
    """

    def __init__(self, place: RunPosition | None, identity: Identity, kept: deque[str] | None = None) -> None:
        super().__init__()
        self._place = place
        self._kept = kept
        self._who = {"run": identity.run, "rank": identity.rank}

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        line = self._line(record)
        if self._kept is not None:
            self._kept.append(line)
        return line

    def _line(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "timestamp": _timestamp(record.created), "level": record.levelname.lower(), **self._who,
        }  # fmt: skip
        if self._place is not None:
            line["step"], line["phase"] = self._place.position()
        if (event := getattr(record, "event", None)) is not None:
            line["event"] = text(event)
        line["message"] = _message(record)[:MESSAGE_LIMIT]
        line["logger"] = record.name
        if fields := _fields(record):
            line["fields"] = fields
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)[-4 * MESSAGE_LIMIT :]  # the end names the error
        try:
            return json.dumps(line, default=text, skipkeys=True, allow_nan=False)  # ASCII: surrogates have no UTF-8
        except Exception:  # noqa: BLE001 - NaN inside a field, a field inside itself, a mapping that raises
            return json.dumps({**line, "fields": {key: text(value) for key, value in fields.items()}})


def _timestamp(created: float) -> str:
    return datetime.fromtimestamp(created, timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - arguments that do not fit the text, or a __str__ that raises
        return f"{text(record.msg)} (not formatted: {text(error)})"


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """Return what `extra` carried: the mapping `fields`, and every attribute that logging does not know."""
    given = getattr(record, "fields", None)
    try:
        found = {text(key): value for key, value in given.items()} if isinstance(given, Mapping) else {}
    except Exception:  # noqa: BLE001 - a user's mapping may do anything
        found = {}
    found |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
    return {key: _finite(value) for key, value in found.items()}


def _finite(value: object) -> object:
    """Return NaN and infinity as text: JSON has no such numbers."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def text(value: object) -> str:
    """Return what `str` makes of a value, the name of its type where that raises."""
    try:
        return str(value)[:MESSAGE_LIMIT]
    except Exception:  # noqa: BLE001 - a user's __str__ may do anything
        return f"<{type(value).__name__}>"
