"""A tether: a process that the kernel ends when its parent ends, however the parent ends.

`python -m tachograph.lab.tether COMMAND …` becomes COMMAND, tethered to whoever started it. Linux only (prctl(2)).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def tether(end_with: signal.Signals = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel send this process `end_with` once the thread that started it is gone.

    `parent` is the process id that must still be there; if it is not, this process ends at once.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, end_with, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), end_with)


def tethered(command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` tethered to the calling process."""
    return [sys.executable, "-m", "tachograph.lab.tether", str(os.getpid()), *command]


def main() -> None:
    """Become the command after the first argument, which is the parent's process id."""
    tether(parent=int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
