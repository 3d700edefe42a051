"""The stacks of a process that cannot speak, as an exporter gets them; and that nothing else comes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tachograph.client.transport.stack_dump import SIGNAL, StackDump, is_possible
from tachograph.node.ranks.stack_memory import StackMemory, where_in

Start = Callable[..., Any]

STUCK = """
import ctypes
while not recorder._calls.sender._stacks: time.sleep(0.01)
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


@pytest.fixture
def memory(exporter: Any) -> Iterator[StackMemory]:
    """What the exporter sends with its answers."""
    made = StackMemory()
    exporter.descriptors = made.for_rank
    yield made
    made.sent()
    made.close()


def training(exporter: Any) -> int:
    """The training thread, as a rank's hello numbers it."""
    thread: int = exporter.frames("hello")[0]["stacks"]["thread"]
    return thread


def test_a_rank_that_holds_the_lock_for_good_leaves_its_line(
    exporter: Any, memory: StackMemory, start: Start, until: Callable[..., Any]
) -> None:
    """In a C call that does not return, and never gives Python's lock back."""
    process = start(STUCK.replace("LONG", "60"))
    process.hear("stuck")
    until(lambda: memory.rank_waits)
    memory.ask()
    until(lambda: where_in(memory.stacks(), training(exporter)))
    assert where_in(memory.stacks(), training(exporter)) == f"<string>:{LINE} load_shard"


def test_one_that_goes_on_forgets_them(
    exporter: Any, memory: StackMemory, start: Start, until: Callable[..., Any]
) -> None:
    """The next standstill is another one; the call that was looked at is not interrupted."""
    process = start(STUCK.replace("LONG", "2"))
    process.hear("stuck")
    memory.ask()
    until(memory.stacks)
    process.hear("on")
    until(lambda: exporter.frames()[-1]["step"] == 1)
    until(lambda: not memory.stacks())


def test_nothing_is_written_while_all_is_well(
    exporter: Any, memory: StackMemory, start: Start, until: Callable[..., Any]
) -> None:
    """The signal comes from the exporter alone, and its handler is gone with the recorder."""
    process = start(
        """
        import faulthandler
        while not recorder._calls.sender._stacks: time.sleep(0.01)
        for _ in range(5):
            with recorder.step(): time.sleep(0.3)
        recorder.close()
        caught = next(line for line in open("/proc/self/status") if line.startswith("SigCgt"))
        assert not int(caught.split()[1], 16) >> signal.SIGURG - 1 & 1, caught
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
if not child: os.kill(os.getpid(), signal.SIGURG); os._exit(0)
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
    memory.ask()
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
        "signal.signal(signal.SIGURG, lambda *_: say('mine'))",
        "import faulthandler; faulthandler.register(signal.SIGURG, file=sys.stdout)",
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


def test_a_handler_that_comes_later_stays(exporter: Any, memory: StackMemory, start: Start) -> None:
    """And the one timer of faulthandler is the program's."""
    process = start(
        """
        import faulthandler
        faulthandler.dump_traceback_later(1, file=sys.stdout)
        while not recorder._calls.sender._stacks: time.sleep(0.01)
        signal.signal(signal.SIGURG, lambda *_: say("mine"))
        recorder.close()
        os.kill(os.getpid(), signal.SIGURG)
        time.sleep(2)
        """
    )
    process.hear("mine")
    process.hear("Timeout (0:00:01)!")
    assert process.end() == (0, "")


def test_descriptors_that_are_others_by_now_are_left_alone(exporter: Any, memory: StackMemory, start: Start) -> None:
    """A program may close all that it finds, and open files by the same numbers: nothing is written into those."""
    process = start(
        """
        while not recorder._calls.sender._stacks: time.sleep(0.01)
        stacks = recorder._calls.sender._stacks
        for number in stacks._files: os.close(number)
        files = [os.open("/dev/shm", os.O_RDWR | os.O_TMPFILE) for _ in stacks._files]
        assert sorted(files) == sorted(stacks._files)
        for file in files: os.write(file, b"mine"); os.lseek(file, 0, os.SEEK_SET)
        stacks._map[64:68] = b"dump"
        time.sleep(1.5)
        recorder.close()
        assert [(os.fstat(file).st_size, os.lseek(file, 0, os.SEEK_CUR)) for file in files] == 2 * [(4, 0)]
        """
    )
    assert process.end() == (0, "")


@pytest.mark.parametrize("wrong", ["file", "small", "unsealed", "no pipe"])
def test_only_memory_of_a_fixed_size_is_taken(tmp_path: Any, wrong: str) -> None:
    """A write must never wait for a disk, nor fill one: anything else is refused."""
    good = StackMemory()
    memory, request = good.for_rank
    other = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.ftruncate(other, 64 if wrong == "small" else 131072)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    offered = {
        "file": (file, request), "small": (other, request), "unsealed": (other, request), "no pipe": (memory, file),
    }  # fmt: skip
    with pytest.raises((OSError, ValueError)):
        StackDump(offered[wrong], os.getpid())
    assert is_possible()
    for descriptor in (other, file):
        os.close(descriptor)
    good.sent()
    good.close()


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
    process.hear("4")  # its own two, and those of its signals
    assert process.end() == (0, "")
    for descriptor in (read, write):
        os.close(descriptor)


def test_the_signal_is_one_that_does_nothing_by_itself() -> None:
    """Else one that comes as the handler goes would end the process: signal(7)."""
    assert SIGNAL.name == "SIGURG"
