"""Arguments as a caller gave them, turned into what they are meant to be; nothing here raises."""

from __future__ import annotations

import os

from tachograph.client.notice import notice, raised_by_signal
from tachograph.wire import socket_path

LARGEST = 2**53
"""The largest whole number that JSON carries exactly."""


def flag(value: object) -> bool | None:
    """Return whether `value` is true; None where it cannot say, or only after a wait for the GPU."""
    try:
        return None if getattr(value, "is_cuda", False) else bool(value)
    except Exception as error:
        if raised_by_signal(error):
            raise
        return None


def path_of(socket: object) -> str:
    """Return the path of the exporter's socket, the usual one where `socket` is none."""
    try:
        return os.fsdecode(socket) if socket is not None else socket_path()  # type: ignore[arg-type]
    except Exception as error:
        if raised_by_signal(error):
            raise
        notice("argument socket", "socket is no path, and is dropped", error)
        return socket_path()
