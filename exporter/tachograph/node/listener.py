"""The unix socket on which ranks speak: where it lies, who may use it, how many at a time."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from pathlib import Path

from tachograph.node.clock import Clock
from tachograph.node.connection import Connection
from tachograph.node.limits import Limits
from tachograph.node.ranks import RankTable

GREETING_SECONDS = 60.0
"""How long a connection may take to say hello: enough for a person at `nc -U`."""

_FOLDER_MODE = 0o755
_MAX_PATH_BYTES = 107  # sun_path holds 108 with its closing zero (unix(7))
_log = logging.getLogger(__name__)


class SocketPathError(Exception):
    """The socket cannot be opened at its path; the message says why and what to do."""


class Listener:
    """Accepts ranks on a unix socket and hands their frames to the rank table."""

    def __init__(self, path: Path, mode: int, limits: Limits, clock: Clock, table: RankTable) -> None:
        self.path = path
        self._mode = mode
        self._clock = clock
        self._table = table
        # A rank has one connection, and for a moment two while it reconnects.
        self._most = 2 * limits.ranks
        self._connections: dict[Connection, None] = {}
        self._server: asyncio.Server | None = None
        self._inode: tuple[int, int] | None = None

    @property
    def is_open(self) -> bool:
        """Whether ranks can connect."""
        return self._server is not None

    @property
    def is_reachable(self) -> bool:
        """Whether the socket's path leads to us: it exists, and nobody put another file there."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._inode

    async def open(self) -> None:
        """Open the socket, in place of a stale one; raise SocketPathError where that cannot be."""
        sock = _bound(self.path, self._mode)
        status = self.path.stat()
        self._inode = (status.st_dev, status.st_ino)
        self._server = await asyncio.get_running_loop().create_unix_server(self._accept, sock=sock)
        _log.info("listening to ranks", extra={"socket": self.path})

    def tick(self) -> None:
        """Hang up on connections that never said hello; call it about once a second."""
        now = self._clock.monotonic()
        for connection in [each for each in self._connections if not each.greeted]:
            if now - connection.quiet_since > GREETING_SECONDS:
                connection.refuse_and_close("no_hello", f"no hello within {GREETING_SECONDS:g} s")

    async def close(self) -> None:
        """Stop listening, hang up and remove the socket, if it is still ours."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for connection in list(self._connections):
            connection.leave()
        await asyncio.sleep(0)  # lets the transports close
        try:
            status = self.path.stat()
            if (status.st_dev, status.st_ino) == self._inode:
                self.path.unlink()
        except OSError as error:
            _log.debug("socket not removed", extra={"socket": self.path, "error": error})

    def _accept(self) -> Connection:
        if len(self._connections) >= self._most:
            # Live ranks are fewer than this, so somebody holds connections without speaking: the oldest one goes.
            silent = next((each for each in self._connections if not each.greeted), None)
            if silent is not None:
                silent.refuse_and_close("rank_limit", "too many connections, and this one speaks for no rank")
        connection = Connection(self._table, self._clock.monotonic, self._forget)
        self._connections[connection] = None
        return connection

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)


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
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise SocketPathError(f"socket {path}: {error.strerror or error}: choose another with --socket") from error
    except SocketPathError:
        sock.close()
        raise
    return sock


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on; raise SocketPathError for a live one or for another kind of file."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SocketPathError(f"socket {path}: a file that is not a socket is in the way: remove it")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            _log.info("stale socket replaced", extra={"socket": path})
            return
        except TimeoutError:
            pass  # a full queue: somebody listens, if slowly
    raise SocketPathError(f"socket {path}: another exporter listens there: stop it, or choose another with --socket")
