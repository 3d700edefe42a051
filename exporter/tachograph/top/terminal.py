"""The terminal of a live view: its second screen, keys without enter, and only those lines written that changed."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from tachograph.top.keys import decoded

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = "\x1b[?25h\x1b[?1049l"
SMALLEST = (20, 6)


class HangUpError(Exception):
    """The terminal has hung up."""


class Terminal:
    """Standard output as a screen and standard input as keys, as a context manager; leaves both as they were.

    Without a terminal to read keys from there are none: Ctrl-C ends it.
    """

    def __init__(self) -> None:
        self._out = sys.stdout.fileno()
        self._in: int | None = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._encoding = sys.stdout.encoding
        self._shown: list[str] = []
        self._size = (0, 0)
        self._before: list[Any] | None = None
        self.entered = 0
        """How often the screen was taken, and lost what was on it."""

    def __enter__(self) -> Terminal:
        self._stopped = signal.signal(signal.SIGTSTP, self._stop)
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGTSTP, self._stopped)
        self._leave()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines now."""
        try:
            columns, lines = os.get_terminal_size(self._out)
        except OSError:
            columns, lines = 0, 0
        fallback = shutil.get_terminal_size() if not (columns and lines) else (columns, lines)
        return max(SMALLEST[0], fallback[0]), max(SMALLEST[1], fallback[1])

    def show(self, lines: Sequence[str]) -> None:
        """Write the lines that differ from what is there, each after clearing its own: at the right edge it is late."""
        if self.size != self._size:
            self._size, self._shown = self.size, []
            self._write("\x1b[2J")
        before = [*self._shown, *[""] * len(lines)]
        changed = [
            f"\x1b[{i + 1};1H\x1b[K{line}\x1b[0m"
            for i, line in enumerate(lines)
            if not self._shown or line != before[i]
        ]
        self._shown = list(lines)
        self._write("".join(changed))

    def keys(self, seconds: float) -> list[str]:
        """Wait for keys, at most so long, and return their names; raise HangUpError once the terminal has hung up."""
        if self._in is None:
            select.select([], [], [], seconds)
            return []
        if not select.select([self._in], [], [], seconds)[0]:
            return []
        try:
            data = os.read(self._in, 4096)
        except OSError as error:
            raise HangUpError from error
        if not data:
            raise HangUpError
        return list(decoded(data.decode(errors="replace")))

    def _enter(self) -> None:
        if self._in is not None:
            self._before = termios.tcgetattr(self._in)
            tty.setcbreak(self._in)
        self._size = (0, 0)
        self.entered += 1
        self._write(_ENTER)

    def _leave(self) -> None:
        try:
            self._write(_LEAVE)
            if self._in is not None and self._before is not None:
                termios.tcsetattr(self._in, termios.TCSADRAIN, self._before)
        except (OSError, termios.error):  # it has hung up: nothing is left to restore
            return

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Give the terminal back for as long as the shell has stopped us."""
        self._leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._enter()

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "replace")
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except OSError as error:
            raise HangUpError from error
