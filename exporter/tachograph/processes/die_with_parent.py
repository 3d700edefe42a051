"""Has the kernel end a process when its parent ends, for whatever reason. Linux only, see prctl(2).

As a program, with arguments PID COMMAND …, it executes COMMAND, which ends with its parent process PID.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from tachograph.processes.own_process import own_process

PR_SET_PDEATHSIG = 1


def die_with_parent(end_with: signal.Signals = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel send this process `end_with` when the thread that started it ends; raise OSError.

    `parent` is the expected process id of the parent; if that has ended already, this process ends at once.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, end_with, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), end_with)


def begin_worker(parent: int) -> None:
    """Begin as a worker in a pool of process `parent`: it ends with that, even if that is killed, and on no Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        die_with_parent(parent=parent)


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` and ends with the calling process."""
    return own_process("tachograph.processes.die_with_parent", str(os.getpid()), *command)


def main() -> None:
    """Execute the command that follows the first argument, the process id of the parent."""
    die_with_parent(parent=int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
