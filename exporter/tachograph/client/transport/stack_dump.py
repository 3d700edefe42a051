"""The stacks of a process whose C code keeps Python's lock, and so cannot speak.

With its answer to a hello the exporter sends memory of a fixed size that both share. While the sender thread waits, a
timer counts the CPU time that it uses: next to none, unless it wants to go on and Python's lock is not to be had, for
which it looks 180 times a second. After seconds of that the timer sends it a signal, whose handler is C code of
`faulthandler`: it needs no lock and writes the stacks of all threads into the memory.

Frames can be read safely only while no Python code runs; else the process may crash. That is why nobody else can
ask, why the time is not a clock's (it would be over when a stopped process goes on), and why a process whose C code
keeps the lock for long and gives it back is looked at again only after it was kept for twice as long.
"""

from __future__ import annotations

import contextlib
import os
import signal

from tachograph.client.core.file_size import may_write
from tachograph.client.transport.signal_actions import is_free
from tachograph.wire import STACKS_BEGIN, STACKS_BYTES

SIGNAL = signal.SIGRTMIN + 16
"""One that nobody sends: no library is known to use it, and it is none that a terminal or a scheduler sends."""

CPU_SECONDS = 0.01
"""What waiting for Python's lock for two to ten seconds takes, by machine. To get it among twelve busy threads takes a
twentieth of that."""

_owner: StackDump | None = None
"""The one that has the signal's handler: of several ranks of a process, the first."""


def is_possible() -> bool:
    """Return whether this process could leave its stacks: nobody else handles the signal."""
    try:
        import faulthandler  # noqa: F401 - not every Python has it
        import fcntl

        return hasattr(fcntl, "F_GET_SEALS") and (_owner is not None or is_free(SIGNAL))
    except ImportError:
        return False


class StackDump:
    """The rank's side of the shared memory, to be made and used in the sender thread.

    Raises OSError, ImportError, AttributeError or ValueError where the descriptor is not that of such a memory, or the
    system has not what it takes. The descriptor is the caller's to close, in any case.
    """

    def __init__(self, memory: int) -> None:
        global _owner
        import fcntl  # late, as those below: only a rank with an exporter needs them

        from tachograph.client.transport.signal_dump import SignalDump
        from tachograph.client.transport.thread_timer import ThreadTimer

        if _owner is not None:
            raise ValueError("another rank of this process has it")
        if not may_write(STACKS_BYTES):
            raise ValueError("this process may not write so much")
        self._cpu_seconds = CPU_SECONDS
        self._timer = ThreadTimer(SIGNAL)
        try:
            self._dump = SignalDump(SIGNAL, memory, all_threads=True)
        except BaseException:
            self._timer.close()
            raise
        self._memory = self._dump.descriptor
        _owner = self
        try:
            seals = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK  # else a write might wait for a disk, or fill one
            number = self._memory.number
            if fcntl.fcntl(number, fcntl.F_GET_SEALS) & seals != seals or os.fstat(number).st_size != STACKS_BYTES:
                raise ValueError("this is not the memory that was expected")
            os.lseek(number, STACKS_BEGIN, os.SEEK_SET)
        except BaseException:
            self.close()
            raise

    @property
    def is_ours(self) -> bool:
        """Whether signal and descriptor are still ours, and may be written to: a program may take any of it."""
        return self._dump.is_ours and may_write(STACKS_BYTES)

    def begin_wait(self) -> None:
        """Have the stacks written if the thread, which is about to wait, does not get on for too long after that."""
        os.pwrite(self._memory.number, b"\1", 0)
        self._timer.start(self._cpu_seconds)

    def end_wait(self) -> None:
        """Note that it got on, and forget the stacks of a standstill that is over."""
        self._timer.start(0)
        if not (self._memory.is_ours and may_write(STACKS_BYTES)):
            return
        memory = self._memory.number
        os.pwrite(memory, b"\0", 0)
        if os.pread(memory, 1, STACKS_BEGIN) != b"\0":
            self._cpu_seconds *= 2
            os.pwrite(memory, bytes(STACKS_BYTES - STACKS_BEGIN), STACKS_BEGIN)
            os.lseek(memory, STACKS_BEGIN, os.SEEK_SET)

    def close(self) -> None:
        """Leave the signal alone, and close this process's descriptor."""
        global _owner
        if _owner is self:
            _owner = None
        with contextlib.suppress(OSError):  # in a forked child, which has no timers
            self._timer.close()
        self._dump.close()
