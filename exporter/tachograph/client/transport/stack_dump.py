"""The stacks of a process that holds Python's lock for good and so cannot speak: written when the exporter asks.

With its answer to a hello the exporter sends two descriptors: memory of a fixed size that both share, and a pipe. What
it writes into the pipe reaches the sender thread as SIGURG, whose handler is C code of `faulthandler`: it needs no lock
and writes the stacks of all threads into the memory. So nothing is done and nothing armed while all is well, no other
thread is interrupted, and a forked child takes no part.

Frames can only be read safely while no Python code runs: else the process may crash, as may one that
`faulthandler.dump_traceback_later` looks at. So the exporter asks only if the sender thread has noted that it waits
outside of the lock, and is seen to wait for that (`tachograph.node.ranks.stack_memory`).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence

from tachograph.wire import STACKS_BEGIN, STACKS_BYTES

SIGNAL = signal.SIGURG
"""It is ignored where nobody handles it, so one that comes late does no harm."""

_F_SETOWN_EX, _F_OWNER_TID = 15, 0  # fcntl(2), which Python does not name
_STATUS = "/proc/self/status"

_owner: StackDump | None = None
"""The one that has the signal's handler: of several ranks of a process, the first."""


def is_possible() -> bool:
    """Return whether this process could leave its stacks: nobody else handles the signal."""
    try:
        import faulthandler  # noqa: F401 - not every Python has it
        import fcntl

        return hasattr(fcntl, "F_GET_SEALS") and (_owner is not None or _is_free())
    except ImportError:
        return False


class StackDump:
    """The rank's side of the shared memory, to be made and used in the sender thread.

    Raises OSError, ImportError or ValueError where the descriptors are not those, or the signal is in use; they are the
    caller's to close then, else `close` does that.
    """

    def __init__(self, descriptors: Sequence[int], thread: int) -> None:
        global _owner
        import faulthandler  # late, as are those below: only a rank with an exporter needs them
        import fcntl
        import mmap
        import stat
        import struct

        memory, request = descriptors
        seals = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK  # else a write might wait for a disk, or fill one
        if fcntl.fcntl(memory, fcntl.F_GET_SEALS) & seals != seals or os.fstat(memory).st_size != STACKS_BYTES:
            raise ValueError("this is not the memory that was expected")
        if not stat.S_ISFIFO(os.fstat(request).st_mode):
            raise ValueError("this is not a pipe")
        if _owner is not None or not _is_free():
            raise ValueError(f"{SIGNAL.name} is in use")
        self._memory = memory
        self._files = {each: _identity(each) for each in descriptors}
        self._map = mmap.mmap(memory, STACKS_BYTES)
        os.lseek(memory, STACKS_BEGIN, os.SEEK_SET)
        fcntl.fcntl(request, _F_SETOWN_EX, struct.pack("ii", _F_OWNER_TID, thread))
        fcntl.fcntl(request, fcntl.F_SETSIG, SIGNAL)
        fcntl.fcntl(request, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
        faulthandler.register(SIGNAL, file=memory, all_threads=True, chain=False)
        _owner = self

    def waits(self, does: bool) -> None:
        """Note that the thread waits outside of Python's lock, or that it goes on."""
        self._map[0] = does

    def clear(self) -> None:
        """Forget the stacks of a standstill that is over."""
        if self._map[STACKS_BEGIN] and self._is_ours(self._memory):
            self._map[STACKS_BEGIN:] = bytes(STACKS_BYTES - STACKS_BEGIN)
            os.lseek(self._memory, STACKS_BEGIN, os.SEEK_SET)

    def close(self) -> None:
        """Leave the signal alone, and close this process's descriptors."""
        global _owner
        if _owner is self:
            _owner = None
            with contextlib.suppress(ImportError):
                import faulthandler

                if signal.getsignal(SIGNAL) == signal.SIG_DFL:  # else the program has a handler of its own by now
                    faulthandler.unregister(SIGNAL)
        self._map.close()
        close_descriptors(*filter(self._is_ours, self._files))

    def _is_ours(self, descriptor: int) -> bool:
        """Return whether it is what it was: a program may close every descriptor, and open others by these numbers."""
        return _identity(descriptor) == self._files[descriptor]


def close_descriptors(*descriptors: int) -> None:
    """Close descriptors, as far as they are open."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_free() -> bool:
    """Return whether no handler of Python's or of C code has the signal."""
    if signal.getsignal(SIGNAL) not in (signal.SIG_DFL, signal.SIG_IGN):
        return False
    try:
        with open(_STATUS, encoding="ascii", errors="replace") as status:  # noqa: PTH123 - pathlib costs 3 ms
            caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return False
    return not caught >> (SIGNAL - 1) & 1
