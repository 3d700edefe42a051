"""A small real exporter on a unix socket, and the means to run training processes against it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.client.core import notice as notices
from tachograph.client.core import pinned
from tachograph.client.recorder import Recorder
from tests import waiting
from tests.client.fake_cuda import Cuda

BLOCKED_IN_C = """
import ctypes
library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
library.pthread_mutex_lock(mutex)
line = sys._getframe().f_lineno + 5
def tell(main):
    while sys._current_frames()[main].f_lineno != line: time.sleep(0.01)
    say("ready")
threading.Thread(target=tell, args=[threading.get_ident()]).start()
library.pthread_mutex_lock(mutex)
"""
"""A program whose main thread runs no Python, and never will, as in a hung collective."""

Frame = dict[str, Any]
DEADLINE = 60.0


def wait_until(condition: Callable[[], Any], deadline: float = DEADLINE) -> Any:
    """Return the first true value of `condition`, or fail at the deadline."""
    return waiting.until(condition, deadline)


class Talk:
    """One connection, as the exporter saw it."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.rest = b""
        self.ended_at: float | None = None

    @property
    def frames(self) -> list[Frame]:
        """Every whole frame so far; fails on a torn one."""
        return [json.loads(line) for line in list(self.lines)]

    def of(self, kind: str) -> list[Frame]:
        """The frames of one type."""
        return [frame for frame in self.frames if frame["type"] == kind]


class Exporter:
    """Accepts ranks, answers hello with `answer` (None: never), keeps what they say; `stalled`, it reads nothing more.

    `descriptors` go with each answer. But what it was waiting for when it was stalled: it is `resting` after that.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answer: Frame | None = {"ok": True, "last_step": None}
        self.descriptors: tuple[int, ...] = ()
        self.stalled = threading.Event()
        self.resting = threading.Event()
        self.talks: list[Talk] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._server: socket.socket | None = None

    def start(self) -> None:
        """Listen."""
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(self.path))
        self._server.listen(8)
        self._spawn(self._accept, self._server)

    def stop(self) -> None:
        """Die: every connection ends, the socket file stays, as after a SIGKILL."""
        self.stalled.clear()
        if self._server is not None:
            self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
            self._server = None
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(DEADLINE)
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        self._threads.clear()

    def stall(self, recorder: Recorder) -> None:
        """Read what the recorder says next, and then nothing more."""
        self.resting.clear()
        self.stalled.set()
        wait_until(lambda: recorder.checkpoint_saved(step=0) or self.resting.is_set())

    def restart(self) -> None:
        """Come back on the same path."""
        self.path.unlink()
        self.start()

    def _spawn(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                sock, _ = server.accept()
            except OSError:
                return
            talk = Talk()
            self.talks.append(talk)
            self._sockets.append(sock)
            self._spawn(self._listen, sock, talk)

    def _listen(self, sock: socket.socket, talk: Talk) -> None:
        while True:
            while self.stalled.is_set():
                self.resting.set()
                time.sleep(0.01)
            try:
                data = sock.recv(65536)
            except OSError:
                data = b""
            if not data:
                talk.ended_at = time.monotonic()
                return
            *lines, talk.rest = (talk.rest + data).split(b"\n")
            for line in lines:
                talk.lines.append(line)
                if b'"hello"' in line and self.answer is not None:
                    with contextlib.suppress(OSError):  # it may have said bye and gone
                        socket.send_fds(sock, [json.dumps(self.answer).encode() + b"\n"], self.descriptors)

    def tell(self, line: Frame) -> None:
        """Send the rank that came last a line that it has not asked for."""
        self._sockets[-1].sendall(json.dumps(line).encode() + b"\n")

    def frames(self, kind: str = "state") -> list[Frame]:
        """All frames of a type, over all connections."""
        return [frame for talk in list(self.talks) for frame in talk.of(kind)]

    def wait_for(self, kind: str = "state", where: Callable[[Frame], Any] = bool, deadline: float = DEADLINE) -> Frame:
        """Return the first frame of a type for which `where` holds."""
        return wait_until(lambda: next(filter(where, self.frames(kind)), None), deadline)

    def next_state(self) -> Frame:
        """Return a state made after now."""
        now = time.time()
        return self.wait_for(where=lambda frame: frame["time"] > now)


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    """A listening exporter."""
    server = Exporter(tmp_path / "rank.sock")
    server.start()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def no_sender_left() -> Iterator[None]:
    """Whatever a test recorded with is closed at its end: a sender that goes on would log into the tests after it."""
    yield
    wait_until(lambda: all(thread.name != "tachograph" for thread in threading.enumerate()))


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No identity, socket or earlier log line from the machine the tests run on."""
    for variable in list(os.environ):
        if variable.startswith(("TACHOGRAPH", "SLURM", "OMPI", "PMI", "TORCHELASTIC", "CUDA_VISIBLE")):
            monkeypatch.delenv(variable)
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MPI_LOCALRANKID"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(notices, "_logged", set())


@pytest.fixture
def record(exporter: Exporter) -> Iterator[Callable[..., Recorder]]:
    """Makes recorders that speak to `exporter`, and closes them."""
    made: list[Recorder] = []

    def make(**arguments: Any) -> Recorder:
        recorder = Recorder(**{"socket": exporter.path, "run": "test", **arguments})
        made.append(recorder)
        return recorder

    yield make
    for recorder in made:
        recorder.close()


class Process:
    """A training process made of a few lines; `recorder` and `say(word)` are there already."""

    def __init__(self, exporter: Exporter, code: str, arguments: str = "", **environment: str) -> None:
        program = "\n".join(
            (
                "import os, signal, sys, threading, time",
                "from tachograph.client.recorder import Recorder",
                "say = lambda word: print(word, flush=True)",
                f"recorder = Recorder(run='test'{arguments})",
                textwrap.dedent(code),
            )
        )
        self.popen = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program],
            env={**os.environ, "TACHOGRAPH_SOCKET": str(exporter.path), **environment},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def hear(self, word: str) -> None:
        """Wait for the process to say a word."""
        assert self.popen.stdout is not None
        kill = threading.Timer(DEADLINE, os.killpg, (self.popen.pid, signal.SIGKILL))
        kill.start()
        line = self.popen.stdout.readline().strip()
        kill.cancel()
        assert line == word, self.popen.communicate()[1]

    def end(self) -> tuple[int, str]:
        """Return exit status and stderr."""
        _, errors = self.popen.communicate(timeout=90)
        return self.popen.returncode, errors


@pytest.fixture
def start(exporter: Exporter) -> Iterator[Callable[..., Process]]:
    """Starts training processes, and ends them with all their children."""
    started: list[Process] = []

    def begin(code: str, arguments: str = "", **environment: str) -> Process:
        started.append(Process(exporter, code, arguments, **environment))
        return started[-1]

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.popen.pid, signal.SIGKILL)
        process.popen.communicate()


@pytest.fixture(scope="session")
def train() -> Callable[[Recorder, int], None]:
    """Run some steps."""

    def run(recorder: Recorder, steps: int) -> None:
        for _ in recorder.data(range(steps)):
            with recorder.step() as step:
                with recorder.phase("forward"):
                    pass
                step.log(loss=2.0, grad_norm=0.5, learning_rate=1e-4)

    return run


@pytest.fixture
def until() -> Callable[..., Any]:
    """`wait_until`, for tests."""
    return wait_until


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """A `torch.cuda` in which copies take time."""
    fake = Cuda()
    torch = SimpleNamespace(cuda=fake, empty=fake.empty, inference_mode=contextlib.nullcontext)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(pinned, "_places", {})
    return fake
