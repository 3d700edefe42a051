"""Structured log lines on stderr: `time=… level=… msg="…" key=value`; of one message not more than a disk can bear."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

BURST = 64
"""Lines of one message that are logged at once: as many ranks as one user may have come and go with a job."""

REFILL_SECONDS = 60.0
"""After that, one line of a message in this time, with the number of those left out since."""

MAX_MESSAGES = 256
"""Messages that are told apart; our own texts are fewer."""

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


@dataclass
class _Budget:
    """What one message may still say."""

    left: float
    refilled: float
    left_out: int = 0


class Throttle(logging.Filter):
    """Lets BURST lines of a message pass, then one a minute; that one says how many were left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._budgets: dict[str, _Budget] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is logged."""
        now = self._clock()
        cause = str(record.msg)
        budget = self._budgets.get(cause)
        if budget is None:
            if len(self._budgets) >= MAX_MESSAGES:
                self._budgets.clear()
            budget = self._budgets[cause] = _Budget(BURST, now)
        # A burst is whole again after as many quiet minutes as it had lines, an hour; one line after one minute.
        budget.left = min(BURST, budget.left + (now - budget.refilled) / REFILL_SECONDS)
        budget.refilled = now
        if budget.left < 1:
            budget.left_out += 1
            return False
        budget.left -= 1
        if budget.left_out:
            record.left_out = budget.left_out
            budget.left_out = 0
        return True


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Send this program's log to `stream` (stderr) from `level` (one of LEVELS) on."""
    output = logging.StreamHandler(stream)
    output.setFormatter(Logfmt())
    output.addFilter(Throttle())
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(level.upper())
