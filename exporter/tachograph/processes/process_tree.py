"""Ends a command with everything that it started, and nothing else. Linux only.

Workers of a launcher leave its session, and outlive it: they are known by their ancestors. This process adopts orphans
(PR_SET_CHILD_SUBREAPER, see prctl(2)), so that none of them is lost.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.02
KILL_SECONDS = 10.0
"""How long processes may take to go after SIGKILL: one in a device driver may never."""


def adopt_orphans() -> None:
    """Have orphaned descendants become children of this process; raise OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


class Descendants:
    """Those processes that descend from this one and were not there when this object was made.

    `awaited` is the child that a Popen waits for; the others are waited for here.
    """

    def __init__(self) -> None:
        self.awaited = 0
        self._hurries = False
        self._before = below(os.getpid())

    def alive(self) -> set[int]:
        """Return their ids, those that have ended and not been waited for left out."""
        self._reap()
        return {each for each in below(os.getpid()) - self._before if _state(each) not in ("Z", "X", "")}

    def hurry(self) -> None:
        """Give no more grace; may be called by a signal while they are being ended."""
        self._hurries = True

    def end(self, grace: float) -> int:
        """Ask all to end, and after `grace` seconds make them; return how many there were, -1 if some remain."""
        found = self.alive()
        self._signal(found, signal.SIGTERM)
        self._signal(found, signal.SIGCONT)  # a stopped one handles nothing before; systemd does the same
        self._wait(grace)
        seen = set(found)
        deadline = time.monotonic() + KILL_SECONDS
        while (left := self.alive()) and time.monotonic() < deadline:
            seen |= left  # a process may start others while it is being ended
            self._signal(left, signal.SIGKILL)
            time.sleep(POLL_SECONDS)
        return -1 if self.alive() else len(seen)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.alive() and time.monotonic() < deadline and not self._hurries:
            time.sleep(POLL_SECONDS)

    def _signal(self, processes: set[int], number: signal.Signals) -> None:
        handles: dict[int, int] = {}
        for each in processes:
            with suppress(OSError):  # it has ended
                handles[each] = os.pidfd_open(each)
        ours = below(os.getpid())  # now that no id can be given to another process unseen
        for each, handle in handles.items():
            with suppress(OSError):
                if each in ours:
                    signal.pidfd_send_signal(handle, number)
            os.close(handle)

    def _reap(self) -> None:
        """Wait for adopted processes that have ended."""
        for each in _children().get(os.getpid(), set()) - self._before - {self.awaited}:
            if _state(each) == "Z":
                with suppress(ChildProcessError):
                    os.waitpid(each, os.WNOHANG)


def _children() -> dict[int, set[int]]:
    """Return the ids of processes by that of their parent."""
    found: dict[int, set[int]] = defaultdict(set)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := _stat(int(folder.name))):
            found[int(fields[1])].add(int(folder.name))
    return found


def below(process: int) -> set[int]:
    """Return the ids of all descendants of a process."""
    children = _children()
    found: set[int] = set()
    front = {process}
    while front:
        front = set().union(*(children.get(each, set()) for each in front)) - found
        found |= front
    return found


def _state(process: int) -> str:
    """Return the state of a process, Z for one that has ended; empty if it is gone."""
    fields = _stat(process)
    return fields[0] if fields else ""


def _stat(process: int) -> list[str]:
    """Return state, parent and so on (proc(5)); empty for a process that is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def started_at(process: int) -> str:
    """Return when a process began, in the kernel's ticks since boot: with its id that names it; empty if it is gone."""
    fields = _stat(process)
    return fields[19] if fields and fields[0] not in ("Z", "X") else ""
