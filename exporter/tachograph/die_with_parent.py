"""A process that the kernel ends when its parent ends, however the parent ends. Linux only (prctl(2)).

`python -m tachograph.die_with_parent PID COMMAND …` becomes COMMAND, and ends with its parent, which must be PID.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def die_with_parent(end_with: signal.Signals = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel send this process `end_with` once the thread that started it is gone.

    `parent` is the process id that must still be there; if it is not, this process ends at once. Raises OSError.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, end_with, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), end_with)


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` so that it ends when the calling process does."""
    return [sys.executable, "-m", "tachograph.die_with_parent", str(os.getpid()), *command]


def main() -> None:
    """Become the command after the first argument, which is the parent's process id."""
    die_with_parent(parent=int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
