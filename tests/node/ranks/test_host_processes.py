"""Processes that outlive the training, or are ended by others when it is over: what the program said stands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

WORKER = """
import os, signal, sys, time
from tachograph.client.recorder import Recorder
def train(run, rank=0):
    recorder = Recorder(run=run, rank=rank, world_size=2)
    while not recorder._calls.sender._answered: time.sleep(0.01)
    for _ in range(3):
        with recorder.step(): pass
    recorder.close()
    return rank
def say(word): print(word, flush=True)
"""


@pytest.fixture(scope="module")
def running(exporter_at: Callable[..., Any]) -> Any:
    return exporter_at("--no-gpu")


@pytest.fixture
def host(running: Any) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start programs in a session of their own, with `train` and `say`; they do not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        path = running.folder / f"host_{len(started)}.py"
        path.write_text(WORKER + textwrap.dedent(code))
        process = subprocess.Popen(
            [sys.executable, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "TACHOGRAPH_SOCKET": str(running.socket)}, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ends(running: Any, run: str) -> list[str]:
    """The reason for which each rank of a run has ended."""
    return [
        dict(labels)["reason"]
        for name, labels in running.scrape().values
        if name == "tachograph_rank_ended_timestamp_seconds" and ("run", run) in labels
    ]


def heard(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == word


@pytest.mark.parametrize(
    ("run", "end", "note"),
    [
        ("ray", "os._exit(1)", "exit code 1"),
        ("uncaught", "raise RuntimeError('of the host, not of the training')", "exit code 1"),
        ("nanny", "os.kill(os.getpid(), signal.SIGTERM)", "signal 15 (SIGTERM)"),
        ("slurm", "os.kill(os.getpid(), signal.SIGKILL)", "signal 9 (SIGKILL)"),
    ],
)
def test_a_worker_that_is_ended_after_the_training(running: Any, host: Any, run: str, end: str, note: str) -> None:
    """How its process ends is a note on the status page, and no failure: Ray ends its workers with status 1."""
    process = host(f"train({run!r}); {end}")
    process.wait(60)
    running.eventually(lambda: f"its process ended later: {note}".encode() in running.get("/")[2])
    assert ends(running, run) == ["finished"]
    assert running.scrape().value("rank_up", run=run, rank=0) == 1


@pytest.mark.parametrize(
    ("run", "pool"),
    [
        ("pool", "multiprocessing.Pool(2)"),
        ("executor", "concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context('spawn'))"),
    ],
)
def test_a_pool_whose_parent_ends_it(running: Any, host: Any, run: str, pool: str) -> None:
    """Workers that wait for more work when their parent terminates them, or is killed itself, have finished."""
    process = host(
        f"""
        import concurrent.futures, functools, multiprocessing
        if __name__ == "__main__":
            pool = {pool}
            list(getattr(pool, "imap", pool.map)(functools.partial(train, {run!r}), range(2), chunksize=1))
            say("trained")
            sys.stdin.readline()
            getattr(pool, "terminate", lambda: os.killpg(0, signal.SIGTERM))()
        """
    )
    heard(process, "trained")
    process.communicate("go on\n", 60)
    running.eventually(lambda: ends(running, run) == ["finished", "finished"])
    assert process.returncode in (0, -signal.SIGTERM)
    assert ends(running, run) == ["finished", "finished"]


def test_an_interpreter_that_goes_on(running: Any, host: Any) -> None:
    """A notebook's kernel trains once and again, raises in a later cell, and is killed in the end: it has finished."""
    process = host(
        """
        from code import InteractiveInterpreter
        sys.ps1 = "In: "
        interpreter = InteractiveInterpreter(globals())
        for line in sys.stdin:
            interpreter.runsource(line)
            say("done")
        """
    )
    for line in ("_ = train('notebook')", "_ = train('notebook')", "1 / 0"):
        print(line, file=process.stdin, flush=True)
        heard(process, "done")
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    running.eventually(lambda: b"its process ended later: signal 9 (SIGKILL)" in running.get("/")[2])
    assert ends(running, "notebook") == ["finished"]
