"""The file in which the exporter's memory survives it: written whole, beside the old one, and put in its place."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path

from tachograph.node.ranks.saved_totals import SavedTotals, decode

MAX_BYTES = 4 * 2**20
"""More is neither written nor read: 256 ranks with full histograms take a quarter of it."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger(__name__)


def boot_id() -> str:
    """Return what tells one boot of this machine from another, empty where the kernel does not say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class StateFile:
    """A memory on disk; nothing that is wrong with the file raises, and what is wrong is logged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> SavedTotals | None:
        """Return what was kept in this boot of the machine, None where there is nothing, or nothing to trust."""
        try:
            data = self._read()
            saved = None if data is None else decode(data)
        except (OSError, ValueError) as error:
            _log.warning("state file not read: sums over runs start at 0", extra={"file": self.path, "error": error})
            return None
        if saved is not None and saved.boot != boot_id():
            _log.info("state file is of an earlier boot: not used", extra={"file": self.path})
            return None
        return saved

    def save(self, data: bytes) -> None:
        """Put `data` in the place of what was kept; raise OSError or ValueError where that cannot be.

        A reader sees the old or the new, never a part. It is not synced: it is of no use after a reboot.
        """
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data):,} bytes: at most {MAX_BYTES:,} are kept")
        new = self.path.with_name(self.path.name + ".new")
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        # O_EXCL: in a folder that others may write to, a link waiting under this name is not followed.
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(file, "wb") as stream:  # noqa: PTH123 - a descriptor, not a path
            stream.write(data)
        new.replace(self.path)

    def _read(self) -> bytes | None:
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with open(file, "rb") as stream:  # noqa: PTH123 - a descriptor, not a path
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise ValueError("not a plain file of this user")
            if status.st_size > MAX_BYTES:
                raise ValueError(f"{status.st_size:,} bytes: at most {MAX_BYTES:,} are read")
            return stream.read(MAX_BYTES)
