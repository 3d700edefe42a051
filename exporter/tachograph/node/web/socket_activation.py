"""Listening sockets that systemd opened for us (sd_listen_fds(3))."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

_FIRST = 3
_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


class NoSocketError(Exception):
    """There is no socket to take over; the message says why."""


def inherited_sockets(environment: MutableMapping[str, str] | None = None) -> list[socket.socket]:
    """Return the sockets that were passed to this process; raise NoSocketError where none of use was."""
    env = os.environ if environment is None else environment
    pid, count = env.pop("LISTEN_PID", ""), env.pop("LISTEN_FDS", "")
    env.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal() or count == "0":
        raise NoSocketError("systemd passed no socket to this process: start it through a .socket unit")
    sockets: list[socket.socket] = []
    for number in range(_FIRST, _FIRST + int(count)):
        try:
            os.set_inheritable(number, False)  # the process that reads GPUs has no use for it
            sock = socket.socket(fileno=number)
            listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            raise NoSocketError(f"descriptor {number} from systemd is no socket: {error.strerror}") from error
        if not listens or sock.type != socket.SOCK_STREAM or sock.family not in _FAMILIES:
            raise NoSocketError(f"descriptor {number} from systemd is not a listening TCP or unix socket")
        sock.setblocking(False)
        sockets.append(sock)
    return sockets
