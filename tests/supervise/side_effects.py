"""Ends a process between any two of its side effects: before each call that changes something outside of it."""

from __future__ import annotations

import _posixsubprocess
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

CHANGES: frozenset[object] = frozenset({
    os.open, os.write, os.ftruncate, os.fsync, os.mkdir, os.rename, os.replace, os.unlink, os.chmod, os.kill, os.killpg,
    signal.pidfd_send_signal, _posixsubprocess.fork_exec,
})  # fmt: skip
"""What the supervisor changes anything with: files, processes, and what it says to others through pipes."""


class SideEffects:
    """Counts this thread's side effects, and ends the process with SIGKILL right before number `last`.

    Before one is after the one before, so that every moment between two of them can be tried.
    """

    def __init__(self, last: int | None = None, note: Callable[[str], None] = lambda _: None) -> None:
        self.count, self._last, self._note = 0, last, note
        self._is_paused = False

    def __enter__(self) -> SideEffects:
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing: somebody else does it."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def _seen(self, frame: FrameType, event: str, called: object) -> None:
        if event != "c_call" or self._is_paused or called not in CHANGES:
            return
        if self.count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        self._note(f"{frame.f_code.co_name}: {getattr(called, '__name__', '')}")
