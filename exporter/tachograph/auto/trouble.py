"""Why a process cannot be recorded, told to the exporter, if there is one: the program's own log is not the place."""

from __future__ import annotations

import json
import socket
from contextlib import suppress

from tachograph.wire import MAX_NOTICE_BYTES, VERSION, cut, socket_path


def tell(why: str) -> None:
    """Send one frame, and wait for nothing."""
    frame = {"v": VERSION, "type": "unrecorded", "why": cut(why, MAX_NOTICE_BYTES)}
    with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        connection.connect(socket_path())
        connection.send(json.dumps(frame).encode() + b"\n", socket.MSG_NOSIGNAL)
