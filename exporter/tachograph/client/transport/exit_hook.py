"""A hook for `sys.exit`: at the end of a process Python keeps the exit code from its `atexit` functions."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from tachograph.client.core.notice import raised_by_signal

_hook: Callable[..., Any] | None = None
_python_exit: Callable[..., Any] = sys.exit


def install(note: Callable[[SystemExit], None]) -> None:
    """Have `note` called with what `sys.exit` is about to raise in the main thread; in others it ends the thread only.

    `sys.exit` behaves as before. What looked it up earlier is not hooked: `from sys import exit`, `sys.exit(main())`.
    """
    global _hook, _python_exit
    if _hook is not None:
        return
    python_exit = sys.exit

    @functools.wraps(python_exit)
    def hook(*given: object, **named: object) -> object:
        try:
            return python_exit(*given, **named)  # type: ignore[arg-type]
        except SystemExit as error:
            if threading.current_thread() is threading.main_thread():
                _contained(note, error)
            raise

    _hook, _python_exit, sys.exit = hook, python_exit, hook  # type: ignore[assignment]


def remove() -> None:
    """Put the former `sys.exit` back, unless somebody has put another one over ours, which may call it."""
    global _hook
    if _hook is not None and sys.exit is _hook:
        _hook, sys.exit = None, _python_exit


def _contained(note: Callable[[SystemExit], None], error: SystemExit) -> None:
    try:
        note(error)
    except Exception as fault:
        if raised_by_signal(fault):
            raise
