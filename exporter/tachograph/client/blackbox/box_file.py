"""The files of a rank's boxes: `DIR/RUN/ATTEMPT/rank-R.json`, and before it `rank-R.1.json` and `rank-R.2.json`.

Boxes that were requested are `rank-R.asked.json`, `rank-R.asked.1.json` and `rank-R.asked.2.json`, so that they take
nothing from what a standstill or a failure left.

A box is there whole or not at all, and readable by this user alone. Its folders are this user's own: those made here
are closed to others, those that were there stay as they are. A link is never followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from binascii import crc32
from collections.abc import Iterator

from tachograph.client.blackbox.old_boxes import remove_old
from tachograph.client.core.file_size import may_write

KEPT = 3
LONGEST_NAME = 120
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


class TakenError(OSError):
    """Another user's folder, or none at all, stands where a folder of this user's own belongs."""


class BoxFile:
    """Where the boxes of one rank are written; `folder` and `own` are parts of the way there, `own` made if needed.

    `is_shared`: the folder is every user's, and lies in memory; so the first part of `own` holds a user's boxes, of
    which old ones give way. `asked`: the file is that of boxes that were requested.
    """

    def __init__(
        self, folder: str, own: tuple[str, ...], rank: int, *, is_shared: bool = False, asked: bool = False
    ) -> None:
        self.folder = folder
        self._own = own
        self._rank = rank
        self._is_shared = is_shared
        self._stem = f"rank-{rank}{'.asked' * asked}"

    @property
    def path(self) -> str:
        """The path of the newest box."""
        return os.path.join(self.folder, *self._own, self._name(0))  # noqa: PTH118 - as elsewhere here

    def write(self, box: bytes) -> None:
        """Write a box, which is the newest from then on; raise OSError if that fails, and the ones before it stay."""
        with contextlib.ExitStack() as opened:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, folder)
            for depth, name in enumerate(self._own):
                folder = _own_folder(name, folder)
                opened.callback(os.close, folder)
                if depth == 0 and self._is_shared:
                    with contextlib.suppress(OSError):  # what is too much stays
                        remove_old(folder, (self._own[1], self._own[2]), len(box), time.time())
            self._remove_unfinished(folder)
            new = f".rank-{self._rank}.json.{os.getpid()}.tmp"
            try:
                _write(new, folder, box)
                self._make_way(folder)
                os.rename(new, self._name(0), src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(new, dir_fd=folder)
                raise
            with contextlib.suppress(OSError):  # not every file system can
                os.fsync(folder)

    def _name(self, age: int) -> str:
        return f"{self._stem}.json" if age == 0 else f"{self._stem}.{age}.json"

    def _make_way(self, folder: int) -> None:
        for age in reversed(range(KEPT - 1)):
            name = self._name(age)
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(os.lstat(name, dir_fd=folder).st_mode):
                    os.rename(name, self._name(age + 1), src_dir_fd=folder, dst_dir_fd=folder)
                else:  # a link, which may lead anywhere
                    os.unlink(name, dir_fd=folder)

    def _remove_unfinished(self, folder: int) -> None:
        """Remove what an earlier process left that was killed while it wrote."""
        for name in os.listdir(folder):
            if name.startswith(f".rank-{self._rank}.json.") and name.endswith(".tmp"):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)


def box_file(folder: str, own: tuple[str, ...], run: str, attempt: int, rank: int, *, asked: bool = False) -> BoxFile:
    """Return the place of a rank's boxes below a folder, that of the `asked` ones for those that were requested."""
    return BoxFile(folder, (*own, safe_name(run), str(attempt)), rank, is_shared=bool(own), asked=asked)


def safe_name(run: str) -> str:
    """Return the name of a run as one plain name of a folder: others are written as `%2F`; a long one ends in a sum."""
    text = "".join(letter if letter in _PLAIN else "".join(_escaped(letter)) for letter in run)
    if text.startswith("."):
        text = "%2E" + text[1:]
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}-{crc32(run.encode('utf-8', 'replace')):08x}"


def _escaped(letter: str) -> Iterator[str]:
    return (f"%{byte:02X}" for byte in letter.encode("utf-8", "replace"))


def _own_folder(name: str, parent: int) -> int:
    """Open a folder of this user's own, which is made if it is not there; raise TakenError for a link or another's."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    _refuse_taken(name, os.lstat(name, dir_fd=parent))
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        _refuse_taken(name, os.fstat(folder))  # it may have been replaced
    except BaseException:
        os.close(folder)
        raise
    return folder


def _refuse_taken(name: str, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise TakenError(f"{name} is no folder, and belongs to uid {status.st_uid}")
    if status.st_uid != os.geteuid():
        raise TakenError(f"folder {name} belongs to uid {status.st_uid}")


def _write(name: str, folder: int, data: bytes) -> None:
    if not may_write(len(data)):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        os.fsync(file)
    finally:
        os.close(file)
