"""Structured log lines on stderr: `time=… level=… msg="…" key=value`."""

from __future__ import annotations

import logging
import time
from typing import TextIO

LEVELS = ("debug", "info", "warning", "error")

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Logfmt(logging.Formatter):
    """Render a record and its `extra` fields as one line, whatever text they carry."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; an exception's traceback becomes one quoted value."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        pairs = [
            ("time", f"{stamp}.{int(record.msecs):03d}Z"),
            ("level", record.levelname.lower()),
            ("msg", record.getMessage()),
            *((name, value) for name, value in vars(record).items() if name not in _PLAIN),
        ]
        if record.exc_info:
            pairs.append(("exception", self.formatException(record.exc_info)))
        return " ".join(f"{name}={_value(value)}" for name, value in pairs)


def _value(value: object) -> str:
    text = str(value)
    if text and text.isascii() and text.isprintable() and not set(text) & set(' "=\\'):
        return text
    # Ranks choose run names and messages: a line break or an escape sequence must not leave the quotes.
    inner = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text.replace("\\", "\\\\"))
    return '"' + inner.replace('"', '\\"') + '"'


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Send this program's log to `stream` (stderr) from `level` (one of LEVELS) on."""
    output = logging.StreamHandler(stream)
    output.setFormatter(Logfmt())
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(level.upper())
