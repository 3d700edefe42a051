"""The stacks of a rank that cannot speak: when they are looked for, and how they are read, whatever they hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.node.ranks.stack_memory import StackMemory, StuckProcess, where_in
from tachograph.wire import MAX_WHERE_BYTES, STACKS_BEGIN, STACKS_BYTES

TRAINING, PID = 0x7FB0C6A8A740, 4242
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
    made.close()


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A folder like /proc with one process, which is stopped."""
    (tmp_path / str(PID)).mkdir()
    (tmp_path / str(PID) / "status").write_text("Name:\tpython3\nState:\tT (stopped)\n")
    return tmp_path


def leave(memory: StackMemory, text: str = DUMP) -> None:
    """Do what the process of a rank does with the memory."""
    os.pwrite(memory.for_rank, text.encode(), STACKS_BEGIN)


@pytest.mark.parametrize(("pid", "state"), [(PID, "T (stopped)"), (0, ""), (PID + 1, "")])
def test_a_silent_process_is_shown_where_it_is(memory: StackMemory, proc: Path, pid: int, state: str) -> None:
    """Once it has left its stacks, until it speaks again; its state in the kernel's words, where it can be seen."""
    process = StuckProcess(pid, TRAINING, memory, proc)
    process.look()
    assert (process.state, process.where) == (state, "")
    leave(memory)
    for _ in range(2):
        process.look()
        assert (process.state, process.where) == (state, "data.py:88 load_shard, in __init__.py:166 match")
    leave(memory, "\0" * len(DUMP))
    process.go_on()
    assert (process.state, process.where) == ("", "")
    process.look()
    assert (process.state, process.where) == (state, "")


def test_without_memory_its_state_is_known_all_the_same(proc: Path) -> None:
    """As of a client of another language."""
    other = StuckProcess(PID, None, None, proc)
    other.look()
    assert (other.state, other.where) == ("T (stopped)", "")


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


def test_the_memory_neither_grows_nor_shrinks(memory: StackMemory) -> None:
    """Nor can it be made to: what a rank may write is bounded, and it is freed with the last who has it."""
    for size in (0, STACKS_BYTES + 1, 2**30):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.for_rank, size)
    with pytest.raises(PermissionError):
        os.pwrite(memory.for_rank, b"x", STACKS_BYTES)
    os.pwrite(memory.for_rank, b"\xff" * (STACKS_BYTES - STACKS_BEGIN), STACKS_BEGIN)
    assert len(memory.stacks()) == STACKS_BYTES - STACKS_BEGIN


def test_a_system_without_such_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more descriptors, or forbidden: an OSError, and nothing stays open."""
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - names only

    def full(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(OSError, match="Too many"):
        StackMemory()
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208


def test_closed_memory_reads_nothing() -> None:
    """As the process of a rank whose connection has ended."""
    closed = StackMemory()
    closed.close()
    closed.close()
    assert not closed.stacks()
