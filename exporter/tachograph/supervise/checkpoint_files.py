"""The files of a checkpoint: their sizes, and whether they are still as they were saved. Run as a process of its own.

`list PATH LISTING PATH LISTING …` writes their names and sizes to files; `check PATH LISTING SECONDS` writes what is
wrong with one, nothing if it can be restored.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path

from tachograph.files import atomic_file

CHECKSUMS = "SHA256SUMS"
"""The file in a checkpoint's folder with the checksums of the others, as sha256sum(1) writes and checks it."""

CHECKSUM = re.compile(
    r"(?P<escaped>\\?)(?:(?P<sum>[0-9a-fA-F]{64}) [ *](?P<name>.+)"
    r"|SHA256 \((?P<tagged>.+)\) = (?P<tag>[0-9a-fA-F]{64}))"
)
"""A line of it, in either of sha256sum's forms; one with a backslash in front has a name that is escaped."""
ESCAPE = re.compile(r"\\(.)")

BLOCK_BYTES = 1 << 20


def main() -> None:
    """Do what is asked for."""
    what, *given = sys.argv[1:]
    if what == "check":
        path, listing, seconds = given
        sys.stdout.buffer.write(os.fsencode(fault(Path(path), Path(listing), float(seconds))))
        return
    for path, listing in zip(given[::2], given[1::2], strict=True):
        with suppress(OSError):  # it is not visible from here
            atomic_file.replace(Path(listing), json.dumps(sizes(Path(path))).encode(), 0o600)


def sizes(path: Path) -> dict[str, int]:
    """Return the bytes of each file of a checkpoint by its name in the folder, "" for one that is a file itself.

    Raise OSError.
    """
    if not path.is_dir():
        return {"": _size(path)}
    found = (Path(folder, name) for folder, _, names in os.walk(path, onerror=_raise) for name in names)
    return {str(each.relative_to(path)): _size(each) for each in found}


def _size(path: Path) -> int:
    """Return the size of a file that can be read; opened, as NFS may know an old one until then.

    A pipe is not waited for.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def fault(path: Path, listing: Path, seconds: float) -> str:
    """Return what is wrong with a checkpoint, empty if nothing is, or if it was never visible from here.

    Checksums that are not read within that time are left out.
    """
    deadline = time.monotonic() + seconds
    listed: dict[str, int] = json.loads(listing.read_bytes()) if listing.exists() else {}
    if not path.exists():
        return f"{path} is gone" if listed else ""
    if not os.access(path.parent, os.W_OK):
        return f"{path.parent} cannot be written to, so the next one could not be saved"
    try:
        return next(chain(_other_sizes(path, listed), _wrong_checksums(path, deadline)), "")
    except OSError as error:
        return f"{error.filename or path}: {error.strerror or error}"


def _other_sizes(path: Path, listed: Mapping[str, int]) -> Iterator[str]:
    """Yield each file that is gone, or has another size than is listed."""
    now = sizes(path)
    if missing := sorted(listed.keys() - now.keys()):
        yield f"{path / missing[0]} is gone (missing: {len(missing)} of {len(listed)} files)"
    for name, before in listed.items():
        if now[name] != before:
            yield f"{path / name} has {now[name]:,} bytes, and had {before:,} when it was saved"


def _wrong_checksums(path: Path, deadline: float) -> Iterator[str]:
    """Yield each file that has not the checksum that is kept of it."""
    kept = path / CHECKSUMS
    if not kept.is_file():
        return
    for line in kept.read_text(encoding="utf-8", errors="replace").split("\n"):
        if (found := CHECKSUM.fullmatch(line.rstrip("\r"))) is None:  # sha256sum --check, too, passes over such a line
            continue
        name = found["name"] or found["tagged"]
        if found["escaped"]:
            name = ESCAPE.sub(lambda one: {"n": "\n", "r": "\r"}.get(one[1], one[1]), name)
        file, checksum = path / name, (found["sum"] or found["tag"]).lower()
        if file == kept:  # of an earlier one, as where a folder is saved into a second time
            continue
        digest = hashlib.sha256()
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as read:  # noqa: PTH123 - a pipe is not waited for
            while block := read.read(BLOCK_BYTES):
                digest.update(block)
                if time.monotonic() > deadline:
                    return
        if digest.hexdigest() != checksum:
            yield f"{file} is damaged: it does not have the checksum that {CHECKSUMS} has of it"


def _raise(error: OSError) -> None:
    raise error
