"""Writes and reads a file in a folder: in a process apart from the command.

A process of its own, because a lost network filesystem holds up whoever asks it for anything.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from tachograph.preflight.mounts import mount_of

BLOCK = 8 * 2**20


def probe(folder: str, size: int) -> dict[str, Any]:
    """Return what is wrong with a folder, its free bytes, and the bytes per second of writing and reading `size`.

    Keys: `problem` (a word, "" if nothing is wrong), `detail`, `kind`, `source`, `free`, `inodes`, `write`, `read`.
    """
    found: dict[str, Any] = {"problem": "", "detail": "", "kind": "", "source": "", "free": None, "inodes": None}
    found |= {"write": None, "read": None}
    try:
        status = os.stat(folder)  # noqa: PTH116 - the folder is text, as it was given
        if not os.path.isdir(folder):  # noqa: PTH112
            return found | {"problem": "not_a_folder", "detail": oct(status.st_mode)}
        mount = mount_of(folder)
        if mount is not None:
            found |= {"kind": mount.kind, "source": mount.source, "mount": mount.point, "read_only": mount.read_only}
        room = os.statvfs(folder)
        found["free"] = room.f_bavail * room.f_frsize
        found["inodes"] = room.f_favail if room.f_files else None
        nameless = not found["kind"].startswith("fuse")
        speeds = _written(folder, min(size, found["free"]) if found["free"] >= BLOCK else 1, nameless=nameless)
    except OSError as error:
        return found | {"problem": _problem(error), "detail": os.strerror(error.errno or 0)}
    return found | (speeds if found["free"] >= size else {})


def _problem(error: OSError) -> str:
    words = {
        errno.ENOENT: "missing", errno.EROFS: "read_only", errno.ENOSPC: "full", errno.EDQUOT: "quota",
        errno.EACCES: "permission", errno.EPERM: "permission", errno.ENOTDIR: "not_a_folder", errno.ESTALE: "stale",
    }  # fmt: skip
    return words.get(error.errno or 0, "error")


def _written(folder: str, size: int, *, nameless: bool) -> dict[str, float]:
    """Return the speeds; a file without a name is gone with whoever writes it, but object stores know none."""
    block = os.urandom(min(BLOCK, size))  # some filesystems compress, or store zeros for nothing
    descriptor, path = tempfile.mkstemp(prefix=".tachograph-preflight-", dir=folder)
    try:
        if nameless:
            os.unlink(path)  # noqa: PTH108
        with contextlib.closing(os.fdopen(descriptor, "r+b", buffering=0)) as file:
            began = time.perf_counter()
            for _ in range(max(size // len(block), 1)):
                if file.write(block) != len(block):  # what does not fit is written in part, and is no error
                    raise OSError(errno.ENOSPC, "written in part")
            os.fsync(file.fileno())
            written = time.perf_counter() - began
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            began = time.perf_counter()
            total = 0
            while chunk := file.read(BLOCK):
                total += len(chunk)
            return {"write": total / max(written, 1e-9), "read": total / max(time.perf_counter() - began, 1e-9)}
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108


def main() -> None:
    """Read {"folder", "size"} from standard input, print what was found."""
    asked: Mapping[str, Any] = json.load(sys.stdin)
    json.dump(probe(asked["folder"], asked["size"]), sys.stdout)
