"""The stacks of a rank that cannot speak: whose are asked for and when, and how they are read, whatever they hold."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.node.ranks.stack_memory import (
    LEAST_SWITCHES,
    MAX_TASKS,
    TASKS_AT_ONCE,
    RankThreads,
    StackMemory,
    StuckProcess,
    where_in,
)
from tachograph.wire import MAX_WHERE_BYTES, STACKS_BEGIN, STACKS_BYTES

TRAINING, SENDING, PID = 0x7FB0C6A8A740, 12, 4242
DUMP = """\
Current thread 0x00007fb0c5dff6c0 (most recent call first):
  File "/venv/lib/python3.12/site-packages/tachograph/client/transport/sender.py", line 188 in _wait
  File "/usr/lib/python3.12/threading.py", line 1002 in _bootstrap

Thread 0x00007fb0c6a8a740 [MainThread] (most recent call first):
  File "/usr/lib/python3.12/re/__init__.py", line 166 in match
  File "/venv/lib/python3.12/site-packages/datasets/load.py", line 7 in load
  File "/home/eve/say \"hi\"/data.py", line 88 in load_shard
  File "/home/eve/train.py", line 140 in <module>

Thread 0x00007fb0c6a8a750 (most recent call first):
  File "/home/eve/other.py", line 1 in other
"""


@pytest.fixture
def memory() -> Iterator[StackMemory]:
    made = StackMemory()
    yield made
    made.sent()
    made.close()


class Proc:
    """A folder like /proc with one process of two threads; that of the sender has a number of its own namespace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.switches = 1000
        self.state = "S (sleeping)"
        self.write()

    def write(self, switches: int = 0) -> None:
        self.switches += switches
        own = self.folder / str(PID)
        for task, inner in ((PID, 1), (PID + 5, SENDING)):
            place = own / "task" / str(task)
            place.mkdir(parents=True, exist_ok=True)
            found = f"State:\t{self.state}\nNSpid:\t{task}\t{inner}\nvoluntary_ctxt_switches:\t{self.switches}\n"
            (place / "status").write_text(found)
        (own / "status").write_text(f"Name:\tpython3\nState:\t{self.state}\n")


class RankSide:
    """What the process of a rank does with the memory."""

    def __init__(self, memory: StackMemory) -> None:
        self.memory, self.pipe = memory.for_rank

    def waits(self, does: bool = True) -> None:
        os.pwrite(self.memory, bytes([does]), 0)

    def leaves(self, text: str = DUMP) -> None:
        os.pwrite(self.memory, text.encode(), STACKS_BEGIN)

    @property
    def requests(self) -> int:
        try:
            return len(os.read(self.pipe, 99))
        except BlockingIOError:
            return 0


class Looks(StuckProcess):
    """A process that is looked at once a second."""

    now = 100.0

    def after(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.look(self.now)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.fixture
def rank(memory: StackMemory) -> RankSide:
    return RankSide(memory)


@pytest.fixture
def process(memory: StackMemory, proc: Proc) -> Looks:
    return Looks(PID, RankThreads(TRAINING, SENDING), memory, proc.folder)


def test_who_waits_for_pythons_lock_is_asked_once_and_shown_where_it_is(
    process: Looks, proc: Proc, rank: RankSide
) -> None:
    """Its sender thread says that it waits and wakes up all the time; once it speaks again, all of that is over."""
    rank.waits()
    process.after()
    assert rank.requests == 0
    proc.write(LEAST_SWITCHES)
    process.after(0.9)
    assert rank.requests == 0
    for _ in range(3):
        proc.write(2 * LEAST_SWITCHES)
        process.after()
    assert (rank.requests, process.where) == (1, "")
    rank.leaves()
    process.after()
    assert process.where == "data.py:88 load_shard, in __init__.py:166 match"
    process.after()
    assert rank.requests == 0
    process.go_on()
    assert (process.where, process.state) == ("", "")
    process.after()
    proc.write(LEAST_SWITCHES)
    process.after()
    assert rank.requests == 1


@pytest.mark.parametrize(("says", "switches"), [(True, LEAST_SWITCHES - 1), (True, 0), (False, 200)])
def test_one_that_may_run_is_left_alone(process: Looks, proc: Proc, rank: RankSide, says: bool, switches: int) -> None:
    """Its frames cannot be read safely: it is stopped or frozen, sleeps otherwise, or was not waiting for the lock."""
    rank.waits(says)
    for _ in range(5):
        process.after()
        proc.write(switches)
    assert rank.requests == 0


def test_a_stopped_one_says_so(process: Looks, proc: Proc) -> None:
    """In the kernel's words; it writes nothing."""
    proc.state = "T (stopped)"
    proc.write()
    process.after()
    assert (process.state, process.where) == ("T (stopped)", "")


class CountingProc(Proc):
    """One of a process of many threads, which counts how often the status of one is read."""

    def __init__(self, folder: Path, threads: int) -> None:
        super().__init__(folder)
        for number in range(threads):
            place = folder / str(PID) / "task" / str(PID + 100 + number)
            place.mkdir()
            (place / "status").write_text(f"State:\tS\nNSpid:\t{PID + 100 + number}\t{100 + number}\n")


def test_a_look_reads_few_files_however_many_threads_there_are(
    memory: StackMemory, tmp_path: Path, rank: RankSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender is searched for over several looks, then remembered; one that is not there is given up."""
    reads: list[Path] = []
    read = Path.read_text

    def counted(path: Path, *arguments: Any, **more: Any) -> str:
        reads.append(path)
        return read(path, *arguments, **more)

    proc = CountingProc(tmp_path, MAX_TASKS // 2)
    monkeypatch.setattr(Path, "read_text", counted)
    for sender, found in ((SENDING, True), (99_999, False)):
        looks = Looks(PID, RankThreads(TRAINING, sender), memory, proc.folder)
        rank.waits()
        most = 0
        for _ in range(MAX_TASKS // TASKS_AT_ONCE + 10):
            reads.clear()
            looks.after()
            proc.write(2 * LEAST_SWITCHES)
            most = max(most, len(reads))
        assert most <= TASKS_AT_ONCE + 2
        assert len(reads) <= 2, "found or given up"
        assert (rank.requests == 1) is found


@pytest.mark.parametrize("pid", [0, 4243])
def test_a_process_that_cannot_be_seen(memory: StackMemory, proc: Proc, rank: RankSide, pid: int) -> None:
    """Of another pid namespace, or gone: nothing is known, and nobody asked."""
    unseen = Looks(pid, RankThreads(TRAINING, SENDING), memory, proc.folder)
    rank.waits()
    for _ in range(3):
        unseen.after()
    assert (unseen.state, unseen.where, rank.requests) == ("", "", 0)


def test_without_memory_its_state_is_known_all_the_same(proc: Proc) -> None:
    """As of a client of another language."""
    other = Looks(PID, None, None, proc.folder)
    other.after()
    assert (other.state, other.where) == ("S (sleeping)", "")


def test_where_a_thread_is() -> None:
    """Innermost line of user's code; a thread without any, and one that is not there."""
    assert where_in(DUMP, TRAINING + 16) == "other.py:1 other"
    assert where_in(DUMP, 0x7FB0C5DFF6C0) == "sender.py:188 _wait"
    assert where_in(DUMP, 1) == ""
    assert where_in("", TRAINING) == ""


@given(st.text() | st.text(alphabet=' FileTnhred0x7fb",1in\n(.)/').map(lambda text: f"{DUMP[:40]}{text}"))
def test_any_text_is_read_without_harm(text: str) -> None:
    """A rank's user can write what they like: what is shown is short and printable."""
    for thread in (TRAINING, 0x7FB0C5DFF6C0, 0):
        found = where_in(text, thread)
        assert found.isprintable()
        assert len(found.encode()) <= MAX_WHERE_BYTES
    for line in text.splitlines():
        hostile = where_in(f'Thread 0x1 (most recent call first):\n  File "{line}", line 7 in {line}\n', 1)
        assert hostile.isprintable()
        assert len(hostile.encode()) <= MAX_WHERE_BYTES


def test_the_memory_neither_grows_nor_shrinks(memory: StackMemory, rank: RankSide) -> None:
    """Nor can it be made to: what a rank may write is bounded, and it is freed with the last who has it."""
    for size in (0, STACKS_BYTES + 1, 2**30):
        with pytest.raises(PermissionError):
            os.ftruncate(rank.memory, size)
    with pytest.raises(PermissionError):
        os.pwrite(rank.memory, b"x", STACKS_BYTES)
    os.pwrite(rank.memory, b"\xff" * (STACKS_BYTES - STACKS_BEGIN), STACKS_BEGIN)
    assert len(memory.stacks()) == STACKS_BYTES - STACKS_BEGIN


def test_a_system_without_such_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more descriptors, or forbidden: an OSError, and nothing stays open."""
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - names only

    def full(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pipe2", full)
    with pytest.raises(OSError, match="Too many"):
        StackMemory()
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208


def test_closed_memory_asks_and_reads_nothing(memory: StackMemory) -> None:
    """As the process of a rank whose connection has ended."""
    closed = StackMemory()
    closed.sent()
    closed.close()
    closed.close()
    closed.ask()
    assert (closed.rank_waits, closed.stacks()) == (False, "")


def test_a_real_thread_that_waits_for_the_lock_wakes_up_all_the_time() -> None:
    """The mark by which it is known: 5 ms, as `sys.setswitchinterval` has it."""
    program = (
        "import ctypes, sys, threading, time\n"
        "def send():\n  while True: time.sleep(0.1)\n"
        "threading.Thread(target=send, daemon=True).start()\n"
        "print(threading.enumerate()[1].native_id, flush=True)\n"
        "time.sleep(float(sys.argv[1])); ctypes.PyDLL(None).sleep(60)"
    )
    switches: dict[str, int] = {}
    for running in ("60", "0"):
        with subprocess.Popen([sys.executable, "-c", program, running], stdout=subprocess.PIPE, text=True) as rank:
            assert rank.stdout is not None
            threads = RankThreads(1, int(rank.stdout.readline()))
            process = StuckProcess(rank.pid, threads, None)
            first = process._voluntary_switches()
            threading.Event().wait(1.5)
            last = process._voluntary_switches()
            assert first is not None
            assert last is not None
            switches[running] = last - first
            rank.kill()
    assert switches["60"] < LEAST_SWITCHES < switches["0"]
