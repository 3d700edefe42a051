"""One connection to the exporter: sends whole frames, receives whole lines, and never blocks."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys

from tachograph.client.transport.descriptors import OwnDescriptor, OwnSocket
from tachograph.wire import SOCKET_ENVIRONMENT

SEND_BYTES = 106_496
"""The kernel's usual size, which it doubles. Where an administrator raised that, more frames would wait for a stopped
exporter than it takes at once, and it would skip the last of them, the bye."""

MAX_ANSWER_BYTES = 8192
"""The longest answer, and as much as is read at once; no exporter's has a quarter of that."""

_INT = 4
_DESCRIPTORS = 2
"""As many an answer may carry beside its text, and no more; each is an int of C."""


class ExporterSocket:
    """A non-blocking unix stream socket; every failure is an OSError, after which the connection is to be closed."""

    def __init__(self) -> None:
        # SOCK_CLOEXEC is Python's default: exec'd children do not inherit the socket; forked ones must `close` it.
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._socket = OwnSocket(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        self._unsent = memoryview(b"")
        self._received = b""
        self._descriptors: tuple[OwnDescriptor, ...] = ()

    def open(self, path: str) -> None:
        """Connect at once or raise OSError: a unix socket's connect never has to be waited for."""
        try:
            self._socket.get().connect(path)
        except ValueError as error:  # a path with a null byte
            raise OSError(str(error)) from None

    def fileno(self) -> int:
        """Return the descriptor, for poll."""
        return self._socket.fileno()

    @property
    def is_ours(self) -> bool:
        """Whether the program has left the socket alone."""
        return self._socket.is_ours

    def is_trusted(self, path: str) -> bool:
        """Return whether root, this user or the owner of the socket's folder listens: nobody else could be meant."""
        peer = self._socket.get().getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 3 * _INT)
        uid = int.from_bytes(peer[_INT : 2 * _INT], sys.byteorder)
        return uid in (0, os.geteuid(), os.stat(os.path.dirname(path) or ".").st_uid)  # noqa: PTH116, PTH120 - as below

    @property
    def idle(self) -> bool:
        """Whether every frame so far has left."""
        return not self._unsent

    def offer(self, frame: bytes) -> bool:
        """Send a frame as far as the kernel takes it; False, and not a byte of it, while an earlier one is unfinished.

        What is left is for `flush`: a torn frame is finished before the next begins, or never followed by one.
        """
        if self._unsent:
            return False
        self._unsent = self._send(memoryview(frame))
        return True

    def flush(self) -> None:
        """Send more of an unfinished frame, as far as the kernel takes it."""
        self._unsent = self._send(self._unsent)

    def _send(self, frame: memoryview) -> memoryview:
        """Return what the kernel did not take."""
        with contextlib.suppress(BlockingIOError):
            while frame:
                # MSG_NOSIGNAL: a program may have given SIGPIPE back its default, which is to kill it.
                frame = frame[self._socket.get().send(frame, socket.MSG_NOSIGNAL) :]
        return frame

    def receive(self) -> list[bytes] | None:
        """Return the whole lines that have come, None if nothing has, not even a part of one.

        Raises ConnectionError at the stream's end or on an endless line.
        """
        try:
            received, beside, _, _ = self._socket.get().recvmsg(
                MAX_ANSWER_BYTES, socket.CMSG_SPACE(_DESCRIPTORS * _INT), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        for level, kind, data in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = (data[i : i + _INT] for i in range(0, len(data) - _INT + 1, _INT))
                came = tuple(OwnDescriptor(int.from_bytes(number, sys.byteorder)) for number in numbers)
                self._close_descriptors()
                self._descriptors = came
        if not received:
            raise ConnectionError("the exporter closed the connection")
        *lines, self._received = (self._received + received).split(b"\n")
        if len(self._received) > MAX_ANSWER_BYTES:
            raise ConnectionError("the exporter's answer does not end")
        return lines

    def take_descriptors(self) -> tuple[OwnDescriptor, ...]:
        """Return the descriptors that came with the last answer that had some; they are the caller's to close."""
        taken, self._descriptors = self._descriptors, ()
        return taken

    def close(self) -> None:
        """Close this process's copy of the socket."""
        self._socket.close()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        for descriptor in self.take_descriptors():
            descriptor.close()


def why_unreachable(path: str, error: OSError) -> str:
    """Return why the exporter's socket cannot be opened, and what to do about it."""
    if not isinstance(error, PermissionError):
        return (
            f"no exporter at {path} ({error}): start `tachograph exporter` on this node, or set {SOCKET_ENVIRONMENT} "
            "to where its socket is"
        )
    if os.access(path, os.W_OK, effective_ids=True):
        return f"permission denied for the exporter at {path}, by no file's mode: look at seccomp, SELinux or AppArmor"
    place, needed = _closed_place(path)
    try:
        status = os.stat(place)  # noqa: PTH116 - pathlib costs 3 ms and 0.7 MB to import
        kept = f"{place} has mode {stat.S_IMODE(status.st_mode):04o} and group {_group(status.st_gid)}"
        step = f"add uid {os.geteuid()} to that group, or {needed}"
    except OSError:
        kept, step = f"{place} cannot be reached", needed
    return f"permission denied for the exporter at {path}: {kept}; {step}"


def _closed_place(path: str) -> tuple[str, str]:
    """Return the first folder on the way to a socket that may not be entered, else the socket; and what it needs."""
    folders = [os.path.dirname(path)]  # noqa: PTH120 - as above
    while folders[-1] not in ("", "/"):
        folders.append(os.path.dirname(folders[-1]))  # noqa: PTH120 - as above
    for folder in reversed(folders):
        if folder and not os.access(folder, os.X_OK):
            return folder, "let others enter it (mode 0755)"
    return path, "start the exporter with --socket-mode 0666"


def _group(number: int) -> str:
    try:
        import grp  # late: only a closed socket needs it

        return f"{grp.getgrgid(number).gr_name} ({number})"
    except (ImportError, KeyError, OSError):
        return str(number)
