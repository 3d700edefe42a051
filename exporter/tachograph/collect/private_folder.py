"""A folder for evidence: closed to others, and written to without following a link in it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class PrivateFolder:
    """The folder at a path, made with mode 0700 if it is not there. Raise OSError if it cannot be had."""

    def __init__(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> PrivateFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._folder)

    def write(self, name: str, content: bytes, inner: str = "") -> None:
        """Write a file whole or not at all, in a folder within where one is named; raise OSError.

        Both names are ours: nothing that comes from the network is one.
        """
        folder = self._inner(inner) if inner else os.dup(self._folder)
        try:
            new = f".{name}.{os.getpid()}.tmp"
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with contextlib.suppress(FileNotFoundError):  # of an earlier process of this number
                    os.unlink(new, dir_fd=folder)
                with open(os.open(new, flags, 0o600, dir_fd=folder), "wb") as file:  # noqa: PTH123 - in a folder by number
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(new, dir_fd=folder)
                raise
        finally:
            os.close(folder)

    def _inner(self, name: str) -> int:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self._folder)
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
