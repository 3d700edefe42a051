"""A file that is replaced as a whole: neither a reader nor a crash sees a part of it."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path


def replace(path: Path, data: bytes, mode: int) -> None:
    """Write or replace `path`, itself and not what it links to, with these permissions; raise OSError.

    A device, a pipe or a folder is not replaced: root could put a file in the place of /dev/null.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
