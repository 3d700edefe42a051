"""Structured log lines on stderr: `time=… level=… msg="…" key=value`; each message at a bounded rate."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO, TypeVar

BURST = 64
"""Lines of one message that are logged in a row: a job starts and ends as many ranks as one user may have."""

REFILL_SECONDS = 60.0
"""Beyond that, one line of a message in this time, with the number of lines left out since the last."""

USERS = 4
"""Users whose lines of one message pass at the same time."""

MAX_MESSAGES = 256
"""Messages with a budget of their own, of which the exporter has fewer, and users' budgets."""

Key = TypeVar("Key")

MAX_CAUSES = 64
"""Causes that one OncePerMinute tells apart."""

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
    """The lines that one message may still log."""

    left: float
    refilled: float
    left_out: int = 0


class LogThrottle(logging.Filter):
    """Lets BURST lines of a message pass, then one a minute, which carries the number of lines left out.

    Of messages about a user (`uid`) that is each user's own, and USERS fit at a time: nobody's lines are lost in those
    of another.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._messages: dict[str, _Budget] = {}
        self._users: dict[tuple[str, str], _Budget] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is logged."""
        message, user = str(record.msg), getattr(record, "uid", None)
        budgets = [self._of(self._messages, message, 1 if user is None else USERS)]
        if user is not None and budgets[0].left >= 1:
            budgets.append(self._of(self._users, (message, str(user)), 1))
        if budgets[-1].left < 1:
            budgets[-1].left_out += 1
            return False
        if left_out := sum(budget.left_out for budget in budgets):
            record.left_out = left_out
        for budget in budgets:
            budget.left, budget.left_out = budget.left - 1, 0
        return True

    def _of(self, budgets: dict[Key, _Budget], key: Key, users: int) -> _Budget:
        """Return a budget: one line is regained per quiet minute, a whole burst in about an hour."""
        now, most = self._clock(), users * BURST
        budget = budgets.pop(key, None) or _Budget(most, now)
        budget.left = min(most, budget.left + users * (now - budget.refilled) / REFILL_SECONDS)
        budget.refilled = now
        budgets[key] = budget  # the last to be forgotten
        if len(budgets) > MAX_MESSAGES:
            del budgets[next(iter(budgets))]
        return budget


class OncePerMinute:
    """Logs the first line of a cause, and the next one a minute later with the number left out in between.

    For whatever others can make happen as often as they like.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._causes: dict[str, tuple[float, int]] = {}
        """For each cause: the time of its last line, and the number left out since."""

    def warning(self, cause: str, fault: BaseException | None = None, **fields: object) -> None:
        """Log a cause, with the traceback of `fault` where it is a bug of ours."""
        now = self._clock()
        last, left_out = self._causes.get(cause, (-REFILL_SECONDS, 0))
        if now - last < REFILL_SECONDS and cause in self._causes:
            self._causes[cause] = (last, left_out + 1)
            return
        if cause not in self._causes and len(self._causes) >= MAX_CAUSES:
            self._causes.pop(min(self._causes, key=lambda each: self._causes[each][0]))
        self._causes[cause] = (now, 0)
        more: dict[str, object] = {"not_logged": left_out} if left_out else {}
        self._log.warning(cause, exc_info=fault, extra={**fields, **more})


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Send this program's log to `stream` (stderr) from `level` (one of LEVELS) on."""
    output = logging.StreamHandler(stream)
    output.setFormatter(Logfmt())
    output.addFilter(LogThrottle())
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(level.upper())
