"""The stacks that a rank leaves in memory when it cannot speak, because something holds Python's lock.

The memory is made here and sent with the answer to a hello; what a rank's process does with it stands in
`tachograph.client.transport.stack_dump`. It has a fixed size, and no name that others could find.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

from tachograph.node.descriptors import may_be_rank
from tachograph.node.process_status import PROC, process_status
from tachograph.text import code_line
from tachograph.wire import MAX_WHERE_BYTES, STACKS_BEGIN, STACKS_BYTES, cut

_NO_EXEC = 8  # MFD_NOEXEC_SEAL, Linux 6.3: some systems allow no other memory of this kind
_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]{1,16})\b")
_LINE = re.compile(r'  File "(.*)", line (\d{1,9}) in (.*)')


class StackMemory:
    """The exporter's side of what it shares with one rank; raises OSError where there are no more descriptors."""

    def __init__(self) -> None:
        self._memory = _memory()
        try:
            if not may_be_rank(self._memory):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            os.ftruncate(self._memory, STACKS_BYTES)
            fcntl.fcntl(self._memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        except OSError:
            os.close(self._memory)
            raise
        self._is_open = True

    @property
    def for_rank(self) -> int:
        """The descriptor to send."""
        return self._memory

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


class StuckProcess:
    """The process of a silent rank: its state, and where its training thread is, as far as both can be had."""

    def __init__(self, pid: int, thread: int | None, memory: StackMemory | None, proc: Path = PROC) -> None:
        self._thread, self._memory = thread, memory
        self._pid, self._proc = pid, proc
        self.go_on()

    def go_on(self) -> None:
        """Note that the rank speaks."""
        self.state = ""
        self.where = ""

    def look(self) -> None:
        """Look again, about a second after the last time."""
        if self._pid:  # 0: of another pid namespace
            self.state = process_status(self._pid, self._proc).get("State", "")
        if self._memory is not None and self._thread is not None and not self.where:
            self.where = where_in(self._memory.stacks(), self._thread)


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


def _memory() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("tachograph-stacks", flags | _NO_EXEC)
    except OSError:
        return os.memfd_create("tachograph-stacks", flags)
