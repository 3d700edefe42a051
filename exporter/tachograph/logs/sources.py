"""Where logs come from: files, folders, standard input, packed files."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from tachograph.logs.document import as_lines, is_document
from tachograph.logs.names import contexts
from tachograph.logs.sightings import Context

BLOCK = 4 << 20
"""Bytes read at once."""
PART = 64 << 20
"""Bytes of a large file that are read by one process in one go."""
HIGHLY_PACKED, LARGEST_UNPACKED = 500, 256 << 20
"""Logs pack to a hundredth. What unpacks to so many times its size is read up to that many bytes."""
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, UnicodeError)
"""Exceptions of reading a file, packed or not."""

_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
_OPENED: dict[str, Callable[[io.BufferedReader], ReadsPieces]] = {
    "gzip": lambda file: gzip.GzipFile(fileobj=file),
    "bzip2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
}
_REFUSED = {
    b"\x28\xb5\x2f\xfd": "packed with zstd; unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\x7fELF": "binary",
}
_CONTROL = bytes(set(range(32)) - set(b"\0\a\b\t\n\v\f\r\x1b"))
"""Bytes that no text has."""
_WIDE = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


class ReadsPieces(Protocol):
    """A file of bytes that returns what there is; empty at its end."""

    def read1(self, size: int, /) -> bytes:
        """Return up to `size` bytes."""


class FilePart(NamedTuple):
    """A part of a file that is read in one go; `end` None: to its end. A packed file is one part."""

    path: str
    context: Context
    begin: int = 0
    end: int | None = None


class Unread(NamedTuple):
    """A log that could not be read, or not as it is, and why; `skipped`: nothing of it was read."""

    name: str
    why: str
    skipped: bool = True


def files(paths: Sequence[str], problems: list[Unread]) -> Iterator[tuple[Path, bool]]:
    """Yield the files of paths, folders opened up and sorted, each with whether it was named itself."""
    seen: set[str] = set()
    for given in paths:
        path = Path(given)
        try:
            if not path.is_dir():
                yield path, True
                continue
            real = dict(_walk(path, os.path.realpath(path), problems))
        except OSError as error:
            problems.append(Unread(given, error.strerror or type(error).__name__))
            continue
        inside = [one for one, place in real.items() if place not in seen]
        if not inside:
            problems.append(Unread(given, "no files in this folder"))
        for one in inside:
            seen.add(real[one])
            yield one, False


def _walk(folder: Path, real: str, problems: list[Unread]) -> Iterator[tuple[Path, str]]:
    """Yield the files of a folder, each with its path without links; `real`: that of the folder."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        problems.append(Unread(str(folder), error.strerror or type(error).__name__))
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = folder / entry.name
        if entry.is_symlink():
            yield path, os.path.realpath(path)
        elif entry.is_dir():
            yield from _walk(path, f"{real}/{entry.name}", problems)
        else:
            yield path, f"{real}/{entry.name}"


def plan(paths: Sequence[str], problems: list[Unread]) -> list[FilePart]:
    """Return the parts of all files of paths, folders opened up, in order."""
    found = list(files(paths, problems))
    known = contexts([path for path, _ in found])
    return [
        part
        for (path, named), context in zip(found, known, strict=True)
        for part in parts(path, context, problems, named=named)
    ]


def parts(path: Path, context: Context, problems: list[Unread], *, named: bool) -> list[FilePart]:
    """Return the parts of a file; none, and a problem, for one that cannot be read."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            if named and stat.S_ISFIFO(status.st_mode):
                return [FilePart(str(path), context)]
            problems.append(Unread(str(path), "not a regular file"))
            return []
        with path.open("rb") as file:
            start = _start(file) if status.st_size else b""  # some of the kernel's files never end
            written = list(_written(file.fileno(), status.st_size))
    except OSError as error:
        problems.append(Unread(str(path), error.strerror or type(error).__name__))
        return []
    if why := refused(start):
        problems.append(Unread(str(path), why))
        return []
    if packing(start) or wide(start) or is_document(start, status.st_size):
        return [FilePart(str(path), context)]
    note = not_utf8(start)
    if note:
        problems.append(Unread(str(path), note, skipped=False))
    return [
        FilePart(str(path), context, at, min(at + PART, end))
        for begin, end in written
        for at in range(begin, end, PART)
    ]


def refused(start: bytes) -> str:
    """Return why a file that begins so is not read, "" if it is."""
    if not start:
        return "empty"
    for magic, why in _REFUSED.items():
        if start.startswith(magic):
            return why
    letters = start.replace(b"\0", b"")
    odd = len(letters.translate(None, _CONTROL)) < len(letters)
    if (odd or not letters) and not packing(start) and not wide(start):
        return "binary"
    return ""


def _start(file: io.BufferedReader) -> bytes:
    """Return the beginning of a file, without the zeros of one that was cut while it was open for writing."""
    with suppress(OSError):  # nothing was written from here to its end
        file.seek(0, os.SEEK_DATA)
        while start := file.read(8192):
            if letters := start.lstrip(b"\0"):
                return letters if len(letters) == len(start) else letters + file.read(8192)
            file.seek(file.tell(), os.SEEK_DATA)
    return b"\0"


def _written(number: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where a file begins and ends to have content: holes of a part or more are left out, some of many TB."""
    begin = end = 0
    with suppress(OSError):  # nothing was written from here to its end
        while end < size:
            after = os.lseek(number, end, os.SEEK_DATA)
            if after - end >= PART:
                if end > begin:
                    yield begin, end
                begin = after
            end = min(os.lseek(number, after, os.SEEK_HOLE), size)
    if end > begin:
        yield begin, end


def packing(start: bytes) -> str:
    """Return how a file that begins so is packed, "" if it is not."""
    return next((name for magic, name in _PACKED.items() if start.startswith(magic)), "")


def wide(start: bytes) -> str:
    """Return the encoding that a byte order mark says, "" without one."""
    return next((name for mark, name in _WIDE.items() if start.startswith(mark)), "")


def not_utf8(start: bytes) -> str:
    """Return a remark on text that is not UTF-8, "" for text that is."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return "not UTF-8: other letters than those of ASCII are replaced"
    return ""


def blocks(part: FilePart) -> Iterator[bytes]:
    """Yield a part as blocks of whole lines; raise one of UNREADABLE.

    A part begins after the first line break behind its beginning, unless a hole is before that, and ends with the line
    that reaches over its end.
    """
    with open(part.path, "rb") as file:  # noqa: PTH123  of 20,000 small files, a Path each costs as much as reading them
        if part.end is None:
            yield from whole_lines(_unpacked(file))
            return
        position = part.begin
        if position:
            file.seek(position - 1)
            before = file.readline(BLOCK)
            position += 0 if before.startswith(b"\0") else len(before) - 1
        file.seek(position)
        while position < part.end:
            block = file.read(min(BLOCK, part.end - position))
            if not block:
                return
            if not block.endswith(b"\n"):
                block += file.readline(BLOCK)
            position += len(block)
            yield block


def whole_lines(file: ReadsPieces) -> Iterator[bytes]:
    """Yield a stream as blocks of whole lines; a line that is longer than a block is cut.

    What was read before an error is yielded before the error is raised.
    """
    pieces: list[bytes] = []
    size = 0
    try:
        while piece := file.read1(BLOCK):
            pieces.append(piece)
            size += len(piece)
            if size >= BLOCK:
                block = b"".join(pieces)
                cut = block.rfind(b"\n") + 1 or size
                yield block[:cut]
                pieces, size = [block[cut:]], size - cut
    except UNREADABLE:
        if size:
            yield b"".join(pieces)
        raise
    if size:
        yield b"".join(pieces)


def _unpacked(file: io.BufferedReader) -> ReadsPieces:
    if not file.seekable():
        return file
    start = file.read(8192)
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if is_document(start, size):
        return as_lines(file.read())
    if encoding := wide(start):
        return _Recoded(file, encoding)
    opened = _OPENED.get(packing(start))
    return _Unpacked(file, opened(file)) if opened else file


class _Unpacked:
    """The content of a packed file; an OSError where that is far more than a log's could be."""

    def __init__(self, packed: io.BufferedReader, content: ReadsPieces) -> None:
        self._packed, self._content = packed, content
        self._size = 0

    def read1(self, size: int, /) -> bytes:
        """Return the next bytes; empty at the end."""
        data = self._content.read1(size)
        self._size += len(data)
        if self._size > max(LARGEST_UNPACKED, HIGHLY_PACKED * self._packed.tell()):
            raise OSError(f"it unpacks to more than {HIGHLY_PACKED} times its size")
        return data


class _Recoded:
    """A file of another encoding, read as UTF-8."""

    def __init__(self, file: io.BufferedReader, encoding: str) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")

    def read1(self, size: int, /) -> bytes:
        """Return the next letters, encoded; empty at the end."""
        while data := self._file.read1(size):
            if text := self._decoder.decode(data):
                return text.encode(errors="replace")
        return b""


def standard_input() -> ReadsPieces:
    """Return standard input as bytes; nothing where it is closed."""
    return io.BytesIO() if sys.stdin is None else cast("ReadsPieces", sys.stdin.buffer)
