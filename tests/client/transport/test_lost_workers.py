"""The loss of a loader's worker is put down to the signal that ended it, although all that broke is a connection."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from typing import Any

import pytest

from tachograph.client.transport.failure_reason import describe

Loses = Callable[..., BaseException]


class Worker:
    """A process as multiprocessing has it: its exit code is None while it runs, and minus the signal that ended it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        self.pid = self._process.pid

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()

    def end(self, number: int) -> None:
        self._process.send_signal(number)


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    """Two workers that run."""
    made = [Worker(), Worker()]
    yield made
    for one in made:
        one._process.communicate()


@pytest.fixture
def loses(workers: list[Worker]) -> Loses:
    """Makes an exception that came through PyTorch's loader, from another one if given."""
    code = "def get(self, error, cause): raise error from cause"
    made: dict[str, Any] = {}
    exec(compile(code, "/x/site-packages/torch/utils/data/dataloader.py", "exec"), made)

    class Loader:
        _workers = workers

    def lose(error: BaseException, cause: BaseException | None = None) -> BaseException:
        with pytest.raises(type(error)) as caught:
            made["get"](Loader(), error, cause)
        return caught.value

    return lose


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a worker's end takes longer than a rank may wait for it."""
    monkeypatch.setattr("tachograph.client.transport.lost_workers.LONGEST_SECONDS", 60.0)


@pytest.mark.parametrize(
    ("number", "category"),
    [
        (signal.SIGTERM, "terminated"),
        (signal.SIGHUP, "terminated"),
        (signal.SIGINT, "interrupted"),
        (signal.SIGKILL, "data"),
    ],
)
@pytest.mark.parametrize("kind", [EOFError, ConnectionRefusedError])
@pytest.mark.usefixtures("patient")
def test_a_connection_that_broke(
    kind: type[Exception], number: int, category: str, loses: Loses, workers: list[Worker]
) -> None:
    """Which worker and which signal stand in the message, also if it can only be waited for a moment later."""
    workers[1].end(number)
    found, message = describe(loses(kind()))
    assert found == category
    assert message == (
        f"{kind.__name__}: DataLoader worker (pid {workers[1].pid}) was killed by {signal.Signals(number).name}"
    )


def test_a_worker_that_pytorch_has_waited_for(loses: Loses, workers: list[Worker]) -> None:
    """Then it says that one exited, and not how; an exit code is no signal."""
    workers[0].end(signal.SIGTERM)
    workers[0]._process.wait()
    text = f"DataLoader worker (pid(s) {workers[0].pid}) exited unexpectedly"
    category, message = describe(loses(RuntimeError(text), EOFError()))
    assert category == "terminated"
    assert message == f"RuntimeError: {text}; DataLoader worker (pid {workers[0].pid}) was killed by SIGTERM"


@pytest.mark.parametrize("error", [EOFError("shard 8 is cut short"), ValueError("bad row")])
def test_a_fault_of_the_data(error: BaseException, loses: Loses) -> None:
    """While the workers live, it is what it says."""
    assert describe(loses(error)) == ("data", f"{type(error).__name__}: {error}")


def test_a_handler_that_says_more(loses: Loses) -> None:
    """PyTorch's own handler of SIGCHLD may run only now: what it raises is the reason."""

    class LateError(EOFError):
        def __str__(self) -> str:
            os.kill(os.getpid(), signal.SIGCHLD)
            return ""

    def handler(*_: object) -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated. ")

    before = signal.signal(signal.SIGCHLD, handler)
    try:
        category, message = describe(loses(LateError()))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert (category, message.partition("(")[0]) == ("terminated", "RuntimeError: DataLoader worker ")


def test_the_workers_of_multiprocessing_say_so() -> None:
    """What is read of a worker is public."""
    process = get_context("spawn").Process()
    assert (process.pid, process.exitcode) == (None, None)
