"""Forked children: they hold nothing of the parent's and speak for nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]


@pytest.mark.torch
def test_a_killed_rank_is_seen_at_once_with_loader_workers_alive(
    exporter: Any, start: Start, until: Callable[..., Any]
) -> None:
    """Workers that PyTorch forked hold no copy of the socket: the connection ends with the parent."""
    process = start(
        """
        import torch
        class Slow(torch.utils.data.Dataset):
            def __len__(self): return 1000
            def __getitem__(self, index): time.sleep(0.05); return index
        while not recorder._calls.sender._answered: time.sleep(0.01)
        loader = torch.utils.data.DataLoader(Slow(), num_workers=2, multiprocessing_context="fork")
        for batch in recorder.data(loader):
            with recorder.step(): pass
            if recorder._calls.state.step.completed == 3: say("training"); workers = sorted(
                int(pid) for pid in open(f"/proc/self/task/{os.getpid()}/children").read().split())
            if recorder._calls.state.step.completed == 3: say(str(len(workers))); say(" ".join(map(str, workers)))
        """
    )
    process.hear("training")
    process.hear("2")
    workers = process.popen.stdout.readline().split()
    process.popen.send_signal(signal.SIGKILL)
    until(lambda: exporter.talks[0].ended_at)
    alive = [pid for pid in workers if _runs(pid)]
    assert alive, "the workers died first, so this showed nothing"
    assert exporter.frames("bye") == []


def _runs(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_child_is_silent_and_leaves_the_parent_speaking(exporter: Any, start: Start) -> None:
    """In a child every call does nothing; its end, by any way, is not the parent's; its descriptors are closed."""
    process = start(
        """
        def sockets(): return sum("socket:" in os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                                  if os.path.exists(f"/proc/self/fd/{n}"))
        while not recorder._calls.sender._answered: time.sleep(0.01)
        assert sockets() == 3, sockets()
        child = os.fork()
        if child == 0:
            assert sockets() == 0, sockets()
            for batch in recorder.data([1, 2]):
                with recorder.step() as step, recorder.phase("forward"): step.log(loss=1.0)
            recorder.checkpoint_saved(step=1); recorder.watch(None); recorder.close()
            assert recorder.last_step is None and not recorder._calls.records
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        child = os.fork()
        if child == 0:
            time.sleep(30)
        time.sleep(0.1); os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        with recorder.step(): pass
        say("alive"); time.sleep(30)
        """
    )
    process.hear("alive")
    state = exporter.wait_for(where=lambda frame: frame["metrics"]["steps_total"] == 1)
    assert (state["metrics"]["batches_total"], state["metrics"]["checkpoints_total"]) == (0, 0)
    assert (len(exporter.talks), exporter.frames("bye")) == (1, [])


def test_a_child_may_have_a_recorder_of_its_own(exporter: Any, start: Start) -> None:
    """A launcher that recorded may fork the ranks: each says hello under its own pid."""
    process = start(
        """
        while not recorder._calls.sender._answered: time.sleep(0.01)
        child = os.fork()
        mine = Recorder(run="child") if child == 0 else recorder
        while not mine._calls.sender._answered: time.sleep(0.01)
        if child: os.waitpid(child, 0)
        """
    )
    assert process.end() == (0, "")
    assert len({hello["pid"] for hello in exporter.frames("hello")}) == 2
    assert [frame["outcome"] for frame in exporter.frames("bye")] == ["finished", "finished"]


def test_programs_started_by_a_rank_hold_no_socket(exporter: Any, start: Start, until: Callable[..., Any]) -> None:
    """An exec'd child that outlives the rank does not keep the connection open."""
    process = start(
        """
        import subprocess
        while not recorder._calls.sender._answered: time.sleep(0.01)
        say(str(subprocess.Popen(["sleep", "60"], close_fds=False).pid)); time.sleep(60)
        """
    )
    child = process.popen.stdout.readline().strip()
    process.popen.send_signal(signal.SIGKILL)
    until(lambda: exporter.talks[0].ended_at)
    assert _runs(child), "it ended first, so this showed nothing"


def test_forks_while_connecting_leak_nothing(exporter: Any, start: Start) -> None:
    """Children forked at any moment of a reconnection hold no copy of a socket."""
    process = start(
        """
        from contextlib import suppress
        from tachograph.client.transport import sender
        sender.FIRST_RETRY_SECONDS = sender.LAST_RETRY_SECONDS = 0.001
        children, ready, (here, there) = [], 0, os.pipe()
        for _ in range(60):
            child = os.fork()
            if child == 0: os.write(there, b"!"); time.sleep(60); os._exit(0)
            children.append(child)
            with suppress(AttributeError, OSError):  # there is none, or it is not connected yet
                recorder._calls.sender._connection._socket.shutdown(2)
            time.sleep(0.005)
        while ready < len(children): ready += len(os.read(here, len(children)))
        leaks = sum("socket:" in os.readlink(f"/proc/{child}/fd/{n}") for child in children
                    for n in os.listdir(f"/proc/{child}/fd"))
        for child in children: os.kill(child, signal.SIGKILL)
        say(f"leaks {leaks}")
        """
    )
    process.hear("leaks 0")


SCRIPT = """
import multiprocessing, sys, time
from tachograph import Recorder
def say(word): print(word, flush=True)
recorder = Recorder(run="workers")  # as many scripts do, outside of main
def work(_):
    return recorder._calls.records
def train():
    own = Recorder(run="own")
    while not own.received: time.sleep(0.01)
if __name__ == "__main__":
    with multiprocessing.get_context("METHOD").Pool(2) as pool:
        assert pool.map(work, range(4)) == [False] * 4
        own = multiprocessing.get_context("METHOD").Process(target=train)
        own.start(); own.join()
    with recorder.step(): pass
    say("alive"); time.sleep(30)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_that_imports_the_script_again_is_no_rank(
    method: str, exporter: Any, tmp_path: Path, until: Callable[..., Any]
) -> None:
    """Else it could be there before the training is back, when an exporter is restarted, and take its place.

    One that makes a recorder of its own in what it was started for has one.
    """
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("METHOD", method))
    own = {**os.environ, "TACHOGRAPH_SOCKET": str(exporter.path)}
    with subprocess.Popen([sys.executable, script], env=own, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "alive\n"
            exporter.wait_for(where=lambda frame: frame["metrics"]["steps_total"] == 1)
        finally:
            process.kill()
    runs = [frame["run"] for frame in exporter.frames("hello")]
    assert runs.count("workers") == 1
    assert "own" in runs


@pytest.mark.torch
def test_a_loaders_worker_is_no_rank(exporter: Any, start: Start) -> None:
    """A data set that makes a recorder of its own, in whatever process it is."""
    process = start(
        """
        import torch
        class Own(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, index): return int(Recorder(run="own")._calls.records)
        for batch in torch.utils.data.DataLoader(Own(), num_workers=2, multiprocessing_context="fork"):
            assert batch.tolist() == [0]
        say("alive"); time.sleep(30)
        """
    )
    process.hear("alive")
    assert "own" not in {frame["run"] for frame in exporter.frames("hello")}
