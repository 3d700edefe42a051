"""Standard streams that a command can use: a scheduler's prolog, a daemon or `>&-` may start it with some closed."""

from __future__ import annotations

import os
import sys

STREAMS = ("stdin", "stdout", "stderr")


def open_missing() -> None:
    """Open /dev/null in place of each standard stream that is closed.

    Otherwise the next file or socket would get its number, and with it what libraries and children print; and `print`
    to a standard error that is missing writes to standard output.
    """
    for number, name in enumerate(STREAMS):
        mode = "w" if number else "r"
        if _closed(number):
            opened = os.open(os.devnull, os.O_WRONLY if number else os.O_RDONLY)
            if opened == number:
                os.set_inheritable(number, True)
            else:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115


def _closed(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return True
    return False
