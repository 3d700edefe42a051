"""A kernel log and a driver to watch: a FIFO in the place of /dev/kmsg, the C library of the lab in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tachograph.node.xid.counts import XidWatch
from tests import waiting

WATCHER = Path(__file__).with_name("watcher.py")


class Log:
    """The kernel's log; `clock` is the monotonic clock of its timestamps."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        os.mkfifo(path)
        self.path = path
        self.clock = clock
        self._file = os.open(path, os.O_RDWR)  # both, so that opening waits for nobody
        self._sequence = 0

    def line(self, text: str, *, ago: float = 0.0, priority: int = 4) -> None:
        """Write a record that happened so many seconds ago."""
        self._sequence += 1
        stamp = int((self.clock() - ago) * 1e6)
        self.raw(f"{priority},{self._sequence},{stamp},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:1b:00.0\n")

    def xid(self, xid: int, bus: str = "PCI:0000:1b:00", *, ago: float = 0.0) -> None:
        """Write an Xid as the driver does; 1b:00 is the first GPU of the made-up library."""
        self.line(f"NVRM: Xid ({bus}): {xid}, pid='<unknown>', name=<unknown>, made up", ago=ago)

    def raw(self, text: str) -> None:
        """Write any bytes."""
        os.write(self._file, text.encode())

    def close(self) -> None:
        """Close it."""
        os.close(self._file)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A kernel log that is written now."""
    made = Log(tmp_path / "kmsg", time.monotonic)
    yield made
    made.close()


@pytest.fixture(scope="session")
def until() -> Callable[..., Any]:
    """`until(condition)`: wait for it to be true and return what it gave."""
    return waiting.until


class Watch:
    """An XidWatch in a process of its own, with the real pynvml."""

    def __init__(self, environment: Mapping[str, str], kmsg: str, *, unprivileged: bool) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(WATCHER), kmsg, *(["unprivileged"] if unprivileged else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def _ask(self, word: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def counts(self, gpu: int = 0) -> dict[int, int]:
        """Return a GPU's Xids that happened: number -> count."""
        return self._counted("tachograph_gpu_xid_errors_total", gpu)

    def nonfatal(self, gpu: int = 0) -> dict[int, int]:
        """Return a GPU's Xids that were nonfatal: number -> count."""
        return self._counted("tachograph_gpu_xid_nonfatal_total", gpu)

    def _counted(self, family: str, gpu: int) -> dict[int, int]:
        rows = self._ask("rows")["rows"]
        return {
            int(labels[2]): value for name, labels, value in rows if name == family and labels[0] == str(gpu) and value
        }

    def trouble(self) -> str:
        """Return why no Xid can be seen."""
        return str(self._ask("rows")["trouble"])

    def notes(self) -> dict[str, str]:
        """Return the lines for the log."""
        notes: dict[str, str] = self._ask("rows")["notes"]
        return notes

    def reinitialise(self) -> None:
        """Shut NVML down and open it again, as the worker does after a driver reload."""
        self._ask("reinitialise")

    def close(self) -> None:
        """Close the watch, which must not wait for a driver call."""
        self._ask("close")

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def watch() -> Iterator[Callable[..., Watch]]:
    """Start watches: `watch(environment, kmsg)`; ended after the test."""
    started: list[Watch] = []

    def start(environment: Mapping[str, str], kmsg: object = "", *, unprivileged: bool = False) -> Watch:
        started.append(Watch(environment, str(kmsg), unprivileged=unprivileged))
        return started[-1]

    yield start
    for one in started:
        one.end()


def up_for_days() -> float:
    """A monotonic clock of a machine that is older than the one this test runs on."""
    return time.monotonic() + 1e6


@pytest.fixture
def kernel_watch(log: Any) -> Iterator[XidWatch]:
    """A watch on the kernel's log alone, where the driver is not loaded; closed after the test."""
    log.clock = up_for_days
    watch = XidWatch(None, str(log.path), clock=up_for_days)
    yield watch
    watch.close()
