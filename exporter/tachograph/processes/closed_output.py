"""Ends a command in one line or none whose output is closed, as in `tachograph top | head`, or finds no room."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence

from tachograph.processes.standard_streams import open_missing

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def exit_status(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run `command`; return its status, or what says that its output went nowhere.

    141, as for a program that SIGPIPE ends, if its output is closed; 74, which is no command's verdict, if its output
    finds no room on a disk.
    """
    open_missing()
    try:
        try:
            return command(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _discard_output()
        sys.stderr.write(f"tachograph: cannot write the output: {error.strerror}\n")
        return os.EX_IOERR


def _discard_output() -> None:
    """Send what is left of the output nowhere, or the interpreter complains at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
