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
from tachograph.node.descriptors import NO_DESCRIPTOR, accept, may_be_rank
from tachograph.node.log import OncePerMinute
from tachograph.node.ranks.frames import Peer
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.process_end import ProcessEnds
from tachograph.node.ranks.rank_connection import RankConnection
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.shares import CONNECTION_COST
from tachograph.node.samples import Sample
from tachograph.node.unix_socket import SocketPathError, UnixSocket
from tachograph.processes.backoff import Backoff
from tachograph.wire import SOCKET_ENVIRONMENT

GREETING_SECONDS = 60.0
"""Time allowed for the hello of a connection: enough for a person at `nc -U`."""

ACCEPTED_AT_ONCE = 64
LONGEST_WAIT_SECONDS = 0.5
"""A user whose frames wait longer than this gets no further connection; a starting job waits less."""

FULL_SECONDS = 0.5
"""Time for which no connection is accepted after the process ran out of file descriptors."""

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 30.0
"""Pauses between attempts to open a socket again that is gone from its path."""
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
        self._ends = ProcessEnds(limits, self._shares.exceeded)
        self._making: set[asyncio.Task[object]] = set()
        self._bound: UnixSocket | None = None
        self._owner: int | None = None
        """The uid that owned the socket's folder when the socket was last opened."""
        self._lines = OncePerMinute(_log, clock.monotonic)
        self._retry = Backoff(FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS)
        self._retry_at = 0.0
        self.fault = ""
        """Why the socket is not at its path, in words; empty while it is, and before it was first missed."""
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
        if self._owner is not None:  # a replay has no socket
            yield Sample(catalog.COLLECTOR_SUCCESS, ("socket",), self.is_open and self.is_reachable)

    async def open(self) -> None:
        """Open the socket, replacing a stale one; raise SocketPathError if that fails."""
        self._open()

    def _open(self) -> None:
        if self._owner is not None:
            _check_owner(self.path.parent, (self._owner, os.geteuid(), 0))
        bound = UnixSocket(self.path, self._mode, "--socket", f", and set {SOCKET_ENVIRONMENT}=PATH for the ranks")
        self._owner = self.path.parent.stat().st_uid
        before, self._bound = self._bound, bound
        if before is not None:
            asyncio.get_running_loop().remove_reader(before.sock)
            before.close()
        self._listen()
        _log.info("listening to ranks", extra={"socket": self.path})

    def tick(self) -> None:
        """Close connections of no rank or of a dead one, open the socket again if it is gone; call it once a second."""
        now = self._clock.monotonic()
        self._shares.tick()
        if self._bound is not None:
            self._keep_reachable(now)
        for connection in list(self._connections):
            connection.end_if_orphaned()
            if not connection.greeted and now - connection.quiet_since > GREETING_SECONDS:
                connection.refuse_and_close("no_hello", f"no hello within {GREETING_SECONDS:g} s")

    def _keep_reachable(self, now: float) -> None:
        """Open the socket again if it, or its folder, was deleted or replaced; connected ranks stay connected."""
        if self.is_reachable:
            self.fault = ""
            self._retry.reset()
            return
        if self.fault and now < self._retry_at:
            return
        try:
            self._open()
        except (SocketPathError, OSError) as error:
            self.fault = str(error)
            self._lines.warning("ranks cannot connect: the socket is gone from its path", error=error)
            self._retry_at = now + self._retry.next()
        else:
            self.fault = ""

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
                accepted = accept(listening)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR:
                    raise
                self.refused["descriptors"] += 1
                self._lines.warning(f"ranks cannot connect: {error.strerror}")
                self._make_room()
                # Waiting connections stay in the queue: retried at once, accept() would fail again.
                self._pause(FULL_SECONDS)
                return
            if accepted is None:
                return
            sock, _ = accepted
            if not may_be_rank(sock.fileno()):
                self._refuse(sock, "descriptors", "no file descriptor is left here for another rank: wait a second")
                self._lines.warning(f"ranks cannot connect: {os.strerror(errno.EMFILE)}")
                if self._make_room():
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
        peer = _peer(sock)
        uid = peer.uid
        share = self._shares.of(uid)
        if share.wait_seconds() > LONGEST_WAIT_SECONDS:
            self._shares.exceeded(uid, "cpu")
            self._refuse(sock, "work_limit", "your connections cost the exporter more than your share: wait a second")
            return
        is_over = share.connections >= self._limits.connections
        if is_over:
            self._shares.exceeded(uid, "connections")
        if is_over and not self._make_room(uid):
            self._refuse(sock, "user_limit", f"you have {share.connections} connections here, each with a rank")
            return
        if self._shares.connections >= self._limits.node_connections and not self._make_room():
            self._refuse(sock, "node_limit", f"this node has {self._shares.connections} connections, each with a rank")
            return
        self._shares.connect(uid)
        share.spend(CONNECTION_COST)
        connection = RankConnection(self._table, self._clock.monotonic, peer, self._forget, self._ends)
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

    def _make_room(self, uid: int | None = None) -> bool:
        """Close the oldest connection without a hello, of a user or the one with most; return whether there was one."""
        silent = [each for each in self._connections if not each.greeted]
        held = Counter(each.peer.uid for each in silent)
        user = max(held, key=held.__getitem__, default=None) if uid is None else uid
        for connection in silent:
            if connection.peer.uid == user:
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


def _peer(sock: socket.socket) -> Peer:
    """Return the process that connected, as the kernel identifies it."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return Peer(uid, pid)


def _check_owner(folder: Path, owners: tuple[int, ...]) -> None:
    """Raise SocketPathError for a folder of another owner, who could put a socket of its own in place of ours."""
    with contextlib.suppress(FileNotFoundError):
        if (owner := folder.stat().st_uid) not in owners:
            raise SocketPathError(f"{folder} belongs to uid {owner} now: remove it")
