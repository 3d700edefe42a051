"""How a rank's process ended, where the kernel tells it to somebody who is not its parent.

A pidfd, opened while the process lives, means that process for ever, and becomes readable when it ends: a connection
that breaks before that is no death. After its parent has collected it, `PIDFD_GET_INFO` tells its exit status to
anybody (Linux 6.15, `include/uapi/linux/pidfd.h`). Until then it is a zombie, whose `/proc/PID/stat` tells it to root
and to its own user (proc(5)), even before its files are closed. That it was asked to end, `/proc/PID/status` tells to
everybody: a signal that nobody handles ends a process without being taken, and stays pending. Where none of these is to
be had, it is not known how a process ended, and nothing follows from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tachograph.catalog import index as catalog
from tachograph.node.descriptors import may_be_rank
from tachograph.node.process_status import PROC, numbers, process_status
from tachograph.node.ranks.frames import Peer
from tachograph.node.ranks.limits import Limits
from tachograph.processes.backoff import Backoff

WATCH_SECONDS = 60.0
"""A process that ends later after its rank has finished did something else meanwhile."""

FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.02, 1.0
"""Between a process's end and the moment at which its parent collects it, its exit code is looked for this often."""

SO_PEERPIDFD = 77
"""Linux 6.5; Python does not name it."""

INFO = struct.Struct("=QQ11Ii")
"""The first version of `struct pidfd_info`: mask, cgroup, eleven ids, and the exit code in the form of wait(2)."""
GET_INFO = 3 << 30 | INFO.size << 16 | 0xFF << 8 | 11
INFO_EXIT = 1 << 3

_STATE, _FLAGS, _START, _CODE_BEGINS, _STACK_BEGINS, _EXIT_CODE = (field - 3 for field in (3, 9, 22, 26, 28, 52))
"""The places of fields of proc_pid_stat(5), counted from the state."""
_EXITING = 4
"""PF_EXITING (`include/linux/sched.h`): `do_exit` sets it, then the exit status, and closes the files after that."""
_HIDDEN = (b"0", b"1")
"""What proc_pid_stat(5) has as the beginning of the code for those who may not see it, nor the exit status."""

_PENDING, _NOT_TAKEN = ("SigPnd", "ShdPnd"), ("SigBlk", "SigIgn", "SigCgt")
"""Fields of proc_pid_status(5): signals that came, and those that do not end the process."""

EXECUTED_SECONDS = 0.5
"""After a connection that the kernel closed in execve(2), it knows where the code of the new program begins by then."""

MAX_THREADS = 64
"""Threads that are looked at of a process whose main thread has ended: one that goes on is among the first."""

RankKey: TypeAlias = tuple[str, str]
"""The run and the number of a rank."""

_log = logging.getLogger(__name__)


class PeerProcess:
    """The process at the other end of a connection."""

    def __init__(self, peer: Peer, pidfd: int, proc: Path = PROC) -> None:
        self.peer = peer
        self.closed = False
        self._pidfd = pidfd
        self._proc = proc
        fields = self._fields()
        self._started = fields[_START] if fields else None
        self._shown = bool(fields) and fields[_CODE_BEGINS] not in _HIDDEN
        self._program = self._program_of(fields)

    @classmethod
    def of(cls, sock: socket.socket | None, peer: Peer, own_pid: int = 0, proc: Path = PROC) -> PeerProcess | None:
        """Return the process of `peer`, None where the kernel gives no pidfd of it; to be closed.

        `own_pid` is the pid by which the rank knows itself, 0 if it did not say: where that is no number of the peer in
        any pid namespace, the peer is a proxy, whose life says nothing about the rank's.
        """
        if sock is None or not peer.pid:  # of another pid namespace
            return None
        if own_pid and own_pid not in (peer.pid, *numbers(peer.pid, proc)):
            return None
        try:
            try:
                pidfd = sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
            except OSError as error:
                if error.errno != errno.ENOPROTOOPT:
                    raise
                pidfd = os.pidfd_open(peer.pid)
        except (OSError, AttributeError) as error:  # a Python built for an older kernel has no pidfd_open
            _log.debug("no exit code of a rank's process", extra={"error": error, **peer._asdict()})
            return None
        if not may_be_rank(pidfd):
            os.close(pidfd)
            return None
        return cls(peer, pidfd, proc)

    def fileno(self) -> int:
        """Return the pidfd, which is readable once the process has ended."""
        return self._pidfd

    def close(self) -> None:
        """Close the pidfd."""
        if not self.closed:
            self.closed = True
            os.close(self._pidfd)

    @property
    def is_over(self) -> bool:
        """Whether the process has ended."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return self.closed or bool(poll.poll(0))

    @property
    def lives(self) -> bool:
        """Whether the process goes on: it has not begun to end."""
        if self.is_over:
            return False
        fields = self._fields()
        return not fields or (fields[_START] == self._started and not self._is_ending(fields))

    @property
    def runs_another(self) -> bool:
        """Whether the process goes on with another program in place of its own (execve(2)), as far as that shows."""
        fields = self._fields()
        if self.closed or not fields or fields[_START] != self._started or self._is_ending(fields):
            return False
        now = self._program_of(fields)
        return all(before and after and before != after for before, after in zip(self._program, now, strict=True))

    def _program_of(self, fields: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return what tells programs apart: where code and stack begin, else name and arguments, which may be changed.

        A process whose main thread has ended has none of these.
        """
        if self._shown:
            is_known = bool(fields) and fields[_CODE_BEGINS] not in _HIDDEN
            return (b" ".join((fields[_CODE_BEGINS], fields[_STACK_BEGINS])) if is_known else b"",)
        return tuple(_start_of(self._proc / str(self.peer.pid) / name) for name in ("comm", "cmdline"))

    def wait_status(self) -> int | None:
        """Return how the process ended, in the form of wait(2); None if it has not, or if that is not known."""
        if self.closed:
            return None
        info = bytearray(INFO.pack(INFO_EXIT, *[0] * 13))
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._pidfd, GET_INFO, info)
            mask, *_, status = INFO.unpack(info)
            if mask & INFO_EXIT:
                return int(status)
        fields = self._fields()
        if not fields or fields[_START] != self._started or not self._is_ending(fields):
            return None
        return int(fields[_EXIT_CODE]) if self._shown else self._asked_by()

    def _asked_by(self) -> int | None:
        """Return the signal that asked a process to end that has ended, None if none did, or if it was killed."""
        status = process_status(self.peer.pid, self._proc)
        signals = {name: int(status.get(name, "0"), 16) for name in (*_PENDING, *_NOT_TAKEN)}
        fields = self._fields()
        if not fields or fields[_START] != self._started:  # it was collected, and its number is another's
            return None
        came = signals[_PENDING[0]] | signals[_PENDING[1]]
        if came >> (signal.SIGKILL - 1) & 1:
            return None
        for name in _NOT_TAKEN:
            came &= ~signals[name]
        return next((number for number in catalog.END_SIGNALS if came >> (number - 1) & 1), None)

    def _fields(self) -> list[bytes]:
        return _fields(self._proc / str(self.peer.pid))

    def _is_ending(self, fields: Sequence[bytes]) -> bool:
        """Return whether the process ends: its main thread, whose fields these are, may do so alone."""
        if not _is_over(fields):
            return False
        with contextlib.suppress(OSError), os.scandir(self._proc / str(self.peer.pid) / "task") as threads:
            others = map(_fields, map(Path, islice(threads, MAX_THREADS)))
            return all(_is_over(other) for other in others if other)
        return True


def _fields(process: Path) -> list[bytes]:
    try:
        return (process / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def _start_of(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(4096)
    except OSError:
        return b""


def _is_over(fields: Sequence[bytes]) -> bool:
    return fields[_STATE] in (b"Z", b"X") or bool(int(fields[_FLAGS]) & _EXITING)


class Outlived(NamedTuple):
    """The calls about a rank whose connection ended before its process."""

    over: Callable[[], None]
    """Once the process has ended."""
    replaced: Callable[[], None]
    """Instead, if it goes on with another program: how that ends says nothing about the rank."""


class ProcessEnds:
    """Waits for the processes of ranks to end: one pidfd for each, and one for each rank that lost its connection."""

    def __init__(self, limits: Limits, exceeded: Callable[[int, str], None] = lambda *_: None) -> None:
        self._limits = limits
        self._exceeded = exceeded
        self._waiting: dict[tuple[Peer, RankKey | None], tuple[asyncio.Task[None], list[Callable[[int], None]]]] = {}

    def watch(self, process: PeerProcess, ended: Callable[[int], None]) -> bool:
        """Call `ended` with how a process ended, in the form of wait(2), within a minute from now; close it.

        Return whether it is watched: not beyond the limits of its user.
        """
        return self._watch(process, None, ended)

    def watch_over(self, process: PeerProcess, rank: RankKey, ended: Callable[[int], None], outlived: Outlived) -> bool:
        """Do the same for a rank whose connection the process outlived, however late: first say how that was."""
        return self._watch(process, rank, ended, outlived)

    def _watch(
        self,
        process: PeerProcess,
        rank: RankKey | None,
        ended: Callable[[int], None],
        outlived: Outlived | None = None,
    ) -> bool:
        who = process.peer, rank
        if who in self._waiting:
            process.close()
            self._waiting[who][1].append(ended)
            return True
        own = sum(peer.uid == process.peer.uid for peer, _ in self._waiting)
        if own >= self._limits.ranks or len(self._waiting) >= self._limits.node_ranks:
            if own >= self._limits.ranks:
                self._exceeded(process.peer.uid, "exits")
            process.close()
            return False
        listeners = [ended]
        task = asyncio.get_running_loop().create_task(_wait(process, listeners, outlived))
        self._waiting[who] = task, listeners
        task.add_done_callback(lambda done: self._done(process, who, done))
        return True

    def forget(self, peer: Peer, rank: RankKey | None = None) -> None:
        """Wait no more for a process to end after a rank that finished, nor for this one of it, which is back."""
        for who in {(peer, None), (peer, rank)} & self._waiting.keys():
            self._waiting.pop(who)[0].cancel()

    def close(self) -> None:
        """Wait for none any more."""
        for peer, rank in list(self._waiting):
            self.forget(peer, rank)

    def _done(self, process: PeerProcess, who: tuple[Peer, RankKey | None], task: asyncio.Task[None]) -> None:
        process.close()
        if who in self._waiting and self._waiting[who][0] is task:
            del self._waiting[who]


async def _wait(process: PeerProcess, listeners: Iterable[Callable[[int], None]], outlived: Outlived | None) -> None:
    if outlived is not None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_over(process), EXECUTED_SECONDS)
        if process.runs_another:
            outlived.replaced()
            return
        await _over(process)
        outlived.over()
    with contextlib.suppress(asyncio.TimeoutError):
        status = await asyncio.wait_for(_ended(process), WATCH_SECONDS)
        for ended in listeners:
            ended(status)


async def _over(process: PeerProcess) -> None:
    """Return once a process has ended."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process)


async def _ended(process: PeerProcess) -> int:
    """Return how a process ended, once that can be read."""
    await _over(process)
    pause = Backoff(FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS)
    while (status := process.wait_status()) is None:
        await asyncio.sleep(pause.next())
    return status


def asked_to_end(status: int) -> str | None:
    """Return how a process was asked to end, in the form of wait(2), None if it was not."""
    if os.WIFEXITED(status):
        return catalog.SIGNAL_EXIT_CODES.get(os.WEXITSTATUS(status))
    return catalog.END_SIGNALS.get(os.WTERMSIG(status))


def in_words(status: int) -> str:
    """Return how a process ended, in the form of wait(2), as a person reads it."""
    if os.WIFEXITED(status):
        return f"exit code {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    name = next((f" ({known.name})" for known in signal.Signals if known == number), "")
    return f"signal {number}{name}"
