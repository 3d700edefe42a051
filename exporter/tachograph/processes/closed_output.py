"""Ends a command quietly whose output nobody reads any more, as in `tachograph top | head`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence


def exit_status(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run `command`; return its status, or 141, as for a program that SIGPIPE ends, if its output is closed."""
    try:
        try:
            return command(arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return 128 + signal.SIGPIPE
