"""The client's log messages: at most one line about each subject in the life of a process."""

from __future__ import annotations

import signal

LIMIT = 100
"""Subjects, so that wrong words made up without end cost neither memory nor log."""

SHOWN_LENGTH = 300

OUT = (MemoryError, RecursionError)
"""Out of memory or of stack: even logging it may be one call too many."""

_logged: set[str] = set()


def notice(subject: str, text: str, error: BaseException | None = None) -> None:
    """Log `text`, and the error behind it, as a warning of the logger `tachograph`, once about each subject.

    Never raises, whatever the program's log handlers do; if logging itself cannot be loaded, a later
    call tries again.
    """
    try:
        if subject in _logged or len(_logged) >= LIMIT:
            return
        _logged.add(subject)
        line = text if error is None else f"{text}: {shown(error)}"
        try:
            import logging  # late: it costs more than the rest of the client's imports, and most runs never need it
        except Exception:  # noqa: BLE001 - no free file descriptor, no memory
            _logged.discard(subject)
            return
        logging.getLogger("tachograph").warning(line)
    except Exception as fault:
        if raised_by_signal(fault):
            raise


def shown(value: object) -> str:
    """Return text, a number or an exception as it is read in a log, and of anything else the type alone.

    The `repr` of a tensor would wait for its device, and that of a user's object may do anything.
    """
    kind = type(value)
    try:
        if kind in (str, int, float, bool, bytes) or issubclass(kind, BaseException):
            return repr(value)[:SHOWN_LENGTH]
    except Exception as error:
        if raised_by_signal(error):
            raise
    return f"<{kind.__name__}>"


def raised_by_signal(error: BaseException) -> bool:
    """Return whether a signal handler of the program raised this: it is the program's own, wherever it struck."""
    try:
        trace = error.__traceback__
        if trace is None or trace.tb_next is None:  # raised right where it was caught
            return False
        handlers = [signal.getsignal(number) for number in signal.valid_signals()]
        codes = {getattr(handler, "__code__", None) for handler in handlers if callable(handler)} - {None}
        while trace is not None:
            if trace.tb_frame.f_code in codes:
                return True
            trace = trace.tb_next
    except (*OUT, AttributeError, TypeError):  # or at the end, when modules have lost their contents
        pass
    return False
