"""A listening unix socket at a path: a stale one is replaced, a live one is an error, and it is removed at the end."""

from __future__ import annotations

import logging
import os
import socket
import stat
from pathlib import Path

_FOLDER_MODE = 0o755
_MAX_PATH_BYTES = 107  # sun_path holds 108 with its closing zero (unix(7))
_log = logging.getLogger(__name__)


class SocketPathError(Exception):
    """The socket cannot be opened at its path; the message says why, and what to do."""


def fits(path: Path) -> bool:
    """Return whether a path is short enough for a unix socket."""
    return len(os.fsencode(path)) <= _MAX_PATH_BYTES


class UnixSocket:
    """A listening socket; `option` gives its path, and `also` is what else depends on that. Raise SocketPathError."""

    def __init__(self, path: Path, mode: int, option: str, also: str = "") -> None:
        self.path = path
        self.sock = _bound(path, mode, option, also)
        self._inode = self._at_path()

    @property
    def is_reachable(self) -> bool:
        """Whether the path leads to this socket: it exists, and has not been replaced."""
        try:
            return self._at_path() == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Stop listening."""
        self.sock.close()

    def remove(self) -> None:
        """Remove the path if it is still this socket's."""
        try:
            if self._at_path() == self._inode:
                self.path.unlink()
        except OSError as error:
            _log.debug("socket not removed", extra={"socket": self.path, "error": error})

    def _at_path(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_dev, status.st_ino


def _bound(path: Path, mode: int, option: str, also: str) -> socket.socket:
    if not fits(path):
        raise SocketPathError(
            f"socket {path}: a unix socket's path has at most {_MAX_PATH_BYTES} bytes: choose another"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        _remove_stale(path, option)
        sock.bind(os.fspath(path))
        path.chmod(mode)
        sock.listen(1024)  # the kernel's own limit, net.core.somaxconn, may be lower
    except OSError as error:
        sock.close()
        step = _next_step(path, error, f"choose another with {option} PATH{also}")
        raise SocketPathError(f"socket {path}: {error.strerror or error}: {step}") from error
    except SocketPathError:
        sock.close()
        raise
    return sock


def _next_step(path: Path, error: OSError, other: str) -> str:
    """Return what to do about a socket that cannot be made."""
    if not isinstance(error, PermissionError):
        return other
    folder, uid = path.parent, os.geteuid()
    try:
        status = folder.stat()
    except OSError:
        return f"as root `install -d -o {uid} {folder}`, or {other}"
    owned = f"{folder} belongs to uid {status.st_uid} (mode {stat.S_IMODE(status.st_mode):04o})"
    return f"{owned}, and this is uid {uid}: as root `chown {uid} {folder}`, or {other}"


def _remove_stale(path: Path, option: str) -> None:
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
    raise SocketPathError(f"socket {path}: another exporter listens there: stop it, or choose another with {option}")
