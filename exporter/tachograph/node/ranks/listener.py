"""The unix socket to which ranks connect: its path, its permissions, and its connection limits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tachograph.catalog import index as catalog
from tachograph.node.clock import Clock
from tachograph.node.descriptors import may_be_rank
from tachograph.node.log import OncePerMinute
from tachograph.node.ranks.frames import Peer
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.process_end import ProcessEnds
from tachograph.node.ranks.rank_connection import RankConnection
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.shares import CONNECTION_COST
from tachograph.node.samples import Sample
from tachograph.node.unix_socket import UnixSocket
from tachograph.wire import SOCKET_ENVIRONMENT

GREETING_SECONDS = 60.0
"""Time allowed for the hello of a connection: enough for a person at `nc -U`."""

ACCEPTED_AT_ONCE = 64
LONGEST_WAIT_SECONDS = 0.5
"""A user whose frames wait longer than this gets no further connection; a starting job waits less."""

FULL_SECONDS = 0.5
"""Time for which no connection is accepted after the process ran out of file descriptors."""

CLOSING_SECONDS = 0.05
"""The same after one was closed to make room for the next, so that its descriptor is free by then."""

REFUSALS = ("user_limit", "node_limit", "work_limit", "descriptors")
"""Those of catalog.CONNECTION_REFUSALS that apply to ranks."""

_log = logging.getLogger(__name__)


class Listener:
    """Accepts ranks on a unix socket and passes their frames to the rank table."""

    def __init__(self, path: Path, mode: int, limits: Limits, clock: Clock, table: RankTable) -> None:
        self.path = path
        self._mode = mode
        self._limits = limits
        self._clock = clock
        self._table = table
        self._shares = table.shares
        self._connections: dict[RankConnection, None] = {}
        self._ends = ProcessEnds(limits)
        self._making: set[asyncio.Task[object]] = set()
        self._bound: UnixSocket | None = None
        self._lines = OncePerMinute(_log, clock.monotonic)
        self.refused = Counter(dict.fromkeys(REFUSALS, 0))

    @property
    def is_open(self) -> bool:
        """Whether ranks can connect."""
        return self._bound is not None

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._connections)

    @property
    def is_reachable(self) -> bool:
        """Whether the socket's path leads to this exporter: it exists, and has not been replaced."""
        return self._bound is not None and self._bound.is_reachable

    def samples(self) -> Iterator[Sample]:
        """Yield the load of the socket: what frames cost, connections, and those refused, by reason."""
        yield from self._shares.samples()
        yield Sample(catalog.CONNECTIONS, ("rank",), len(self._connections))
        for reason, count in self.refused.items():
            yield Sample(catalog.CONNECTIONS_REFUSED, ("rank", reason), count)

    async def open(self) -> None:
        """Open the socket, replacing a stale one; raise SocketPathError if that fails."""
        self._bound = UnixSocket(
            self.path, self._mode, "--socket", f", and set {SOCKET_ENVIRONMENT}=PATH for the ranks"
        )
        self._listen()
        _log.info("listening to ranks", extra={"socket": self.path})

    def tick(self) -> None:
        """Close connections that did not say hello in time; call it about once a second."""
        now = self._clock.monotonic()
        self._shares.tick()
        for connection in [each for each in self._connections if not each.greeted]:
            if now - connection.quiet_since > GREETING_SECONDS:
                connection.refuse_and_close("no_hello", f"no hello within {GREETING_SECONDS:g} s")

    async def close(self) -> None:
        """Stop listening, close all connections, and remove the socket if it is still ours."""
        if self._bound is None:
            return
        bound, self._bound = self._bound, None
        asyncio.get_running_loop().remove_reader(bound.sock)
        bound.close()
        self._ends.close()
        for connection in list(self._connections):
            connection.leave()
        await asyncio.sleep(0)  # lets the transports close
        bound.remove()

    def _listen(self) -> None:
        if self._bound is not None:
            asyncio.get_running_loop().add_reader(self._bound.sock, self._accept)

    def _accept(self) -> None:
        """Accept waiting connections, many at a time: refusing one costs a hundredth of admitting one."""
        assert self._bound is not None
        listening = self._bound.sock
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self.refused["descriptors"] += 1
                self._lines.warning(f"ranks cannot connect: {error.strerror}")
                if self._connections:
                    self._make_room(self._shares.largest())
                # Waiting connections stay in the queue: retried at once, accept() would fail again.
                self._pause(FULL_SECONDS)
                return
            if not may_be_rank(sock.fileno()):
                self._refuse(sock, "descriptors", "no file descriptor is left here for another rank: wait a second")
                self._lines.warning(f"ranks cannot connect: {os.strerror(errno.EMFILE)}")
                if self._connections and self._make_room(self._shares.largest()):
                    self._pause(CLOSING_SECONDS)
                    return
                continue
            self._admit(sock)

    def _pause(self, seconds: float) -> None:
        assert self._bound is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._bound.sock)
        loop.call_later(seconds, self._listen)

    def _admit(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        share = self._shares.of(uid)
        if share.wait_seconds() > LONGEST_WAIT_SECONDS:
            self._refuse(sock, "work_limit", "your connections cost the exporter more than your share: wait a second")
            return
        if share.connections >= self._limits.connections and not self._make_room(uid):
            self._refuse(sock, "user_limit", f"you have {share.connections} connections here, each with a rank")
            return
        if self._shares.connections >= self._limits.node_connections and not self._make_room(self._shares.largest()):
            self._refuse(sock, "node_limit", f"this node has {self._shares.connections} connections, each with a rank")
            return
        self._shares.connect(uid)
        share.spend(CONNECTION_COST)
        connection = RankConnection(self._table, self._clock.monotonic, Peer(uid, pid), self._forget, self._ends)
        self._connections[connection] = None
        making = asyncio.get_running_loop().create_task(self._make(connection, sock))
        self._making.add(making)
        making.add_done_callback(self._making.discard)

    async def _make(self, connection: RankConnection, sock: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        except OSError as error:  # the peer is gone again
            _log.debug("connection not made", extra={"error": error})
            sock.close()
            self._forget(connection)

    def _make_room(self, uid: int) -> bool:
        """Close the oldest connection of a user that has not said hello; return whether there was one."""
        for connection in self._connections:
            if connection.peer.uid == uid and not connection.greeted:
                connection.refuse_and_close("rank_limit", "too many connections, and this one speaks for no rank")
                self._forget(connection)
                return True
        return False

    def _refuse(self, sock: socket.socket, reason: str, message: str) -> None:
        self.refused[reason] += 1
        with contextlib.suppress(OSError):
            sock.send(msgspec.json.encode({"ok": False, "error": message}) + b"\n", socket.MSG_NOSIGNAL)
        sock.close()

    def _forget(self, connection: RankConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._shares.disconnect(connection.peer.uid)
