"""How a process ends, as a bye frame says it: the outcome, the category of a failure, and one line of text."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tachograph.catalog.rank import END_SIGNALS, EXIT_CODE, SIGNAL_EXIT_CODES, WARNING_SIGNALS
from tachograph.client.core import batches
from tachograph.client.core.notice import signals_raising, signals_under_way
from tachograph.client.transport.lost_workers import LOADER, lost_worker
from tachograph.text.code_line import CodeLine

MESSAGE_LIMIT = 512
MOST_PLACES = 60
LONGEST_CHAIN = 8
"""Exceptions behind one another that are looked at."""

_LOADER_FILES = (LOADER, batches.__file__)
_COLLECTIVE = r"\bNCCL\b|nccl[A-Z]\w+Error|\b[Gg]loo\b|ProcessGroup|Connection closed by peer"
_NONFINITE = r"(?i)\b(nan|nans|inf|infinite|non-?finite)\b"

_CATEGORY_OF_OTHERS = "exception"
_CATEGORIES: tuple[tuple[str, Callable[[BaseException, str], bool]], ...] = (
    (
        "interrupted",
        lambda error, text: isinstance(error, KeyboardInterrupt) or _asked_to_end(error, text) == "interrupted",
    ),
    ("terminated", lambda error, text: _asked_to_end(error, text) == "terminated"),
    ("data", lambda error, text: "DataLoader worker" in text or _came_through_loader(error)),
    ("oom", lambda error, text: isinstance(error, MemoryError) or "out of memory" in text.lower()),
    ("collective", lambda error, text: type(error).__name__.startswith("Dist") or bool(re.search(_COLLECTIVE, text))),
    ("nonfinite", lambda error, text: bool(re.search(_NONFINITE, text))),
)
"""First match wins. A loader that runs out of memory is a data fault: that is where to look. One is not whose workers a
scheduler or a terminal ended, which signal whole process groups, nor one in which the program's own handler struck."""


class End(NamedTuple):
    """How a process ends; `exit_code` is given only where it ended by one, and not by an exception or a signal.

    `at_exit`: nobody said so, the process ends, and its exit code may show otherwise. `places`: the lines that the
    exception came through, the innermost first.
    """

    outcome: str
    category: str = ""
    message: str = ""
    exit_code: int | None = None
    at_exit: bool = False
    places: tuple[CodeLine, ...] = ()


FINISHED = End("finished")
FINISHED_AT_EXIT = End("finished", at_exit=True)


def end_by(error: BaseException) -> End:
    """Return how a process ends because of this exception; never raises."""
    if isinstance(error, SystemExit):
        try:
            return _end_by_exit(error)
        except Exception:  # noqa: BLE001 - as in `describe`
            return End("failed", EXIT_CODE, "exit code unknown")
    return End("failed", *describe(error), places=places_of(error))


def places_of(error: BaseException) -> tuple[CodeLine, ...]:
    """Return the lines that an exception came through, the innermost first, at most 60."""
    trace, found = error.__traceback__, deque[CodeLine](maxlen=MOST_PLACES)
    while trace is not None:
        code = trace.tb_frame.f_code
        found.appendleft(CodeLine(code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return tuple(found)


def _end_by_exit(error: SystemExit) -> End:
    """Return how a process ends by `sys.exit`: as failed if its exit code is not 0.

    The exception that was being handled is the likely reason, if it has a category of its own; it may also be an
    earlier one, inside whose handler the program went on. So it is only named after the exit code.
    """
    code = exit_code(error.code)
    if code == 0:
        return FINISHED_AT_EXIT
    asked = _asked_by(signals_raising(error) | signals_under_way()) or EXIT_CODE
    category, text = SIGNAL_EXIT_CODES.get(code, asked), f"exit code {code}"
    cause = error.__cause__ or error.__context__
    if cause is not None:
        cause_category, cause_text = describe(cause)
        if category == EXIT_CODE and cause_category != _CATEGORY_OF_OTHERS:
            category = cause_category
        text = f"{text} after {cause_text}"
    elif isinstance(error.code, str) and (line := _first_line(error.code)):
        text = f"{text}: {_redacted(line)}"
    return End("failed", category, text[:MESSAGE_LIMIT], code, places=places_of(cause or error))


def exit_code(given: object) -> int:
    """Return the exit code that Python makes of the argument of `sys.exit`: 1 for what is neither a number nor None."""
    if given is None:
        return 0
    return given & 0xFF if isinstance(given, int) else 1


def describe(error: BaseException) -> tuple[str, str]:
    """Return the category of an exception, and its type and first line in at most 512 characters; never raises."""
    try:
        try:
            return _describe(error)
        except Exception as raised:
            if not signals_raising(raised):
                raise
            return _describe(raised)  # PyTorch's handler of SIGCHLD, which says how the worker ended whose loss this is
    except Exception:  # noqa: BLE001 - a user's exception may do anything, and a process may be out of stack
        return _CATEGORY_OF_OTHERS, type(error).__name__[:MESSAGE_LIMIT]


def _describe(error: BaseException) -> tuple[str, str]:
    text = str.strip(str(error))
    line, lost = _first_line(text), lost_worker(_chain(error))
    if lost:
        line = f"{line}; {lost}" if line else lost
        text = f"{line}\n{text}"
    message = (f"{type(error).__name__}: {_redacted(line)}" if line else type(error).__name__)[:MESSAGE_LIMIT]
    return next((category for category, matches in _CATEGORIES if matches(error, text)), _CATEGORY_OF_OTHERS), message


def _redacted(line: str) -> str:
    from tachograph.text.redact import redact  # late: it costs 9 ms, and a run that ends well never needs it

    return redact(line)


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0].rstrip() if lines else ""


def _asked_to_end(error: BaseException, text: str) -> str | None:
    """Return how a scheduler or a terminal asked this process or its workers to end, if that is what the error says."""
    if by_text := _end_in(text):
        return by_text
    for each in _chain(error):
        if by_handler := _asked_by(signals_raising(each)):
            return by_handler
        if isinstance(each, KeyboardInterrupt):
            return "interrupted"
        if by_text := _end_in(_text(each)):
            return by_text
    return None


def _end_in(text: str) -> str | None:
    for number, end in END_SIGNALS.items():
        killed, code = f"killed by signal: {signal.strsignal(number)}", f"exit code {128 + number}"
        if any(part in text for part in (killed, code, signal.Signals(number).name)):
            return end
    return None


def _asked_by(signals: Iterable[int]) -> str | None:
    """Return how those ask to end who send these signals, None if none of them does."""
    return next((end for each in signals if (end := END_SIGNALS.get(each) or WARNING_SIGNALS.get(each))), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those behind it: also one that is left out where it is shown (`from None`)."""
    chain = [error]
    for each in chain:
        yield each
        for behind in (each.__cause__, each.__context__):
            if behind is not None and len(chain) < LONGEST_CHAIN and all(behind is not known for known in chain):
                chain.append(behind)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a user's exception may do anything, and is not the one that is described
        return ""


def _came_through_loader(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if any(part in trace.tb_frame.f_code.co_filename for part in _LOADER_FILES):
            return True
        trace = trace.tb_next
    return False
