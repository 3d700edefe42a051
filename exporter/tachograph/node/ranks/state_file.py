"""The state file, in which sums over runs survive a restart of the exporter; it is replaced atomically."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path

from tachograph.node.ranks.saved_totals import SavedTotals, decode

MAX_BYTES = 8 * 2**20
"""Maximum size to write or read; 256 ranks, each of a run of its own, with the fullest histograms take 6 MiB of it."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger(__name__)


def boot_id() -> str:
    """Return the kernel's id of the current boot, empty if it is not available."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class StateFile:
    """Saved totals on disk; a bad file never raises when it is loaded, but is logged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> SavedTotals | None:
        """Return what was saved since this machine booted, None if there is nothing, or nothing valid."""
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
        """Replace the file's content with `data`; raise OSError or ValueError if that fails.

        A reader sees the old or the new content, never a part. It is not synced, as it is of no use after a reboot.
        """
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data):,} bytes: at most {MAX_BYTES:,} are kept")
        new = self.path.with_name(self.path.name + ".new")
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        # O_EXCL: in a directory that others may write to, a link with this name is not followed.
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
