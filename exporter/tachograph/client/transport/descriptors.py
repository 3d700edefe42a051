"""Descriptors of our own. A program may close all that it finds and open files by the same numbers, so each use looks.

Who a descriptor is, the kernel says by device and inode (fstat(2)): those of a socket, a pipe or a memory are its own.
"""

from __future__ import annotations

import contextlib
import os
import socket

from tachograph.client.core.notice import raised_by_signal

_HIGH = 512


class OwnDescriptor:
    """A descriptor by its number, and what it was when this was made."""

    __slots__ = ("_identity", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self._identity = _identity(number)

    @property
    def is_ours(self) -> bool:
        """Whether it is still open, and still the same file."""
        return self._identity is not None and _identity(self.number) == self._identity

    def close(self) -> None:
        """Close it, unless it is somebody else's by now."""
        if self.is_ours:
            with contextlib.suppress(OSError):  # what a file system says at the end of a file: it is closed
                os.close(self.number)


class OwnSocket:
    """A socket that is never used once its number is another file's: every use of it raises ConnectionError then."""

    __slots__ = ("_descriptor", "_socket")

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        self._descriptor = OwnDescriptor(made.fileno())

    @property
    def is_ours(self) -> bool:
        """Whether it can be used."""
        return self._descriptor.is_ours

    def get(self) -> socket.socket:
        """Return the socket, for one use."""
        if not self.is_ours:
            raise ConnectionError("the program closed this socket")
        return self._socket

    def fileno(self) -> int:
        """Return the descriptor, for poll."""
        return self.get().fileno()

    def close(self) -> None:
        """Close it, or leave alone what is another's."""
        if self.is_ours:
            self._socket.close()
        else:
            self._socket.detach()


class WakeUp:
    """Ends another thread's poll."""

    def __init__(self) -> None:
        self._receiver, self._sender = map(OwnSocket, socket.socketpair())
        for each in (self._receiver, self._sender):
            each.get().setblocking(False)

    @property
    def is_ours(self) -> bool:
        """Whether it can still wake anybody up."""
        return self._receiver.is_ours and self._sender.is_ours

    def fileno(self) -> int:
        """Return what to poll for input."""
        return self._receiver.fileno()

    def send(self) -> None:
        """Wake the other thread up; takes no lock: a signal handler may call it. Raises OSError."""
        self._sender.get().send(b"!", socket.MSG_NOSIGNAL)

    @property
    def sending_end(self) -> int:
        """The descriptor to write to."""
        return self._sender.fileno()

    def clear(self) -> bytes:
        """Return what was sent, of which nothing is kept."""
        sent = b""
        with contextlib.suppress(OSError):  # there is no more, or the program closed it
            while part := self._receiver.get().recv(4096):
                sent = part if len(sent) > 4096 else sent + part
        return sent

    def close(self) -> None:
        """Close both ends."""
        self._receiver.close()
        self._sender.close()


def copy_high(descriptor: int) -> int:
    """Return a copy under a number from 512 on: a program that has closed all does not get to that for a while."""
    import fcntl  # late: few ranks need it

    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:  # the process may have no such number
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)


def _identity(number: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(number)
    except OSError as error:
        if raised_by_signal(error):  # a watchdog's TimeoutError is an OSError
            raise
        return None
    return status.st_dev, status.st_ino
