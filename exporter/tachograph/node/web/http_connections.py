"""The HTTP connections of one exporter: their number, their timeouts, and which one is closed to make room.

A connection costs nothing until its first byte, since the kernel holds it back until then (TCP_DEFER_ACCEPT in tcp(7)),
or only a socket if that is not available; only then is it given a protocol of aiohttp. So a client that sends its
request at once, as scrapers do, is being answered before a crowd of new connections could displace it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from tachograph.node.descriptors import NO_DESCRIPTOR, accept, most_http
from tachograph.node.log import OncePerMinute
from tachograph.node.web.readers import STRANGER, PeerUser
from tachograph.node.web.web_config import is_named

HEADER_SECONDS = 5.0
"""From the accept, or from the first byte of a further request, to the end of its headers; a TLS handshake included."""
ANSWER_SECONDS = 10.0
"""Time allowed to read an answer: Prometheus' default scrape timeout."""
KEEP_ALIVE_SECONDS = 75.0
"""Time that a connection may stay idle: more than a scrape interval."""
REQUEST_BYTES = 16 * 1024
"""Maximum size of a request, headers and body; no page takes a body."""
SAFE_SECONDS = 1.0
"""Time after its request for which a connection is not displaced; answers take milliseconds."""
TURNS = 16
"""Iterations of the event loop that a new connection has before others can displace it; an answer begins within six."""
PAUSE_SECONDS = 0.1
"""Time for which no connection is accepted after file descriptors ran out."""

_IPV6_GROUP_BYTES = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Security:
    """The requirements on a connection: TLS with `context`, one of `names` in the client's certificate, a password."""

    context: ssl.SSLContext | None = None
    names: frozenset[str] = frozenset()
    needs_password: bool = False


OPEN = Security()
"""On the exporter's own unix socket: the kernel says who is there."""


class HttpConnection(asyncio.Protocol):
    """One connection: passes everything on to aiohttp's protocol, and tracks the stage of the request."""

    __slots__ = (
        "_answered", "_bytes", "_inner", "_owner", "group", "reader", "secure", "since", "sock", "stage", "transport",
        "user",
    )  # fmt: skip

    def __init__(
        self,
        owner: HttpConnections,
        sock: socket.socket,
        group: str,
        secure: Security,
        *,
        user: PeerUser | None = None,
    ) -> None:
        self._owner = owner
        self.secure = secure
        self.sock = sock
        self.group = group
        self.user = user
        """Who is at the other end of a unix socket, None over TCP."""
        self.reader = STRANGER
        """Who asked last."""
        self.stage = "silent"
        """silent, opening, reading, answering, idle or closed."""
        self.since = owner.clock()
        self.transport: asyncio.Transport | None = None
        self._inner: asyncio.Protocol | None = None
        self._answered = False
        self._bytes = 0

    def begin(self) -> None:
        """Note that a request was read, and its answer is being rendered."""
        self._enter("answering")
        self._answered = False
        self._bytes = 0

    def end(self) -> None:
        """Note that the answer is written; the connection is idle once the client has read it."""
        self._answered = True
        self.since = self._owner.clock()

    def settle(self) -> None:
        """Update the stage once the client has read an answer."""
        if self.stage == "answering" and self._answered and not self._unread():
            self.stage = "reading" if self._bytes else "idle"

    def drop(self) -> None:
        """Close at once, at any stage."""
        loop, stage = asyncio.get_running_loop(), self.stage
        self.stage = "closed"
        if self.transport is not None:
            self.transport.abort()
        elif stage == "silent":
            loop.remove_reader(self.sock)
            self.sock.close()
        else:  # asyncio holds the socket and closes it
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)

    async def open(self) -> None:
        """Create a transport for the socket, with a TLS handshake if configured."""
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: self, self.sock, ssl=self.secure.context)
        except (OSError, asyncio.TimeoutError) as error:
            self.sock.close()
            if self.stage != "closed":
                self._owner.failed(self, error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start speaking HTTP."""
        self.transport = cast(asyncio.Transport, transport)
        if self.stage == "closed":
            self.transport.abort()
            return
        if not is_named(self.transport.get_extra_info("peercert"), self.secure.names):
            self._owner.refuse(self, "tls", "client certificate has none of the client_allowed_sans")
            return
        self._inner = self._owner.protocol()
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass data on, unless the request is too large."""
        self.settle()
        if self.stage == "idle":
            self._enter("reading")
        self._bytes += len(data)
        if self._bytes > REQUEST_BYTES:
            self._owner.refuse(self, "work_limit", "HTTP request too large")
        elif self._inner is not None and self.stage != "closed":
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass it on; by default the connection closes."""
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        """Pass it on."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Free the connection's place."""
        self.stage = "closed"
        self._owner.forget(self)
        if self._inner is not None:
            self._inner.connection_lost(error)

    def busy(self, now: float) -> bool:
        """Return whether a request is being answered, and not for so long that the client must be the cause."""
        self.settle()
        return self.stage == "answering" and now - self.since < SAFE_SECONDS

    def late(self, now: float) -> bool:
        """Return whether the client has exceeded its timeout."""
        self.settle()
        limit = {"idle": KEEP_ALIVE_SECONDS, "answering": ANSWER_SECONDS}.get(self.stage, HEADER_SECONDS)
        return now - self.since > limit

    def _enter(self, stage: str) -> None:
        self.stage, self.since = stage, self._owner.clock()

    def _unread(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0


class HttpConnections:
    """Accepts connections on listening sockets and keeps at most `most` of them.

    If all places are taken, a new connection displaces the longest idle one of the address that holds most of them,
    never one whose request is being answered; if all are being answered, the new one is closed.
    """

    def __init__(self, most: int, lines: OncePerMinute, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.clock = clock
        self.accepted = 0
        self.refused = Counter[str]()
        self.security = Security()
        self.protocol: Callable[[], asyncio.Protocol] = asyncio.Protocol
        self._lines = lines
        self._connections: dict[HttpConnection, None] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._listening: list[socket.socket] = []
        self._own: socket.socket | None = None

    def __len__(self) -> int:
        return len(self._connections)

    def serve(self, sockets: list[socket.socket], protocol: Callable[[], asyncio.Protocol]) -> None:
        """Accept connections on these sockets, each with its own protocol."""
        self.protocol = protocol
        self._listening = list(sockets)
        self._resume()

    def serve_users(self, sock: socket.socket) -> None:
        """Accept connections on a unix socket as well, without TLS: the kernel says who is there."""
        self._own = sock
        self._listening.append(sock)
        self._resume()

    def stop(self) -> None:
        """Stop accepting connections."""
        loop = asyncio.get_running_loop()
        for sock in self._listening:
            loop.remove_reader(sock)
            sock.close()
        self._listening = []

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._connections):
            self._drop(connection)

    def tick(self) -> None:
        """Close connections that exceed their timeout; call it about once a second."""
        now = self.clock()
        for connection in [each for each in self._connections if each.late(now)]:
            if connection.stage != "idle":
                self.refused["slow"] += 1
            self._drop(connection)

    def forget(self, connection: HttpConnection) -> None:
        """Remove a connection."""
        self._connections.pop(connection, None)

    def refuse(self, connection: HttpConnection, reason: str, why: str) -> None:
        """Close a connection for a reason that is counted, and logged once a minute."""
        self.refused[reason] += 1
        self._lines.warning(why, peer=connection.group)
        self._drop(connection)

    def failed(self, connection: HttpConnection, error: Exception) -> None:
        """Note a connection that could not be established."""
        self.forget(connection)
        if connection.secure.context is not None:
            self.refused["tls"] += 1
            reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else error
            self._lines.warning(f"TLS handshake failed: {_plain(str(reason))}", peer=connection.group)

    def _drop(self, connection: HttpConnection) -> None:
        self.forget(connection)
        connection.drop()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(max(1, self.most // TURNS)):
            try:
                accepted = accept(listening)
            except OSError as error:
                self._out_of_descriptors(error)
                return
            if accepted is None:
                return
            sock, address = accepted
            user = PeerUser.of(sock) if listening.family == socket.AF_UNIX else None
            security = OPEN if listening is self._own else self.security
            self._take(sock, _group(address) if user is None else f"uid {user.uid}", security, user)

    def _take(self, sock: socket.socket, group: str, security: Security, user: PeerUser | None) -> None:
        now = self.clock()
        self.accepted += 1
        held = len(self._connections)
        if held >= self.most or held >= most_http():
            if held >= self.most:
                self.refused["node_limit"] += 1
            else:
                self.refused["descriptors"] += 1
                self._log_not_accepted(os.strerror(errno.EMFILE))
            leaving = self._who_gives_way(now)
            if leaving is None:
                sock.close()
                return
            self._drop(leaving)
        sock.setblocking(False)
        connection = HttpConnection(self, sock, group, security, user=user)
        self._connections[connection] = None
        asyncio.get_running_loop().add_reader(sock, self._speaks, connection)
        self._speaks(connection)

    def _who_gives_way(self, now: float) -> HttpConnection | None:
        free = [each for each in self._connections if not each.busy(now)]
        held = Counter(each.group for each in self._connections)
        return max(free, key=lambda each: (held[each.group], each.stage != "answering", -each.since), default=None)

    def _speaks(self, connection: HttpConnection) -> None:
        loop = asyncio.get_running_loop()
        try:
            first = connection.sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self._drop(connection)
            return
        loop.remove_reader(connection.sock)
        connection.stage = "opening"
        task = loop.create_task(connection.open())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _out_of_descriptors(self, error: OSError) -> None:
        """Close the longest idle connection to make room, and stop accepting for a moment."""
        self._log_not_accepted(error.strerror)
        if error.errno in NO_DESCRIPTOR:
            self.refused["descriptors"] += 1
            leaving = self._who_gives_way(self.clock())
            if leaving is not None:
                self._drop(leaving)
        loop = asyncio.get_running_loop()
        for sock in self._listening:
            loop.remove_reader(sock)
        loop.call_later(PAUSE_SECONDS, self._resume)

    def _log_not_accepted(self, reason: str | None) -> None:
        self._lines.warning(f"HTTP connections cannot be accepted: {reason}")

    def _resume(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._listening:
            loop.add_reader(sock, self._accept, sock)


def _group(address: tuple[object, ...]) -> str:
    """Return the group whose connections share places: an address, or a /64 of IPv6."""
    host = str(address[0])
    if ":" not in host:
        return host
    if host.startswith("::ffff:") and "." in host:
        return host[len("::ffff:") :]
    return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:_IPV6_GROUP_BYTES].hex(":", 2) + "::/64"


def _plain(reason: str) -> str:
    return reason.lower().replace("_", " ")
