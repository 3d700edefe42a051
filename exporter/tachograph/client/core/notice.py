"""The client's log messages: at most one line about each subject in the life of a process."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, TracebackType

LIMIT = 100
"""Subjects, so that wrong words made up without end cost neither memory nor log."""

SHOWN_LENGTH = 300

OUT = (MemoryError, RecursionError)
"""Out of memory or of stack: even logging it may be one call too many."""

_logged: set[str] = set()
_instead: Callable[[str, str], None] | None = None


def tell_instead(tell: Callable[[str, str], None]) -> None:
    """Have `tell` called with the subject and the text of each notice, none of which is logged from now on."""
    global _instead
    _instead = tell


def notice(subject: str, text: str, error: BaseException | None = None) -> None:
    """Log `tachograph: text`, and the error behind it, as a warning of the logger `tachograph`, once on each subject.

    The text has the prefix itself, since most programs' logs, and a program without any, do not show a logger's name.

    Never raises, whatever the program's log handlers do; if logging itself cannot be loaded, a later
    call tries again.
    """
    try:
        if subject in _logged or len(_logged) >= LIMIT:
            return
        _logged.add(subject)
        line = text if error is None else f"{text}: {shown(error)}"
        if _instead is not None:
            _instead(subject, line)
            return
        try:
            import logging  # late: it costs more than the rest of the client's imports, and most runs never need it
        except Exception:  # noqa: BLE001 - no free file descriptor, no memory
            _logged.discard(subject)
            return
        logging.getLogger("tachograph").warning(f"tachograph: {line}")
    except Exception as fault:
        if raised_by_signal(fault):
            raise


def shown(value: object) -> str:
    """Return the first line of a text, a number or an exception as it is read in a log, of anything else the type.

    The `repr` of a tensor would wait for its device, and that of a user's object may do anything.
    """
    kind = type(value)
    try:
        if kind in (str, int, float, bool, bytes) or issubclass(kind, BaseException):
            line, broken, _ = repr(value).partition("\\n")
            return line[:SHOWN_LENGTH] + ("…" if broken else "")
    except Exception as error:
        if raised_by_signal(error):
            raise
    return f"<{kind.__name__}>"


def raised_by_signal(error: BaseException) -> bool:
    """Return whether a signal handler of the program raised this: it is the program's own, wherever it struck."""
    trace = error.__traceback__
    if trace is None or trace.tb_next is None:  # raised right where it was caught
        return False
    return bool(signals_raising(error))


def signals_raising(error: BaseException) -> frozenset[int]:
    """Return the signals whose handlers raised this."""
    return _handled_in(_frames(error.__traceback__))


def signals_under_way() -> frozenset[int]:
    """Return the signals whose handlers call this."""
    return _handled_in(_callers(sys._getframe()))


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _handled_in(frames: Iterable[FrameType]) -> frozenset[int]:
    try:
        codes = {frame.f_code for frame in frames}
        numbers = signal.valid_signals()
        return frozenset(int(each) for each in numbers if _code_of(signal.getsignal(each)) in codes)
    except (*OUT, AttributeError, TypeError):  # or at the end, when modules have lost their contents
        return frozenset()


def _code_of(handler: object) -> CodeType | None:
    """Return the code that runs as a signal handler: a function's, also that of a partial, a method or an object."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not callable(handler):
        return None
    code: CodeType | None = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code
