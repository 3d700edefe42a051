"""A rank that nobody listens to: it goes on recording, for whoever comes later and for other places."""

from __future__ import annotations

import errno
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tachograph.client.core.steps import RING_LIMIT
from tachograph.client.recorder import Recorder
from tachograph.client.transport.exporter_socket import why_unreachable

Make = Callable[..., Recorder]
Until = Callable[..., Any]


class Kept:
    """A sink that keeps the last frame."""

    def __init__(self) -> None:
        self.metrics: Mapping[str, float] = {}

    def write(self, time: float, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics = metrics

    def close(self) -> None:
        pass


def test_no_step_is_lost_however_late_the_exporter(exporter: Any, record: Make, until: Until) -> None:
    """The rings are emptied every second: more steps than they hold are all in the histogram in the end."""
    exporter.stop()
    exporter.path.unlink()
    recorder = record()
    for _ in range(2):
        for _ in range(RING_LIMIT - 1):
            with recorder.step() as step:
                step.log(loss=1.0)
        until(lambda: not recorder._calls.state.step.records and not recorder._calls.state.step.logged)
    exporter.start()
    state = exporter.wait_for()
    steps = 2 * (RING_LIMIT - 1)
    tagged = sum(state["metrics"]["tagged_steps_total"].values())
    assert state["histograms"]["step_seconds"]["count"] + tagged == state["metrics"]["steps_total"] == steps
    assert state["dropped"] == 0


def test_sinks_are_written_without_an_exporter(exporter: Any, record: Make, until: Until) -> None:
    """Another place for the numbers does not depend on the first one."""
    exporter.stop()
    exporter.path.unlink()
    sink = Kept()
    recorder = record(sinks=[sink])
    with recorder.step() as step:
        step.log(loss=2.5)
    assert until(lambda: sink.metrics.get("steps_total")) == 1
    assert sink.metrics["loss"] == 2.5


def test_a_fact_found_later_is_told(exporter: Any, record: Make) -> None:
    """Counting FLOPs makes a convention known after the hello: the rank says hello again with it."""
    recorder = record()
    exporter.wait_for()
    recorder._calls.state.workload.facts["flops_convention"] = "measured"
    exporter.wait_for("hello", where=lambda frame: frame["facts"].get("flops_convention") == "measured")
    exporter.next_state()


def test_batches_of_an_evaluation_are_not_counted(exporter: Any, record: Make) -> None:
    """One rank that evaluates alone has not drifted: batches and waits are no training's, queue and workers neither."""

    class Loader:
        _workers = (1,)

        def __iter__(self) -> Loader:
            return self

        def __next__(self) -> int:
            time.sleep(0.01)  # a wait to be booked
            raise StopIteration

    recorder, loader = record(), Loader()
    for _ in recorder.data([1, 2]):
        pass
    before = recorder._calls.state.clock.phases["data"].seconds
    with recorder.phase("eval"):
        assert list(recorder.data([1, 2, 3])) == [1, 2, 3]
        assert not list(recorder.data(loader))
    metrics = exporter.next_state()["metrics"]
    assert metrics["batches_total"] == 2
    assert "data_worker_restarts_total" not in metrics
    assert recorder._calls.state.clock.phases["data"].seconds == before
    assert recorder._calls.state.clock.phases["eval"].seconds >= 0.01


def test_where_a_rank_stands(record: Make) -> None:
    """Logs ask for run, rank, step and phase."""
    recorder = record(run="llama", rank=5, world_size=8)
    assert (recorder.identity.run, recorder.identity.rank) == ("llama", 5)
    assert recorder.position() == (0, "init")
    with recorder.step(480), recorder.phase("backward"):
        assert recorder.position() == (480, "backward")


def test_where_there_is_no_exporter_it_says_how_to_start_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, until: Until
) -> None:
    """Once, with the path that was tried and the variable that names another."""
    recorder = Recorder(socket=tmp_path / "none.sock")
    until(lambda: caplog.records)
    recorder.close()
    (line,) = map(logging.LogRecord.getMessage, caplog.records)
    assert line.startswith(f"tachograph: no exporter at {tmp_path}/none.sock (")
    assert "start `tachograph exporter` on this node, or set TACHOGRAPH_SOCKET" in line


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own belong to one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def said_as_a_stranger(path: Path) -> str:
    """Return what a process logs that may not open the socket, having given up the rights of root."""
    program = """
import grp, logging, os, sys, time
from tachograph.client.core import notice
from tachograph.client.recorder import Recorder
if os.geteuid() == 0:
    os.setgid(65534)
    os.setgroups([])
    os.setuid(65534)
recorder = Recorder(socket=sys.argv[1])
while not notice._logged:
    time.sleep(0.01)
recorder.close()
"""
    command = [sys.executable, "-c", program, str(path)]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True, timeout=90).stderr.strip()


def test_a_closed_socket_is_not_a_missing_exporter(open_folder: Path) -> None:
    """The line names the mode and the group of what is closed, and what to change."""
    path = open_folder / "rank.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0o400)
        line = said_as_a_stranger(path)
    uid, group = 65534 if os.geteuid() == 0 else os.geteuid(), path.stat().st_gid
    assert line.startswith(f"tachograph: permission denied for the exporter at {path}: {path} has mode 0400 and group ")
    assert f"({group}); add uid {uid} to that group, or start the exporter with --socket-mode 0666" in line
    assert "no exporter" not in line


def test_a_policy_is_no_closed_socket(open_folder: Path) -> None:
    """Where modes allow it and the kernel does not, as under seccomp, no mode is to be changed."""
    path = open_folder / "rank.sock"
    path.touch(mode=0o666)
    said = why_unreachable(str(path), PermissionError(errno.EPERM, "Operation not permitted"))
    assert "seccomp" in said
    assert "mode 0666" not in said


def test_a_closed_folder_is_named(open_folder: Path) -> None:
    """Where it is not the socket that is closed but a folder on the way to it."""
    closed = open_folder / "closed"
    closed.mkdir(mode=0o600)
    line = said_as_a_stranger(closed / "run" / "rank.sock")
    assert f": {closed} has mode 0600 and group " in line
    assert "let others enter it (mode 0755)" in line
