"""The stacks of a rank that cannot speak because something holds Python's lock: asked for by signal, left in memory.

The memory and the pipe are made here and sent with the answer to a hello; what a rank's process does with them stands
in `tachograph.client.transport.stack_dump`. The memory has a fixed size, and no name that others could find.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from tachograph import code_line
from tachograph.node.descriptors import may_be_rank
from tachograph.wire import MAX_WHERE_BYTES, STACKS_BEGIN, STACKS_BYTES, cut

LEAST_SWITCHES = 60
"""A second. Who waits for Python's lock looks for it every 5 ms, and so is switched to 180 times. A thread that sends
ten times is not 30 times, and one of a process that is stopped or frozen never."""

MAX_TASKS = 512
"""Threads of a process that are searched for the one that sends; a rank of PyTorch has one to two hundred."""

TASKS_AT_ONCE = 16
"""Threads that are searched in one look: reading one takes some 20 µs."""

_NO_EXEC = 8  # MFD_NOEXEC_SEAL, Linux 6.3: some systems allow no other memory of this kind
_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]{1,16})\b")
_LINE = re.compile(r'  File "(.*)", line (\d{1,9}) in (.*)')


class RankThreads(NamedTuple):
    """Two threads of a rank: the one that trains, as Python numbers it, and the one that sends, as the kernel does."""

    training: int
    sending: int


class StackMemory:
    """The exporter's side of what it shares with one rank; raises OSError where there are no more descriptors."""

    def __init__(self) -> None:
        self._memory = _memory()
        try:
            if not may_be_rank(self._memory):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            os.ftruncate(self._memory, STACKS_BYTES)
            fcntl.fcntl(self._memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
            self._request, self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            os.close(self._memory)
            raise
        self._is_open = True

    @property
    def for_rank(self) -> tuple[int, int]:
        """The descriptors to send: the memory, and the end of the pipe from which requests come."""
        return self._memory, self._request

    def sent(self) -> None:
        """Note that the rank has its descriptors, or will not get them: its end of the pipe is not needed here."""
        os.close(self._request)

    @property
    def rank_waits(self) -> bool:
        """Whether the rank's sender thread says that it waits outside of Python's lock."""
        return self._is_open and os.pread(self._memory, 1, 0) == b"\1"

    def ask(self) -> None:
        """Have the stacks written."""
        if self._is_open:
            with contextlib.suppress(OSError):  # the rank is gone, or has not emptied the pipe
                os.write(self._pipe, b"?")

    def stacks(self) -> str:
        """Return what the rank's process has written since it last made progress; it may be anything."""
        if not self._is_open:
            return ""
        written = os.pread(self._memory, STACKS_BYTES, STACKS_BEGIN)
        return written.partition(b"\0")[0].decode("ascii", "replace")

    def close(self) -> None:
        """Close what this side holds."""
        if self._is_open:
            self._is_open = False
            os.close(self._memory)
            os.close(self._pipe)


class StuckProcess:
    """The process of a silent rank: its state, and where its training thread is, as far as both can be had.

    A process is asked for its stacks once for each silence, and only if its sender thread is seen to wait for Python's
    lock: frames can be read safely only while no Python code runs.
    """

    def __init__(
        self, pid: int, threads: RankThreads | None, memory: StackMemory | None, proc: Path = Path("/proc")
    ) -> None:
        self._threads, self._memory = threads, memory
        self._folder = proc / str(pid) if pid else None  # 0: of another pid namespace
        self._task: Path | None = None
        self.go_on()

    def go_on(self) -> None:
        """Note that the rank speaks."""
        self.state = ""
        self.where = ""
        self._counted: tuple[float, int] | None = None
        self._asked = False
        self._unsearched: Iterator[Path] | None = None

    def look(self, now: float) -> None:
        """Look again, at a time of the monotonic clock, about a second after the last one."""
        self.state = _fields(self._folder / "status").get("State", "") if self._folder is not None else ""
        if self._memory is None or self._threads is None or self.where:
            return
        if self._asked:
            self.where = where_in(self._memory.stacks(), self._threads.training)
            return
        if self._waits_for_lock(now) and self._memory.rank_waits:
            self._memory.ask()
            self._asked = True

    def _waits_for_lock(self, now: float) -> bool:
        """Return whether the sender thread has been switched to often enough since it was last counted."""
        then, before = self._counted or (now, 0)
        if self._counted is not None and now - then < 1.0:
            return False
        switches = self._voluntary_switches()
        self._counted = None if switches is None else (now, switches)
        return now > then and switches is not None and switches - before >= LEAST_SWITCHES * (now - then)

    def _voluntary_switches(self) -> int | None:
        """Return how often the sender thread has waited for something so far; None where that is not known yet."""
        task = self._task or self._sender()
        found = {} if task is None else _fields(task / "status")
        self._task = task if self._is_sender(found) else None
        switches = found.get("voluntary_ctxt_switches", "")
        return int(switches) if self._task is not None and switches.isdecimal() else None

    def _sender(self) -> Path | None:
        """Return the folder of the sender thread, if it is among those that are searched now."""
        if self._folder is None or self._threads is None:
            return None
        if self._unsearched is None:
            tasks = self._folder / "task"
            self._unsearched = chain([tasks / str(self._threads.sending)], _entries(tasks))
        for task in islice(self._unsearched, TASKS_AT_ONCE):
            if self._is_sender(_fields(task / "status")):
                self._unsearched = None
                return task
        return None

    def _is_sender(self, status: Mapping[str, str]) -> bool:
        """Return whether a thread is the one that sends, which numbers itself as its own pid namespace does."""
        own = status.get("NSpid", "").split()[-1:]
        return self._threads is not None and own == [str(self._threads.sending)]


def where_in(stacks: str, thread: int) -> str:
    """Return the line of the user's code at which a thread is, and the innermost one; "" where that is not known."""
    lines = iter(stacks.splitlines())
    for line in lines:
        if (header := _THREAD.match(line)) is not None and int(header[1], 16) == thread:
            return cut(code_line.whereabouts(_frames(lines)), MAX_WHERE_BYTES)
    return ""


def _frames(lines: Iterator[str]) -> Iterator[code_line.CodeLine]:
    for line in lines:
        if (found := _LINE.fullmatch(line)) is None:
            return
        yield code_line.CodeLine(found[1], int(found[2]), found[3])


def _entries(tasks: Path) -> Iterator[Path]:
    """Yield the threads of a process, at most MAX_TASKS."""
    with contextlib.suppress(OSError):
        yield from islice(tasks.iterdir(), MAX_TASKS)


def _fields(status: Path) -> dict[str, str]:
    """Return the fields of proc_pid_status(5); none where there is none."""
    try:
        lines = status.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _memory() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("tachograph-stacks", flags | _NO_EXEC)
    except OSError:
        return os.memfd_create("tachograph-stacks", flags)
