"""The listening sockets of the HTTP server: bound to an address, or inherited from systemd (sd_listen_fds(3))."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import MutableMapping

from tachograph.node.web.http_connections import HEADER_SECONDS

BACKLOG = 1024
_FIRST_DESCRIPTOR = 3
_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


class NoSocketError(Exception):
    """There is no socket to inherit; the message says why."""


def inherited_sockets(environment: MutableMapping[str, str] | None = None) -> list[socket.socket]:
    """Return the sockets passed to this process by systemd; raise NoSocketError if there is none of use."""
    env = os.environ if environment is None else environment
    pid, count = env.pop("LISTEN_PID", ""), env.pop("LISTEN_FDS", "")
    env.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal() or count == "0":
        raise NoSocketError("systemd passed no socket to this process: start it through a .socket unit")
    sockets: list[socket.socket] = []
    for number in range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count)):
        try:
            os.set_inheritable(number, False)  # the GPU worker must not inherit it
            sock = socket.socket(fileno=number)
            listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            raise NoSocketError(f"descriptor {number} from systemd is no socket: {error.strerror}") from error
        if not listens or sock.type != socket.SOCK_STREAM or sock.family not in _FAMILIES:
            raise NoSocketError(f"descriptor {number} from systemd is not a listening TCP or unix socket")
        sock.setblocking(False)
        sockets.append(sock)
    return sockets


def listening_sockets(host: str | None, port: int) -> list[socket.socket]:
    """Return sockets bound to every address of a host, or to all of this machine; raise OSError if there is none."""
    if host is None and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 is compiled in but disabled
            return [_listening(("::", port), socket.AF_INET6, both=True)]
    found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    refused: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(found):
        # With port 0, all addresses share the port of the first one.
        place = (address[0], sockets[0].getsockname()[1] if sockets else port, *address[2:])
        try:
            sockets.append(_listening(place, family))
        except OSError as error:
            refused = error
            if error.errno != errno.EADDRNOTAVAIL:
                break
    if sockets and (refused is None or refused.errno == errno.EADDRNOTAVAIL):
        return sockets
    for sock in sockets:
        sock.close()
    raise refused or OSError(errno.EADDRNOTAVAIL, f"{host} has no address")


def _listening(place: tuple[object, ...], family: int, *, both: bool = False) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(HEADER_SECONDS))
        sock.bind(place)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
