"""Whatever answers at the exporter's socket, a rank goes on, leaks nothing, and finds a good one again."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tachograph.wire import STACKS_BYTES

DEADLINE = 90.0
MOST_BYTES = 8 * 2**20
"""By which the rank may grow, however long it listens: the allocator's own."""

PROGRAM = """
import os, sys, time
from tachograph.client.core import notice
from tachograph.client.recorder import Recorder
from tachograph.client.transport import exporter_socket, sender
sender.FIRST_RETRY_SECONDS = sender.LAST_RETRY_SECONDS = 0.002
recorder = Recorder(run="ears")
while not recorder.received: time.sleep(0.01)
def size(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
for line in sys.stdin:
    for number in range(20):
        with recorder.step() as step: step.log(loss=1.0)
    print(recorder._calls.state.step.completed, len(os.listdir("/proc/self/fd")), size(), flush=True)
recorder.close()
"""
GOOD = b'{"ok":true,"last_step":7}\n'
FILES = ("memory", "unsealed", "small", "pipe", "writer", "file", "socket", "null")
Talk = list[tuple[str, Any]]
"""What is done with a connection: `("say", bytes)`, `("send", descriptors)`, `("hear", most bytes)`, `("end", how)`."""


class Ear:
    """A rank in a process of its own, and the socket that it connects to."""

    def __init__(self, folder: Path) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / "rank.sock"))
        self._server.listen(16)
        self._server.settimeout(DEADLINE)
        self._files = dict(zip(FILES, _files(folder), strict=True))
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM],
            env={**os.environ, "TACHOGRAPH_SOCKET": str(folder / "rank.sock"), "TACHOGRAPH_BLACKBOX": "0"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.answer_well()
        for _ in range(3):  # what is imported late, and the first blocks of memory
            self.look()
        _, self._descriptors, self._bytes = self.look()

    def talk(self, talk: Talk) -> None:
        """Accept the rank's next connection and do all this with it."""
        connection = self._accept()
        with contextlib.closing(connection), contextlib.suppress(OSError):  # it may have left
            connection.settimeout(0.2)
            for action, what in talk:
                if action == "say":
                    connection.sendall(what)
                elif action == "send":
                    numbers = [self._files[name] for name in what]
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers))]
                    connection.sendmsg([GOOD], rights if numbers else [])
                elif action == "hear":
                    connection.recv(what)
                else:
                    connection.shutdown(what)

    def answer_well(self) -> None:
        """Be an exporter: the rank says hello, and then its state."""
        end = time.monotonic() + DEADLINE
        while True:
            connection, heard = self._accept(), b""
            connection.settimeout(1.0)
            with contextlib.suppress(OSError):
                while b'"state"' not in heard:
                    if b'"hello"' in heard:
                        connection.sendall(GOOD)
                    if not (part := connection.recv(65536)):
                        break
                    heard += part
            connection.close()
            if b'"state"' in heard:
                return
            assert time.monotonic() < end, "the rank does not come back"

    def look(self) -> tuple[int, int, int]:
        """Return steps, open descriptors and bytes of the rank, which makes 20 steps first."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        steps, descriptors, resident = map(int, self._process.stdout.readline().split())
        return steps, descriptors, resident

    def check(self) -> None:
        """Fail unless the rank is as it was."""
        self.answer_well()
        end = time.monotonic() + DEADLINE
        while self.look()[1] > self._descriptors + 1:  # a connection that is just being made
            assert time.monotonic() < end, "the rank keeps descriptors"
            time.sleep(0.05)
        assert self.look()[2] < self._bytes + MOST_BYTES, "the rank keeps memory"

    def close(self) -> int:
        """Let the rank end, and return its exit code."""
        threading.Thread(target=self._drain, daemon=True).start()
        self._process.communicate(timeout=DEADLINE)
        self._server.close()
        for number in self._files.values():
            os.close(number)
        return self._process.returncode

    def _accept(self) -> socket.socket:
        assert self._process.poll() is None, "the rank has ended"
        return self._server.accept()[0]

    def _drain(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._server.accept()[0].close()


def _files(folder: Path) -> Iterator[int]:
    """Make descriptors of each kind: what the exporter sends, and what it never does."""
    for size, seals in ((STACKS_BYTES, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK), (STACKS_BYTES, 0), (64, 0)):
        memory = os.memfd_create("ears", os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, size)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
        yield memory
    yield from os.pipe()
    yield os.open(folder / "file", os.O_RDWR | os.O_CREAT)
    yield socket.socket().detach()
    yield os.open(os.devnull, os.O_RDWR)


values = st.sampled_from(
    [
        "true",
        "false",
        "null",
        "1",
        '"x"',
        "[]",
        "{}",
        "1e999",
        "-1",
        "NaN",
        "9" * 5000,
        "[" * 3000,
        '"' + "x" * 9000 + '"',
        '"\\ud800"',
        "2" * 18,
    ]
)
keys = st.sampled_from(["ok", "last_step", "ended", "run", "capture", "error", "x"])
objects = st.lists(st.tuples(keys, values), max_size=5).map(
    lambda pairs: ("{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in pairs) + "}\n").encode()
)
asks = st.text(max_size=20).map(lambda text: json.dumps({"ok": True, "capture": text}).encode() + b"\n")
said = (
    objects
    | asks
    | st.sampled_from([GOOD, GOOD[:9], b"\n", b"\x00" * 100, b"x" * 20000, GOOD * 2000, b"[" * 9000 + b"\n"])
    | st.binary(max_size=300)
)
actions = (
    st.tuples(st.just("say"), said)
    | st.tuples(st.just("say"), said)
    | st.tuples(st.just("send"), st.lists(st.sampled_from(FILES), max_size=6))
    | st.tuples(st.just("send"), st.lists(st.sampled_from(FILES), min_size=100, max_size=200))
    | st.tuples(st.just("hear"), st.sampled_from([1, 300, 65536]))
    | st.tuples(st.just("end"), st.sampled_from([socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR]))
)
talks = st.lists(actions, max_size=12)


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    """A rank that listens."""
    made = Ear(tmp_path)
    yield made
    assert made.close() == 0


def test_no_answer_harms_a_rank(fuzz: Callable[..., None], ear: Ear) -> None:
    """It steps on, and sends its state once somebody answers well; its descriptors and its memory are as before."""

    def check(talk: Talk) -> None:
        for _ in range(3):  # as it comes back each time
            ear.talk(talk)
        ear.check()

    fuzz(check, talks, examples=25, share=0.2)


def test_an_exporter_that_never_stops_costs_no_more_than_one_that_does(ear: Ear) -> None:
    """However much it says, a rank reads eight kilobytes ten times a second."""
    connection = ear._accept()
    connection.settimeout(0.1)
    taken, end = 0, time.monotonic() + 2
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            taken += connection.send(GOOD * 1000)
    connection.close()
    assert taken < 2**20, "what the kernel keeps, and 160 KiB"
    ear.check()
