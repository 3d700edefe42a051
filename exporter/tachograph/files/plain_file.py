"""Reads a file of which nothing is known but its path: what is no plain file is not waited for, and has no end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_plain(path: Path, most: int) -> bytes:
    """Return what a file has when it is opened; nothing of one of the kernel's own, some of which never end.

    Raises OSError, for a pipe or a device with EINVAL, and with EFBIG for a file of more than `most` bytes.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a device or a pipe is opened without waiting
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB")
        return file.read(status.st_size)
