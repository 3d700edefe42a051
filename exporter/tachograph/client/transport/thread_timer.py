"""A timer of the kernel that sends a signal to the thread that made it, once that thread has used some CPU time."""

from __future__ import annotations

import ctypes
import os
import threading
import time

_SIGEV_THREAD_ID = 4  # sigevent(3type)


class _Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("unused", ctypes.c_char * 64),
    )


class _Times(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("again", "again_ns", "seconds", "ns"))


class ThreadTimer:
    """Counts only while its thread runs or waits in short turns, as for Python's lock, and not while that is stopped.

    Raises OSError or AttributeError where the system has no such timer.
    """

    def __init__(self, number: int) -> None:
        self._library = ctypes.PyDLL(None, use_errno=True)  # Python's lock is kept: the calls take a microsecond
        if not hasattr(self._library, "timer_create"):  # glibc before 2.34
            self._library = ctypes.PyDLL("librt.so.1", use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _Event(number=number, notify=_SIGEV_THREAD_ID, thread=threading.get_native_id())
        self._call("timer_create", time.CLOCK_THREAD_CPUTIME_ID, ctypes.byref(event), ctypes.byref(self._timer))

    def start(self, seconds: float) -> None:
        """Send the signal after so much CPU time from now, once; 0: do not."""
        times = _Times(0, 0, int(seconds), int(seconds % 1 * 1e9))
        self._call("timer_settime", self._timer, 0, ctypes.byref(times), None)

    def close(self) -> None:
        """Remove the timer."""
        self._call("timer_delete", self._timer)

    def _call(self, name: str, *given: object) -> None:
        if getattr(self._library, name)(*given) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), name)
