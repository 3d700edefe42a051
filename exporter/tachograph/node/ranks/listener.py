"""The unix socket to which ranks connect: its path, its permissions, and its connection limits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tachograph.backoff import Backoff
from tachograph.catalog import index as catalog
from tachograph.node.clock import Clock
from tachograph.node.log import OncePerMinute
from tachograph.node.ranks.frames import Peer
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.process_end import ProcessEnds
from tachograph.node.ranks.rank_connection import RankConnection
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.shares import CONNECTION_COST
from tachograph.node.samples import Sample
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

REFUSALS = ("user_limit", "node_limit", "work_limit", "descriptors")
"""Those of catalog.CONNECTION_REFUSALS that apply to ranks."""

_FOLDER_MODE = 0o755
_MAX_PATH_BYTES = 107  # sun_path holds 108 with its closing zero (unix(7))
_log = logging.getLogger(__name__)


class SocketPathError(Exception):
    """The socket cannot be opened at its path; the message says why, and what to do."""


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
        self._socket: socket.socket | None = None
        self._inode: tuple[int, int] | None = None
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
        return self._socket is not None

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._connections)

    @property
    def is_reachable(self) -> bool:
        """Whether the socket's path leads to this exporter: it exists, and has not been replaced."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._inode

    def samples(self) -> Iterator[Sample]:
        """Yield the load of the socket: what frames cost, connections, and those refused, by reason."""
        yield from self._shares.samples()
        yield Sample(catalog.CONNECTIONS, ("rank",), len(self._connections))
        for reason, count in self.refused.items():
            yield Sample(catalog.CONNECTIONS_REFUSED, ("rank", reason), count)
        if self._inode is not None:  # a replay has no socket
            yield Sample(catalog.COLLECTOR_SUCCESS, ("socket",), self.is_open and self.is_reachable)

    async def open(self) -> None:
        """Open the socket, replacing a stale one; raise SocketPathError if that fails."""
        self._open()

    def _open(self) -> None:
        if self._owner is not None:
            _check_owner(self.path.parent, (self._owner, os.geteuid(), 0))
        sock = _bound(self.path, self._mode)
        self._owner = self.path.parent.stat().st_uid
        status = self.path.stat()
        self._inode = (status.st_dev, status.st_ino)
        before, self._socket = self._socket, sock
        if before is not None:
            asyncio.get_running_loop().remove_reader(before)
            before.close()
        self._listen()
        _log.info("listening to ranks", extra={"socket": self.path})

    def tick(self) -> None:
        """Close connections without a hello in time, and open the socket again if it is gone; call it once a second."""
        now = self._clock.monotonic()
        self._shares.tick()
        if self._socket is not None:
            self._keep_reachable(now)
        for connection in [each for each in self._connections if not each.greeted]:
            if now - connection.quiet_since > GREETING_SECONDS:
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
        if self._socket is None:
            return
        sock, self._socket = self._socket, None
        asyncio.get_running_loop().remove_reader(sock)
        sock.close()
        self._ends.close()
        for connection in list(self._connections):
            connection.leave()
        await asyncio.sleep(0)  # lets the transports close
        try:
            status = self.path.stat()
            if (status.st_dev, status.st_ino) == self._inode:
                self.path.unlink()
        except OSError as error:
            _log.debug("socket not removed", extra={"socket": self.path, "error": error})

    def _listen(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        """Accept waiting connections, many at a time: refusing one costs a hundredth of admitting one."""
        assert self._socket is not None
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, _ = self._socket.accept()
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
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._socket)
                loop.call_later(FULL_SECONDS, self._listen)
                return
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
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


def _check_owner(folder: Path, owners: tuple[int, ...]) -> None:
    """Raise SocketPathError for a folder of another owner, who could put a socket of its own in place of ours."""
    with contextlib.suppress(FileNotFoundError):
        if (owner := folder.stat().st_uid) not in owners:
            raise SocketPathError(f"{folder} belongs to uid {owner} now: remove it")


def _bound(path: Path, mode: int) -> socket.socket:
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise SocketPathError(
            f"socket {path}: a unix socket's path has at most {_MAX_PATH_BYTES} bytes: choose another"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        _remove_stale(path)
        sock.bind(os.fspath(path))
        path.chmod(mode)
        sock.listen(1024)  # the kernel's own limit, net.core.somaxconn, may be lower
    except OSError as error:
        sock.close()
        raise SocketPathError(f"socket {path}: {error.strerror or error}: {_next_step(path, error)}") from error
    except SocketPathError:
        sock.close()
        raise
    return sock


def _next_step(path: Path, error: OSError) -> str:
    """Return what to do about a socket that cannot be made, at both of its ends."""
    other = f"choose another with --socket PATH, and set {SOCKET_ENVIRONMENT}=PATH for the ranks"
    if not isinstance(error, PermissionError):
        return other
    folder, uid = path.parent, os.geteuid()
    try:
        status = folder.stat()
    except OSError:
        return f"as root `install -d -o {uid} {folder}`, or {other}"
    owned = f"{folder} belongs to uid {status.st_uid} (mode {stat.S_IMODE(status.st_mode):04o})"
    return f"{owned}, and this is uid {uid}: as root `chown {uid} {folder}`, or {other}"


def _remove_stale(path: Path) -> None:
    """Remove a socket without a listener; raise SocketPathError if it has one, or for another kind of file."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SocketPathError(f"socket {path}: a file that is not a socket is in the way: remove it")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            _log.info("stale socket replaced", extra={"socket": path})
            return
        except BlockingIOError:
            pass  # a full queue: something is listening, if slowly
    raise SocketPathError(f"socket {path}: another exporter listens there: stop it, or choose another with --socket")
