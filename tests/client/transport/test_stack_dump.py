"""The stacks of a process that cannot speak, as an exporter gets them; and that nothing else comes of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.client.transport import stack_dump
from tachograph.client.transport.descriptors import OwnSocket
from tachograph.client.transport.exporter_socket import ExporterSocket
from tachograph.client.transport.stack_dump import SIGNAL, StackDump, is_possible
from tachograph.node.ranks.stack_memory import StackMemory, where_in

Start = Callable[..., Any]

CONNECTED = "while not recorder._calls.sender._stacks: time.sleep(0.01)"
STUCK = f"""
import ctypes
{CONNECTED}
def load_shard():
    ctypes.PyDLL(None).sleep(LONG)
say("stuck")
load_shard()
with recorder.step(): pass
say("on")
time.sleep(60)
"""
LINE = 9
"""Of that sleep, in the program around it."""

SOON = """
from tachograph.client.transport import stack_dump
stack_dump.CPU_SECONDS = 0.001
recorder.close()
while threading.active_count() > 1: time.sleep(0.01)
recorder = Recorder(run="soon")
"""
"""A second of waiting for Python's lock, or less, is long."""


@pytest.fixture
def memory(exporter: Any) -> Iterator[StackMemory]:
    """What the exporter sends with its answers."""
    made = StackMemory()
    exporter.descriptors = (made.for_rank,)
    yield made
    made.close()


def training(exporter: Any) -> int:
    """The training thread, as a rank's hello numbers it."""
    thread: int = exporter.frames("hello")[0]["stacks"]["thread"]
    return thread


def test_a_rank_that_holds_the_lock_for_good_leaves_its_line(
    exporter: Any, memory: StackMemory, start: Start, until: Callable[..., Any]
) -> None:
    """In a C call that does not return, and never gives Python's lock back; nobody has to ask."""
    process = start(STUCK.replace("LONG", "60"))
    process.hear("stuck")
    until(lambda: where_in(memory.stacks(), training(exporter)))
    assert where_in(memory.stacks(), training(exporter)) == f"<string>:{LINE} load_shard"


def test_one_that_goes_on_forgets_them(
    exporter: Any, memory: StackMemory, start: Start, until: Callable[..., Any]
) -> None:
    """The next standstill is another one, and has to be twice as long; the call is not interrupted."""
    pipe = exporter.path.parent / "pipe"
    os.mkfifo(pipe)
    process = start(
        f"""
{SOON}{CONNECTED}
import ctypes
pipe, byte = os.open({str(pipe)!r}, os.O_RDWR), ctypes.create_string_buffer(1)
def reads(): assert ctypes.PyDLL(None).read(pipe, byte, 1) == 1
say("stuck"); reads()
say("on")
while recorder._calls.sender._stacks._cpu_seconds != 0.002: time.sleep(0.01)
recorder.close()
"""
    )
    process.hear("stuck")
    until(lambda: "reads" in memory.stacks())
    pipe.write_bytes(b"!")
    process.hear("on")
    assert process.end() == (0, "")
    assert not memory.stacks()


def test_a_process_that_is_stopped_and_goes_on_is_not_looked_at(
    exporter: Any, memory: StackMemory, start: Start, until: Callable[..., Any]
) -> None:
    """It uses no CPU time meanwhile; frames that are read while Python runs would crash it."""
    process = start(f"{SOON}{CONNECTED}\nsay('ready')\nwhile True: sum(range(100))")
    process.hear("ready")
    until(lambda: os.pread(memory.for_rank, 1, 0) == b"\1")
    for _ in range(3):
        process.popen.send_signal(signal.SIGSTOP)
        time.sleep(1.2)  # longer than the thread would have waited
        process.popen.send_signal(signal.SIGCONT)
        exporter.next_state()
    assert not memory.stacks()


def test_an_exporter_that_asks_all_the_time_is_not_heard(exporter: Any, memory: StackMemory, start: Start) -> None:
    """As those up to 0.2 asked, by a pipe: while threads run whose frames come and go, to read these would be fatal."""
    request, pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    exporter.descriptors = (memory.for_rank, request)
    process = start(
        f"""
        {CONNECTED}
        def deep(number): return deep(number - 1) + 1 if number else 0
        say("ready")
        end = time.monotonic() + 0.5
        def work():
            while time.monotonic() < end: deep(200)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads: each.start()
        for each in threads: each.join()
        """
    )
    process.hear("ready")
    while process.popen.poll() is None:
        with contextlib.suppress(OSError):  # nobody has emptied it
            os.write(pipe, b"?")
        time.sleep(0.001)
    os.close(pipe)
    os.close(request)
    assert process.end() == (0, "")
    assert not memory.stacks()


def test_a_stranger_gets_no_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One who listens in a folder of somebody else's, and is neither root nor this user."""
    path = tmp_path / "rank.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        connection = ExporterSocket()
        connection.open(str(path))
        assert connection.is_trusted(str(path))
        peer = (os.getpid()).to_bytes(4, sys.byteorder) + (4242).to_bytes(4, sys.byteorder) + bytes(4)
        monkeypatch.setattr(OwnSocket, "get", lambda self: SimpleNamespace(getsockopt=lambda *_: peer))
        assert not connection.is_trusted(str(path))
        monkeypatch.setattr(os, "stat", lambda _: SimpleNamespace(st_uid=4242))
        assert connection.is_trusted(str(path))
        monkeypatch.undo()
        connection.close()


def test_nothing_is_written_while_all_is_well(
    exporter: Any, memory: StackMemory, start: Start, until: Callable[..., Any]
) -> None:
    """The signal comes from the timer alone, and its handler is gone with the recorder."""
    process = start(
        """
        import faulthandler
        while not recorder._calls.sender._stacks: time.sleep(0.01)
        for _ in range(5):
            with recorder.step(): time.sleep(0.3)
        recorder.close()
        while threading.active_count() > 1: time.sleep(0.01)
        caught = next(line for line in open("/proc/self/status") if line.startswith("SigCgt"))
        assert not int(caught.split()[1], 16) >> signal.SIGRTMIN + 15 & 1, caught
        assert not [n for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")
                    and "tachograph" in os.readlink(f"/proc/self/fd/{n}")]
        """
    )
    assert process.end() == (0, "")
    assert memory.stacks() == ""


CHILDREN = {
    "exits": "os._exit(0) if not os.fork() else os.wait()",
    "ends": """
child = os.fork()
if not child: sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
""",
    "records": """
child = os.fork()
if not child:
    own = Recorder(run="test", rank=1)
    while not own._calls.sender._stacks: time.sleep(0.01)
    own.close(); sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
    "subprocess": "import subprocess; assert subprocess.run([sys.executable, '-c', 'pass'], check=True)",
    "multiprocessing": """
import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as pool: assert pool.map(abs, [-1, -2]) == [1, 2]
""",
    "signalled": """
child = os.fork()
if not child: signal.raise_signal(signal.SIGURG); os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
}


@pytest.mark.parametrize("how", CHILDREN)
def test_children_take_no_part(exporter: Any, memory: StackMemory, start: Start, how: str) -> None:
    """Whatever they do, they end as they would, have none of it, and leave the parent's in place."""
    process = start(f"""
while not recorder._calls.sender._stacks: time.sleep(0.01)
for _ in range(3):
    {CHILDREN[how].strip().replace(chr(10), chr(10) + "    ")}
import ctypes
def after(): ctypes.PyDLL(None).sleep(2)
say("stuck"); after(); recorder.close()
""")
    process.hear("stuck")
    assert process.end() == (0, "")


@pytest.mark.torch
def test_workers_of_a_loader_end_as_they_would(exporter: Any, memory: StackMemory, start: Start) -> None:
    """Two epochs of two forked workers each, the second while the first ones are gone."""
    process = start(
        """
        import torch
        while not recorder._calls.sender._stacks: time.sleep(0.01)
        loader = torch.utils.data.DataLoader(range(8), num_workers=2, multiprocessing_context="fork")
        for epoch in range(2):
            assert len(list(recorder.data(loader))) == 8
        recorder.close()
        """
    )
    assert process.end() == (0, "")


@pytest.mark.parametrize(
    "taken",
    [
        "signal.signal(signal.SIGRTMIN + 16, lambda *_: say('mine'))",
        "signal.signal(signal.SIGRTMIN + 16, signal.SIG_IGN)",
        "import faulthandler; faulthandler.register(signal.SIGRTMIN + 16, file=sys.stdout)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 16])",
        "os.environ['TACHOGRAPH_STACKS'] = '0'",
    ],
)
def test_a_signal_that_the_program_uses_is_left_alone(exporter: Any, start: Start, taken: str) -> None:
    """By a handler of Python's or of C code, or where it says so itself: no stacks are offered."""
    wait = "while not recorder._calls.sender._answered: time.sleep(0.01)"
    process = start(f"{wait}\n{taken}\nrecorder.close()\nrecorder = Recorder(run='later')\nsay('on')\ntime.sleep(60)")
    process.hear("on")
    hello = exporter.wait_for("hello", where=lambda frame: frame["run"] == "later")
    assert "stacks" not in hello
    assert "stacks" in exporter.frames("hello")[0]


@pytest.mark.parametrize(
    "taken",
    [
        "signal.signal(signal.SIGRTMIN + 16, lambda *_: say('mine'))",
        """
import ctypes
@ctypes.CFUNCTYPE(None, ctypes.c_int)
def mine(number): os.write(1, b"mine\\n")
ctypes.CDLL(None).signal(signal.SIGRTMIN + 16, mine)
""",
    ],
)
def test_a_handler_that_comes_later_stays(exporter: Any, memory: StackMemory, start: Start, taken: str) -> None:
    """In Python or in C; the timer is gone by the sender thread's next turn."""
    process = start(
        f"{CONNECTED}\n{taken}\n"
        "while recorder._calls.sender._stacks: time.sleep(0.01)\n"
        "recorder.close()\nsignal.raise_signal(signal.SIGRTMIN + 16)\n"
    )
    process.hear("mine")
    assert process.end() == (0, "")


def test_a_descriptor_that_is_anothers_by_now_is_left_alone(exporter: Any, memory: StackMemory, start: Start) -> None:
    """A program may close all that it finds, and put files in their places: nothing is written into those."""
    process = start(
        f"""
        {CONNECTED}
        number = recorder._calls.sender._stacks._memory.number
        file = os.open("/dev/shm", os.O_RDWR | os.O_TMPFILE)
        os.write(file, b"mine"); os.lseek(file, 0, os.SEEK_SET)
        os.dup2(file, number)
        while recorder._calls.sender._stacks: time.sleep(0.01)
        recorder.close()
        assert (os.fstat(number).st_size, os.lseek(number, 0, os.SEEK_CUR)) == (4, 0)
        """
    )
    assert process.end() == (0, "")


@pytest.mark.parametrize("wrong", ["file", "small", "unsealed"])
def test_only_memory_of_a_fixed_size_is_taken(tmp_path: Any, wrong: str) -> None:
    """A write must never wait for a disk, nor fill one: anything else is refused."""
    other = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.ftruncate(other, 64 if wrong == "small" else 131072)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises((OSError, ValueError)):
        StackDump(file if wrong == "file" else other)
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert is_possible()
    for descriptor in (other, file):
        os.close(descriptor)


def test_descriptors_that_nobody_wanted_are_closed(exporter: Any, start: Start) -> None:
    """A rank that offered nothing gets some, or others than it expects: they do not pile up."""
    read, write = os.pipe()
    exporter.descriptors = (read, write)
    process = start(
        """
        while not recorder._calls.sender._answered: time.sleep(0.01)
        time.sleep(0.5)
        assert recorder._calls.sender._stacks is None
        say(str(sum("pipe:" in os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                    if os.path.exists(f"/proc/self/fd/{n}"))))
        """
    )
    process.hear("2")  # its own
    assert process.end() == (0, "")
    for descriptor in (read, write):
        os.close(descriptor)


def test_waiting_for_the_lock_among_busy_threads_is_not_long() -> None:
    """It is two to ten seconds of it, in which whoever runs Python code gives the lock away hundreds of times."""
    assert stack_dump.CPU_SECONDS >= 0.01
    assert SIGNAL > signal.SIGRTMIN
