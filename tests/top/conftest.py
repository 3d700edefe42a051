"""Fixtures for the tests of `top`: real exporters and ranks, a server of recorded pages, a terminal."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pty
import re
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.forking import Forking

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 120.0
COMMAND = "import sys; from tachograph.top.command import main; sys.exit(main(sys.argv[1:]))"


def module(path: str) -> ModuleType:
    """Return a file of the tests as a module: they are no package."""
    name = f"shared_by_top_{Path(path).stem}"
    specification = importlib.util.spec_from_file_location(name, ROOT / path)
    assert specification is not None
    assert specification.loader is not None
    found = importlib.util.module_from_spec(specification)
    sys.modules[name] = found  # its dataclasses ask for it
    specification.loader.exec_module(found)
    return found


node = module("tests/node/conftest.py")
crowds = module("tests/top/crowd.py")


class Exporter(node.Running):  # type: ignore[name-defined,misc]
    """An exporter that may take its time on a busy machine."""

    def eventually(self, condition: Callable[[], object], within: float = DEADLINE, pause: float = 0.01) -> object:
        return super().eventually(condition, within, pause)


@pytest.fixture(scope="module")
def exporter(forking: Forking) -> Iterator[Exporter]:
    """A whole exporter in a process of its own, in a folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="tachograph-top-") as folder:
        running = Exporter.__new__(Exporter)
        try:
            running.__init__(Path(folder), (), forking)  # type: ignore[misc]
            yield running
        finally:
            running.end()


@pytest.fixture
def top(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command in this process; return status, output and errors."""
    from tachograph.top.command import main

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


class Seen:
    """`top` on a terminal of its own, and what stands on its screen."""

    def __init__(self, arguments: Sequence[str], columns: int = 80, rows: int = 24, **environment: str) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.environ.pop("NO_COLOR", None)
            os.environ.update({"TERM": "xterm-256color", "PYTHONUTF8": "1", **environment})
            signal.signal(signal.SIGINT, signal.default_int_handler)  # as a terminal has it, whoever started the tests
            os.execv(sys.executable, [sys.executable, "-c", COMMAND, *arguments])
        self.raw = ""

    def press(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def until(self, *words: str, within: float = DEADLINE) -> None:
        """Read until all of these have been written."""
        end = time.monotonic() + within
        while not all(word in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw) for word in words):
            if time.monotonic() > end or not self._read():
                pytest.fail(f"{words} not in:\n{self.raw!r}")

    def ended(self, within: float = DEADLINE) -> int:
        """Read to the end and return the exit status, negative for a signal."""
        end = time.monotonic() + within
        while time.monotonic() < end and self._read():
            pass
        pid, status = os.waitpid(self.pid, 0)
        assert pid == self.pid
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.terminal)

    def _read(self) -> bool:
        """Read what there is for a moment; return whether the other side is still there."""
        if not select.select([self.terminal], [], [], 0.05)[0]:
            return True
        try:
            text = os.read(self.terminal, 65536).decode(errors="replace")
        except OSError:
            return False
        self.raw += text
        return bool(text)


@pytest.fixture
def see() -> Iterator[Callable[..., Seen]]:
    """Start `top` on a terminal."""
    started: list[Seen] = []

    def start(*arguments: str, **how: Any) -> Seen:
        started.append(Seen(arguments, **how))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture(scope="session")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Prometheus that holds a run that hangs and one with a straggler, a death and a NaN."""
    with crowds.standing(tmp_path_factory.mktemp("crowd")) as found:
        yield found
