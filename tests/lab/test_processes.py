"""Child processes are stopped when they must be, whatever happens to their parent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tachograph_lab.processes import PORTS, RECORD, Children, ProcessError, answers, free_port, stop_recorded

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)",
]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_leaving_the_block_ends_all(tmp_path: Path) -> None:
    """Nothing runs after the `with`, also when it ends with an exception."""
    pids: list[int] = []

    def fail() -> None:
        with Children(tmp_path) as children:
            pids.extend(children.start(name, SLEEP).pid for name in ("one", "two"))
            assert all(map(alive, pids))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not any(map(alive, pids))
    assert not (tmp_path / RECORD).exists()


def test_the_deaf_are_killed(tmp_path: Path) -> None:
    """A process that ignores SIGTERM gets SIGKILL after the grace."""
    with Children(tmp_path) as children:
        child = children.start("deaf", DEAF)
        child.wait_until(lambda: child.tail() == "deaf", 60)
        child.stop(grace=0.1)
        assert child.process.returncode == -signal.SIGKILL


def test_a_process_that_ends_early_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    """Waiting for a process that ends raises at once, with the end of its output."""
    with Children(tmp_path) as children:
        child = children.start("brief", [sys.executable, "-c", "print('no such flag'); raise SystemExit(3)"])
        with pytest.raises(ProcessError, match="brief ended with status 3:\nno such flag"):
            child.wait_until(lambda: False, 60)


def test_a_process_that_is_never_ready_is_told(tmp_path: Path) -> None:
    """Waiting has a time limit."""
    with Children(tmp_path) as children, pytest.raises(ProcessError, match="slow was not ready after 0 s"):
        children.start("slow", SLEEP).wait_until(lambda: False, 0.1)


def test_no_orphan_when_the_parent_is_killed(tmp_path: Path) -> None:
    """SIGKILL to the parent ends its children: the kernel does it, no clean-up code has to run."""
    script = (
        "import pathlib, sys, time\n"
        "from tachograph_lab.processes import Children\n"
        "command = [sys.executable, '-c', 'print(1, flush=True); import time; time.sleep(60)']\n"
        "print(Children(pathlib.Path(sys.argv[1])).start('sleep', command).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert within(60, lambda: (tmp_path / "sleep.log").read_text() == "1\n")
        parent.kill()
    assert within(60, lambda: not alive(pid))


def test_kept_processes_are_stopped_by_their_record(tmp_path: Path) -> None:
    """With `keep` they outlive a clean exit, and `stop_recorded` stops them, the last first."""
    with Children(tmp_path, keep=True) as children:
        running = [children.start("one", SLEEP), children.start("two", SLEEP)]
    try:
        assert all(child.running for child in running)
        assert stop_recorded(tmp_path) == ["two", "one"]
        assert not any(alive(child.pid) for child in running)
        assert stop_recorded(tmp_path) == []
    finally:
        for child in running:
            child.process.kill()
            child.process.wait()


def test_a_failed_start_keeps_nothing(tmp_path: Path) -> None:
    """`keep` holds only after a clean exit."""
    pids: list[int] = []

    def fail() -> None:
        with Children(tmp_path, keep=True) as children:
            pids.append(children.start("one", SLEEP).pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not alive(pids[0])


def test_another_process_with_the_number_is_spared(tmp_path: Path) -> None:
    """A recorded pid that belongs to another process by now is left alone."""
    (tmp_path / RECORD).write_text(json.dumps([["old", os.getpid(), "1"], ["gone", 2**22 + 1, None]]))
    assert stop_recorded(tmp_path) == []


def test_answers_only_for_a_server() -> None:
    """A closed port does not answer."""
    assert not answers("http://127.0.0.1:1/")


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four ports one is listened on, one is another process's and two are free; then there is none."""
    first = PORTS.start - 4 - 4 * (os.getpid() % 1000)  # nobody else's, also when the tests run twice at a time
    four = range(first, first + 4)
    code = (
        "import sys, time; from tachograph_lab import processes; "
        f"processes.PORTS = {four!r}; print(processes.free_port(), flush=True); time.sleep(60)"
    )
    with (
        socket.create_server(("127.0.0.1", four[0])),
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other,
    ):
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        monkeypatch.setattr("tachograph_lab.processes.PORTS", four)
        ours = {free_port(), free_port()}
        assert ours == set(four) - {four[0], theirs}
        with pytest.raises(OSError, match=f"no free port from {four[0]} to {four[-1]}"):
            free_port()
        other.kill()
