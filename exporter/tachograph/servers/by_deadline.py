"""A connection's bytes, all of them by a deadline: one who sends a byte now and then would hold a reader for ever."""

from __future__ import annotations

import io
import math
import socket
import time
from typing import Any


class ByDeadline(io.RawIOBase):
    """The bytes that a connection receives until a time by the monotonic clock; then TimeoutError is raised."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline
        self._timeout = connection.gettimeout()
        self._bytes = connection.makefile("rb", buffering=0)  # keeps the connection open until it is read

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401 - whatever can be written to
        """Read what there is; raise TimeoutError after the deadline."""
        if self._deadline < math.inf:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._connection.settimeout(left)
        return self._bytes.readinto(buffer)

    def lift(self) -> None:
        """Have the connection's own timeout hold again, for each read alone."""
        self._deadline = math.inf
        self._connection.settimeout(self._timeout)

    def close(self) -> None:
        """Let the connection close."""
        self._bytes.close()
        super().close()
