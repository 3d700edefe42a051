"""One connection to the exporter: sends whole frames, receives whole lines, and never blocks."""

from __future__ import annotations

import contextlib
import socket

from tachograph.wire import MAX_FRAME_BYTES


class ExporterSocket:
    """A non-blocking unix stream socket; every failure is an OSError, after which the connection is to be closed."""

    def __init__(self) -> None:
        # SOCK_CLOEXEC is Python's default: exec'd children do not inherit the socket; forked ones must `close` it.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._unsent = memoryview(b"")
        self._received = b""

    def open(self, path: str) -> None:
        """Connect at once or raise OSError: a unix socket's connect never has to be waited for."""
        try:
            self._socket.connect(path)
        except ValueError as error:  # a path with a null byte
            raise OSError(str(error)) from None

    def fileno(self) -> int:
        """Return the descriptor, for poll; -1 once closed."""
        return self._socket.fileno()

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
                frame = frame[self._socket.send(frame, socket.MSG_NOSIGNAL) :]
        return frame

    def receive(self) -> list[bytes]:
        """Return the whole lines that have come; raise ConnectionError at the stream's end or on an endless line."""
        try:
            received = self._socket.recv(MAX_FRAME_BYTES)
        except BlockingIOError:
            return []
        if not received:
            raise ConnectionError("the exporter closed the connection")
        *lines, self._received = (self._received + received).split(b"\n")
        if len(self._received) > MAX_FRAME_BYTES:
            raise ConnectionError("the exporter's answer does not end")
        return lines

    def close(self) -> None:
        """Close this process's copy of the socket."""
        self._socket.close()
