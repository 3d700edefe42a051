"""One stream of a log, read block by block: what the table knows, once for each rank and kind, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from tachograph.logs.line import LogLine, parse
from tachograph.logs.nccl import CHANNEL, MARKS, NcclFacts
from tachograph.logs.prefilter import Prefilter
from tachograph.logs.tracebacks import Tracebacks
from tachograph.signatures.table import LONGEST, LogSignature, table

LONG_LINE = 64 << 10
"""Bytes; of a longer line only what is around a known text is read."""
MOST_SIGHTINGS = 50_000
"""Of one stream: ten kinds of lines on 5,000 ranks."""
MOST_UNKNOWN = 500
MOST_KNOWN = 4_000
"""Lines that are known again, whatever their time."""
UNKNOWN = -1
"""Stands for the row of a line that reports an error and matches none."""

_TRACEBACK = "traceback (most recent call last)"
_RESTART = ("restart_count", "attempts left")
_ERRORS = ("error", "fatal", "critical", "exception")
_SUMMARY = "(local_rank"
"""torchrun's summary names a rank, and in the lines below it how its process ended."""
_OF_SUMMARY = ("exitcode ", "traceback :")
_ERROR_SET = frozenset(_ERRORS)
_NCCL_SET = frozenset(MARKS)
_LOOKS_LIKE_ERROR = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL)\b(?!\s*=)|(?:^|[\s.])[A-Z][A-Za-z]*(?:Error|Exception)\b|(?:^|\s)(?:error|fatal): ",
    re.M,
)
_ATTEMPT = re.compile(r"restart_count[=: ]+(\d{1,6})|(\d{1,6}) ?/ ?(\d{1,6}) attempts left")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{12,}|\d+(?:\.\d+)?")
_CLOCK = re.compile(rb"\d\d:\d\d:\d\d(?:[.,]\d+)?")
_HEAD = 100
"""Bytes at the beginning of a long line that are kept, for its prefixes."""
_BEFORE = 4096
"""Bytes before a line without a time in which one is looked for."""


class Key(NamedTuple):
    """A thing that is kept once: a kind of line of one rank in one attempt; `attempt` None: no line has said it yet."""

    attempt: int | None
    row: int
    node: str
    rank: int | None
    detail: str


class Sighting(NamedTuple):
    """The first line of a key and its number (from 1, in what was read in one go), how many there were, and where from.

    `frame`: where the exception was raised, if the traceback says it.
    """

    line: int
    time: float | None
    text: str
    seen: int
    frame: str
    local: bool
    pid: int | None


class Scanned(NamedTuple):
    """Everything that a stream said."""

    sightings: dict[Key, Sighting]
    nccl: NcclFacts
    size: int
    lines: int
    long_lines: int
    lost: int
    first: float | None
    last: float | None
    attempt: int | None
    ranks: frozenset[int]


class Context(NamedTuple):
    """Facts of all lines of a stream: its number, and the rank, node and attempt that its path names."""

    file: int
    year: int
    rank: int | None = None
    local: bool = False
    node: str = ""
    attempt: int | None = None


@cache
def _marks() -> tuple[Prefilter, tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Return the prefilter, its texts, and which rows each leads to."""
    rows = table().by_text
    texts = tuple(dict.fromkeys((*rows, _TRACEBACK, _SUMMARY, *_RESTART, *_ERRORS, *MARKS)))
    return Prefilter([text.encode() for text in texts]), texts, tuple(rows.get(text, ()) for text in texts)


def prepare() -> None:
    """Read the table and make the search for its texts; raise ModuleNotFoundError without the extra `logs`."""
    _marks()


class LogScan:
    """Reads one stream."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._filter, self._texts, self._rows = _marks()
        self._table = table()
        self._weak = next(number for number, row in enumerate(self._table.rows) if row.name == "assertion")
        self._sightings: dict[Key, Sighting] = {}
        self._nccl = NcclFacts()
        self._known: dict[bytes, Key | None] = {}
        self._tracebacks = Tracebacks()
        self._attempt = context.attempt
        self._lines = self._size = self._long = self._lost = self._unknown = 0
        self._first: float | None = None
        self._last: float | None = None
        self._ranks: set[int] = set()
        self._end = b"\n"
        self._summary: int | None = None

    def feed(self, block: bytes) -> None:
        """Read the next block, which ends with the end of a line unless the stream does."""
        if not self._size:
            self._first = self._time_of(block[:_BEFORE])
        self._long += long_lines(block, continued=not self._end.endswith(b"\n"))
        counted = number = 0
        for begin, raw, marks in self._candidates(block, block.lower()):
            number += block.count(b"\n", counted, begin)
            counted = begin
            self._read(raw, marks, self._lines + number + 1, (block, begin))
        self._lines += number + block.count(b"\n", counted)
        self._size += len(block)
        self._end = block[-_BEFORE:]

    def result(self) -> Scanned:
        """Return what was read."""
        self._last = self._time_of(self._end, last=True)
        self._lines += not self._end.endswith(b"\n")
        return Scanned(
            self._sightings, self._nccl, self._size, self._lines, self._long, self._lost,
            self._first, self._last, self._attempt, frozenset(self._ranks),
        )  # fmt: skip

    def _candidates(self, block: bytes, low: bytes) -> Iterator[tuple[int, bytes, list[int]]]:
        """Yield the lines with known texts, and all lines while a traceback is open: begin, content, known texts."""
        found = self._worth_reading(block, low)
        mark = next(found, None)
        position = 0
        while position < len(block):
            if self._tracebacks:
                begin = at = position
            elif mark is not None:
                begin = max(position, block.rfind(b"\n", position, mark[1]) + 1)
                begin = max(begin, block.rfind(b"\r", begin, mark[1]) + 1)
                at = mark[1]
            else:
                return
            end = _end(block, at)
            marks: list[int] = []
            while mark is not None and mark[1] < end:
                marks.append(mark[0])
                mark = next(found, None)
            yield begin, _around(block, begin, at, end), marks
            position = end + 1

    def _worth_reading(self, block: bytes, low: bytes) -> Iterator[tuple[int, int]]:
        """Yield the known texts of a block and their places, without what healthy logs are full of.

        An `error` in small letters counts with a colon alone; channels of NCCL do as long as some are missing.
        """
        levels = {self._texts.index(text): len(text) for text in _ERRORS}
        channel = self._texts.index(CHANNEL)
        for number, start in self._filter.find(low):
            if number in levels:
                end = start + levels[number]
                if block[start:end].islower() and block[end : end + 1] != b":":
                    continue
            elif number == channel and self._nccl.full:
                continue
            yield number, start

    def _read(self, raw: bytes, marks: list[int], number: int, where: tuple[bytes, int]) -> None:
        if self._tracebacks:
            self._line(raw.decode("utf-8", errors="replace"), marks, number, where)
            return
        same = _CLOCK.sub(b"", raw)  # a line that was seen before at another time
        if same in self._known:
            if (key := self._known[same]) is not None:
                seen = self._sightings[key]
                self._sightings[key] = seen._replace(seen=seen.seen + 1)
            return
        key = self._line(raw.decode("utf-8", errors="replace"), marks, number, where)
        if not self._tracebacks:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[same] = key

    def _line(self, text: str, marks: list[int], number: int, where: tuple[bytes, int]) -> Key | None:
        """Read one line; return what it was counted as, None if it was not."""
        texts = {self._texts[mark] for mark in marks}
        if not self._tracebacks and self._is_common(text, texts):
            return None
        line = self._parsed(text)
        if _SUMMARY in texts:
            self._summary = line.rank
        elif line.rank is None and line.text.lstrip().startswith(_OF_SUMMARY):
            line = line._replace(rank=self._summary)
        who = (line.node, line.rank)
        frame = ""
        exception = False
        if who in self._tracebacks:
            inside = self._tracebacks.add(who, line.text)
            if inside is None:
                return None
            frame, exception = inside, True
        if _TRACEBACK in texts:
            self._tracebacks.begin(who)
        if _TRACEBACK in texts or line.text.lstrip().startswith(("│", "|   ", "❱")):  # frames that are drawn
            return None
        if texts & _NCCL_SET:
            self._nccl.read(line)
        if line.rank is not None and not line.local:
            self._ranks.add(line.rank)
        if not texts.isdisjoint(_RESTART) and (match := _ATTEMPT.search(line.text)):
            self._attempt = int(match[1]) if match[1] else int(match[3]) - int(match[2]) + 1
            self._known.clear()
        row = self._row(line.text, marks, texts, exception=exception)
        if row is None:
            return None
        if line.time is None:
            line = line._replace(time=self._time_of(self._before(*where), last=True))
        return self._keep(row, line, number, frame)

    def _is_common(self, text: str, texts: set[str]) -> bool:
        """Return whether a line is of the two kinds that long logs are full of and that need no parsing."""
        if texts == {CHANNEL}:
            self._nccl.channel(text)
            return True
        return texts <= _ERROR_SET and not _LOOKS_LIKE_ERROR.search(text[:600])

    def _row(self, text: str, marks: list[int], texts: set[str], *, exception: bool) -> int | None:
        """Return the number of the first row that matches, UNKNOWN for another error, None for any other line."""
        for number in sorted({row for mark in marks for row in self._rows[mark]}):
            if self._table.rows[number].matches(text[:LONGEST]):
                return number
        if exception:
            return self._weak
        if texts & _ERROR_SET and _LOOKS_LIKE_ERROR.search(text[:400]):
            return UNKNOWN
        return None

    def _keep(self, row: int, line: LogLine, number: int, frame: str) -> Key | None:
        detail = _NUMBERS.sub("#", line.text)[:120] if row in (UNKNOWN, self._weak) else ""
        key = Key(self._attempt, row, line.node, line.rank, detail)
        if seen := self._sightings.get(key):
            self._sightings[key] = seen._replace(seen=seen.seen + 1)
            return key
        if len(self._sightings) >= MOST_SIGHTINGS or (detail and self._unknown >= MOST_UNKNOWN):
            self._lost += 1
            return None
        self._unknown += bool(detail)
        text = line.text.strip()[:LONGEST]
        self._sightings[key] = Sighting(number, line.time, text, 1, frame, line.local, line.pid)
        return key

    def _before(self, block: bytes, begin: int) -> bytes:
        return block[max(0, begin - _BEFORE) : begin] if begin else self._end

    def _time_of(self, lines: bytes, *, last: bool = False) -> float | None:
        """Return the first time in some lines, or the last one."""
        parts = lines.decode("utf-8", errors="replace").split("\n")
        for part in reversed(parts) if last else parts:
            if (time := parse(part[:400], self._context.year).time) is not None:
                return time
        return None

    def _parsed(self, text: str) -> LogLine:
        line = parse(text, self._context.year)
        if line.rank is None and self._context.rank is not None:
            line = line._replace(rank=self._context.rank, local=self._context.local)
        return line if line.node or not self._context.node else line._replace(node=self._context.node)


def signature(row: int) -> LogSignature | None:
    """Return the row of a key, None for an error that no row knows."""
    return None if row == UNKNOWN else table().rows[row]


def long_lines(block: bytes, *, continued: bool = False) -> int:
    """Return how many lines of a block are longer than LONG_LINE; `continued`: without the first, begun before."""
    count, position = 0, (block.find(b"\n") + 1 or len(block)) if continued else 0
    while position + LONG_LINE < len(block):
        end = block.rfind(b"\n", position, position + LONG_LINE)
        if end < 0:
            count += 1
            end = block.find(b"\n", position + LONG_LINE)
            if end < 0:
                break
        position = end + 1
    return count


def _end(block: bytes, at: int) -> int:
    """Return where a line ends that has `at` in it: before a line break, or a carriage return of a progress bar."""
    end = block.find(b"\n", at)
    end = len(block) if end < 0 else end
    back = block.find(b"\r", at, end)
    return min(end if back < 0 else back, at + LONG_LINE)


def _around(block: bytes, begin: int, at: int, end: int) -> bytes:
    """Return a line; of a long one its beginning, with the prefixes, and what is around `at`."""
    if at - begin <= LONGEST:
        return block[begin : min(end, begin + 2 * LONGEST)]
    return block[begin : begin + _HEAD] + b" ... " + block[at - _HEAD // 2 : min(end, at + LONGEST)]
