"""Removal of a user's old boxes from the folder beside the exporter's socket, which lies in memory and is nobody's.

Only what has the shape of a box and is this user's own is removed; a link is never followed.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from typing import NamedTuple

MOST_SECONDS = 7 * 86400.0
"""Boxes of an attempt in which none was written for so long are removed."""

MOST_BYTES = 64 << 20
"""Of all boxes of a user: the attempts in which none was written for longest give way, but for the one that writes."""

_BOX = re.compile(r"rank-\d+(?:\.asked)?(?:\.\d)?\.json|\.rank-\d+\.json\.\d+\.tmp")


class _Attempt(NamedTuple):
    written: float
    size: int
    run: str
    number: str


def remove_old(folder: int, writing: tuple[str, str], size: int, now: float) -> None:
    """Make room for a box of `size` bytes in a user's open folder; of the run and attempt that write it, all stays."""
    room = MOST_BYTES - size
    for each in sorted(_attempts(folder), reverse=True):
        room -= each.size
        if (each.run, each.number) != writing and (room < 0 or now - each.written > MOST_SECONDS):
            _remove(folder, each)


def _attempts(folder: int) -> Iterator[_Attempt]:
    for run in os.listdir(folder):
        with _opened(run, folder) as run_folder:
            for number in () if run_folder is None else os.listdir(run_folder):  # noqa: PTH208 - a descriptor
                with _opened(number, run_folder) as attempt:
                    if attempt is not None and number.isdigit():
                        found = [status for _, status in _boxes(attempt)]
                        written = max([each.st_mtime for each in found] or [os.fstat(attempt).st_mtime])
                        yield _Attempt(written, sum(each.st_size for each in found), run, number)


def _remove(folder: int, attempt: _Attempt) -> None:
    with _opened(attempt.run, folder) as run_folder, _opened(attempt.number, run_folder) as opened:
        if opened is None:
            return
        for name, _ in _boxes(opened):
            with contextlib.suppress(FileNotFoundError):  # another rank removed it
                os.unlink(name, dir_fd=opened)
        with contextlib.suppress(OSError):  # something else is in it, or another rank was faster
            os.rmdir(attempt.number, dir_fd=run_folder)
            os.rmdir(attempt.run, dir_fd=folder)


def _boxes(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the names of this user's boxes in an open folder."""
    for name in os.listdir(folder):
        if _BOX.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(name, dir_fd=folder)
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                    yield name, status


@contextlib.contextmanager
def _opened(name: str, parent: int | None) -> Iterator[int | None]:
    """Open a folder of this user's own; it is None for a link, a file, and what is another's or gone."""
    folder = None
    try:
        if parent is not None:
            with contextlib.suppress(OSError):
                folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        own = folder is not None and os.fstat(folder).st_uid == os.geteuid()
        yield folder if own else None
    finally:
        if folder is not None:
            os.close(folder)
