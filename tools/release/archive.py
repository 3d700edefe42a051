"""Archives that are the same, bit for bit, whoever packs them and when."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def normalised(path: Path, time: int) -> bytes:
    """Return a tar, packed or not, as a packed one without what differs from build to build: times, owner, order."""
    packed = io.BytesIO()
    with tarfile.open(path) as old, _packing(packed, time) as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, time
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(plain, old.extractfile(member))
    return packed.getvalue()


def folder(path: Path, name: str, time: int) -> bytes:
    """Return the files below a folder as a packed tar, in a folder of this name."""
    packed = io.BytesIO()
    with _packing(packed, time) as new:
        for each in sorted(one for one in path.rglob("*") if one.is_file()):
            plain = tarfile.TarInfo(f"{name}/{each.relative_to(path)}")
            plain.size, plain.mtime, plain.mode = each.stat().st_size, time, 0o644
            with each.open("rb") as content:
                new.addfile(plain, content)
    return packed.getvalue()


@contextmanager
def _packing(packed: io.BytesIO, time: int) -> Iterator[tarfile.TarFile]:
    """Yield a tar to add to, which is packed with the time of the release and no name."""
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=time) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        yield new
