"""One stream of a log, read block by block: what the table knows, once for each rank and kind, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from tachograph.logs import shape
from tachograph.logs.clocks import StepLines
from tachograph.logs.line import PLAIN, LogLine, plain, with_facts
from tachograph.logs.nccl import CHANNEL, MARKS, NcclFacts
from tachograph.logs.prefilter import Prefilter
from tachograph.logs.progress import StepsAfter, labels, step_lines
from tachograph.logs.record import LogRecord, read
from tachograph.logs.tracebacks import TracebackEnd, Tracebacks, begins
from tachograph.signatures.table import LONGEST, LogSignature, table

LONG_LINE = 64 << 10
"""Bytes; of a longer line only what is around a known text is read."""
MOST_SIGHTINGS = 50_000
"""Of one stream: ten kinds of lines on 5,000 ranks."""
MOST_UNKNOWN = 500
"""Kinds of errors that no row knows."""
MOST_KNOWN = 4_000
"""Lines that are known again, whatever their time."""
UNKNOWN = -1
"""Stands for the row of a line that reports an error and matches none."""

_TRACEBACK = "traceback (most recent call last)"
_PARTIAL = ("stdout p ", "stderr p ")
"""A container's line that goes on in the next one."""
_RESTART = ("restart_count", "attempts left")
_ERRORS = ("error", "fatal", "critical", "exception")
_SUMMARIES = ("(local_rank", " running at ")
"""torchrun's summary names a rank, and in the lines below it how its process ended; so does MPICH's banner."""
_OF_SUMMARY = ("exitcode ", "traceback :", "KILLED BY SIGNAL", "EXIT CODE:")
_ERROR_SET = frozenset(_ERRORS)
_READ_WHOLE = frozenset((_TRACEBACK, *_PARTIAL, *_RESTART, *_SUMMARIES, *MARKS))
"""Texts for which a line is read to its end, whatever else stands in it."""
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
_SAMPLE = 256 << 10
"""Bytes at the beginning that a file's shape is learned from."""
_PREFIXES = 100
"""Lines of them whose ranks are noted."""
_UNIMPORTANT = re.compile(rb"(?:^|[\s\[|(:])(?:INFO|DEBUG|TRACE)(?:[\s\]:|)]|$)")
"""The level of what a program says of itself where nothing failed."""
_AN_ERROR = re.compile(r"(?:[\w.]+\.)?\w*(?:Error|Exception)\b")
_STEP_LINES = 12
"""Lines that report steps which are kept of the first block."""
_MAY_BE_TIME = re.compile(rb"\d\d:\d\d|\d{10}")
_MAY_BE_RANK = re.compile(r"rank|[\[(<{|]|^\s*\w+:", re.IGNORECASE)
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

    `frame`: where the exception was raised, if the traceback says it. `mood`: what the line, or the one beside an
    exception, makes of it. `recovered`: its rank went on.
    """

    line: int
    time: float | None
    text: str
    seen: int
    frame: str
    local_rank: int | None
    pid: int | None
    mood: str = ""
    recovered: bool = False


class Scanned(NamedTuple):
    """Everything that a stream said.

    `within`: local ranks; `pairs`: ranks, by node and local rank; `nodes`: those that lines name.
    `steps`: those that its first lines report, if it follows another part of a file. `step_lines`: some that report
    steps, to compare its clock by.
    `unsettled`: failures that it ended with, in one attempt.
    """

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
    within: frozenset[int]
    pairs: dict[tuple[str, int], int]
    nodes: frozenset[str]
    steps: frozenset[bytes]
    unsettled: frozenset[Key]
    step_lines: StepLines


class Context(NamedTuple):
    """Facts of all lines of a stream: its number, when it was written, and what its path names.

    `guess`: the rank is a number in a name that those of this kind have; it counts if no line speaks against it.
    """

    file: int
    written: float
    node: str = ""
    attempt: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    guess: str = ""


@cache
def _marks() -> tuple[Prefilter, tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Return the prefilter, its texts, and which rows each leads to."""
    rows = table().by_text
    texts = tuple(dict.fromkeys((*rows, _TRACEBACK, *_SUMMARIES, *_PARTIAL, *_RESTART, *_ERRORS, *MARKS)))
    return Prefilter([text.encode() for text in texts]), texts, tuple(rows.get(text, ()) for text in texts)


@cache
def _of_levels() -> tuple[dict[int, int], int]:
    """Return the lengths of the texts for levels, by their numbers, and the number of the one for channels."""
    texts = _marks()[1]
    return {texts.index(text): len(text) for text in _ERRORS}, texts.index(CHANNEL)


def prepare() -> None:
    """Read the table and make the search for its texts; raise ModuleNotFoundError without the extra `logs`."""
    _marks()


class _Place(NamedTuple):
    """Where a line is: its number, and its beginning in the block."""

    number: int
    begin: int


class LogScan:
    """Reads one stream; `follows`: it begins within a file, so that its first steps say whether a failure was one."""

    def __init__(self, context: Context, *, follows: bool = False) -> None:
        self._context = context
        self._follows = follows
        self._filter, self._texts, self._rows = _marks()
        self._levels, self._channel = _of_levels()
        self._table = table()
        self._from_outside = {
            number for number, row in enumerate(self._table.rows) if row.by != "program" or "warning" in row.despite
        }
        self._by_marks: dict[tuple[int, ...], bool] = {}
        self._kinds = {number for number in self._table.general if self._table.rows[number].role == "root"}
        self._sightings: dict[Key, Sighting] = {}
        self._nccl = NcclFacts()
        self._known: dict[bytes, Key | None] = {}
        self._tracebacks = Tracebacks()
        self._progress = StepsAfter(self._parsed)
        self._shape = PLAIN
        self._steps: frozenset[bytes] = frozenset()
        self._step_lines: tuple[bytes, ...] = ()
        self._unsettled: set[Key] = set()
        self._details: set[str] = set()
        self._partial: LogRecord | None = None
        self._attempt = context.attempt
        self._lines = self._size = self._long = self._lost = 0
        self._first: float | None = None
        self._last: float | None = None
        self._ranks: set[int] = set()
        self._within: set[int] = set()
        self._pairs: dict[tuple[str, int], int] = {}
        self._nodes: set[str] = {context.node} if context.node else set()
        self._end = b"\n"
        self._block = self._low = b""
        self._stepped = 0
        self._timed: tuple[int, float | None] = (0, None)
        self._summary: tuple[int | None, str] = None, ""

    def feed(self, block: bytes) -> None:
        """Read the next block, which ends with the end of a line unless the stream does."""
        size = len(block)
        if b"\0" in block:  # as a file that was cut while it was open for writing
            block = block.replace(b"\0", b"")
        low = block.lower()
        if not self._size:
            self._learn(block)
            self._step_lines = tuple(step_lines(block, low, _STEP_LINES))
        self._long += long_lines(block, continued=not self._end.endswith(b"\n"))
        counted = number = 0
        self._block, self._low, self._stepped, self._timed = block, low, 0, (0, None)
        for begin, raw, marks in self._candidates(block, self._low):
            number += block.count(b"\n", counted, begin)
            counted = begin
            self._read(raw, marks, _Place(self._lines + number + 1, begin))
        self._advance(len(block))
        self._lines += number + block.count(b"\n", counted)
        self._size += size
        self._end = block[-_BEFORE:] or self._end
        self._block = self._low = b""

    def result(self) -> Scanned:
        """Return what was read."""
        self._last = self._time_of(self._end, last=True)
        self._lines += not self._end.endswith(b"\n")
        return Scanned(
            self._sightings, self._nccl, self._size, self._lines, self._long, self._lost,
            self._first, self._last, self._attempt, frozenset(self._ranks), frozenset(self._within), self._pairs,
            frozenset(self._nodes), self._steps,
            frozenset(key for key in self._unsettled if not self._sightings[key].recovered),
            StepLines(self._step_lines, self._shape, self._context.written, self._context.node)
        )  # fmt: skip

    def _learn(self, block: bytes) -> None:
        """Learn from some lines what each begins with, which ranks there are, and when the first one came."""
        first = block[:_SAMPLE].splitlines()
        last = block[max(len(block) - _SAMPLE, _SAMPLE) :].splitlines() or first[shape.SAMPLE :]
        lines, later = _decoded(first[: shape.SAMPLE]), _decoded(last[-shape.SAMPLE :])
        self._shape = shape.learn(lines, self._context.written, later)
        self._steps = labels(lines) if self._follows else frozenset()
        self._first = self._time_of(block[:_BEFORE])
        for line in filter(_MAY_BE_RANK.search, lines[:_PREFIXES]):
            self._note(read(line, self._context.written, self._shape).lines[0])

    def _note(self, line: LogLine) -> None:
        """Note of whom a line is."""
        if line.rank is not None:
            self._ranks.add(line.rank)
        if line.local_rank is not None:
            self._within.add(line.local_rank)
            if line.rank is not None:
                self._pairs[line.node, line.local_rank] = line.rank
        if line.node:
            self._nodes.add(line.node)

    def _candidates(self, block: bytes, low: bytes) -> Iterator[tuple[int, bytes, list[int]]]:
        """Yield the lines with known texts, and all lines while a traceback is open: begin, content, known texts."""
        found = self._worth_reading(block, low)
        mark = next(found, None)
        position = 0
        while position < len(block):
            if self._tracebacks or self._partial:
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
        for number, start in self._filter.find(low):
            if number in self._levels:
                end = start + self._levels[number]
                if block[start:end].islower() and block[end : end + 1] != b":":
                    continue
            elif number == self._channel and self._nccl.full:
                continue
            yield number, start

    def _read(self, raw: bytes, marks: list[int], at: _Place) -> None:
        if self._tracebacks or self._partial:
            self._line(raw.decode("utf-8", errors="replace"), marks, at)
            return
        if self._of_programs(tuple(marks)) and b"{" not in raw and _UNIMPORTANT.search(raw):
            return
        same = _CLOCK.sub(b"", raw)  # a line that was seen before at another time
        if same in self._known:
            key = self._known[same]
            if key is None:
                return
            seen = self._sightings[key]
            if not seen.recovered and not self._progress:
                self._sightings[key] = seen._replace(seen=seen.seen + 1)
                return
        key = self._line(raw.decode("utf-8", errors="replace"), marks, at)
        if not self._tracebacks and not self._partial:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[same] = key

    def _line(self, text: str, marks: list[int], at: _Place) -> Key | None:
        """Read one line; return what it was counted as, None if it was not, or as several things."""
        texts = {self._texts[mark] for mark in marks}
        if not self._tracebacks and not self._partial and self._is_common(text, texts, marks):
            return None
        inside: TracebackEnd | bool | None = None
        if self._tracebacks and not marks and not self._partial and "{" not in text and '": ' not in text:
            inside = self._tracebacks.add(plain(text))  # first: of its inner lines nothing else is read
            if inside is True:
                return None
        record = read(text, self._context.written, self._shape)
        if self._partial or record.partial:
            record = self._joined(record)
            if record.partial:
                return None
        if not record.json:
            return self._message(record.lines[0], record.raws[0], texts, marks, at, inside=inside)
        for line, raw in zip(record.lines, record.raws, strict=True):
            low = line.text.lower()
            known = [mark for mark, one in enumerate(self._texts) if one in low]
            self._message(line, raw, {self._texts[mark] for mark in known}, known, at)
        return None

    def _joined(self, record: LogRecord) -> LogRecord:
        """Return the record with what it continues; it is kept while it goes on itself."""
        text, goes_on = record.lines[-1].text, record.partial
        if (before := self._partial) is not None:
            line, raw = before.lines[0], before.raws[0]
            record = LogRecord((line._replace(text=line.text + text),), (raw + text,), json=True)
            goes_on = goes_on and len(raw) < LONG_LINE
        self._partial = record._replace(partial=True) if goes_on else None
        return record._replace(partial=goes_on)

    def _message(
        self, line: LogLine, raw: str, texts: set[str], marks: list[int], at: _Place, *,
        inside: TracebackEnd | bool | None = None,
    ) -> Key | None:  # fmt: skip
        """Read one message; return what it was counted as. `inside`: what it is to the open tracebacks, if known."""
        line = self._placed(line)
        if not texts.isdisjoint(_SUMMARIES):
            self._summary = line.rank, line.node
        elif line.rank is None and line.text.lstrip(" =").startswith(_OF_SUMMARY):
            line = line._replace(rank=self._summary[0], node=line.node or self._summary[1])
        raised: TracebackEnd | None = None
        if inside is None and (self._tracebacks or _TRACEBACK in texts):
            inside = self._tracebacks.add(raw)
        if inside is True:
            return None
        if isinstance(inside, TracebackEnd):
            raised = inside
            line = with_facts(line._replace(text=raised.text), raised.prefix, self._context.written, self._shape)
        if texts & _NCCL_SET:
            self._nccl.read(line)
        self._note(line)
        if not texts.isdisjoint(_RESTART) and (match := _ATTEMPT.search(line.text)):
            self._advance(at.begin)
            self._progress.forget()
            self._unsettled.clear()
            self._attempt = int(match[1]) if match[1] else int(match[3]) - int(match[2]) + 1
            self._known.clear()
        row = self._row(line.text, marks, texts, exception=raised is not None)
        if row is None:
            return None
        if line.time is None:
            line = line._replace(time=self._time_before(at.begin))
        mood = self._mood_beside(at.begin, raised.alike) if raised else self._mood(line.text, row)
        return self._keep(row, line, raised.frame if raised else "", mood, at)

    def _mood(self, text: str, row: int) -> str:
        """Return what a line makes of what it speaks of; an exception means what it says."""
        return "" if _AN_ERROR.match(text) else self._table.mood(text[:LONGEST], row)

    def _mood_beside(self, begin: int, alike: str) -> str:
        """Return what the lines before the head of a traceback, and behind its end, say of it: that it is caught."""
        near = []
        head = self._low.rfind(b"traceback (most recent call last)", 0, begin)
        line = self._block.rfind(b"\n", 0, max(head, 0))
        if line > 0:
            near.append(self._block[max(self._block.rfind(b"\n", 0, line) + 1, line - LONGEST) : line])
        end = _end(self._block, begin) + 1
        while self._block[end : end + 1] in (b"\n", b"\r"):
            end += 1
        near.append(self._block[end : _end(self._block, min(end, len(self._block)))][:LONGEST])
        texts = (plain(one.decode("utf-8", errors="replace")) for one in near)
        return next((mood for one in texts if begins(one, alike) and (mood := self._table.handled(one))), "")

    def _is_common(self, text: str, texts: set[str], marks: list[int]) -> bool:
        """Return whether a line is of the kinds that long logs are full of and that need no parsing."""
        if texts == {CHANNEL}:
            self._nccl.channel(text)
            return True
        if texts <= _ERROR_SET:
            return not _LOOKS_LIKE_ERROR.search(text[:600])
        if "{" in text or not texts.isdisjoint(_READ_WHOLE):
            return False
        found = self._rows_of(marks)
        return not self._table.may_decide(text, found)

    def _of_programs(self, marks: tuple[int, ...]) -> bool:
        """Return whether all that known texts lead to is what programs say of themselves."""
        if (known := self._by_marks.get(marks)) is None:
            texts = {self._texts[mark] for mark in marks}
            known = texts.isdisjoint(_READ_WHOLE) and self._from_outside.isdisjoint(self._rows_of(marks))
            if len(self._by_marks) >= MOST_KNOWN:
                self._by_marks.clear()
            self._by_marks[marks] = known
        return known

    def _rows_of(self, marks: Sequence[int]) -> list[int]:
        return sorted({row for mark in marks for row in self._rows[mark]})

    def _row(self, text: str, marks: list[int], texts: set[str], *, exception: bool) -> int | None:
        """Return the number of the first row that matches, UNKNOWN for another error, None for any other line."""
        if (number := self._table.decide(text, self._rows_of(marks), raised=exception)) is not None:
            return number
        if texts & _ERROR_SET and _LOOKS_LIKE_ERROR.search(text[:400]):
            return UNKNOWN
        return None

    def _keep(self, row: int, line: LogLine, frame: str, mood: str, at: _Place) -> Key | None:
        detail = _NUMBERS.sub("#", line.text)[:120] if row == UNKNOWN or row in self._kinds else ""
        key = Key(self._attempt, row, line.node, line.rank, detail)
        self._advance(at.begin)
        self._stepped = max(self._stepped, _end(self._block, at.begin))
        seen = self._sightings.get(key)
        if seen is None and (
            len(self._sightings) >= MOST_SIGHTINGS
            or (detail not in self._details and len(self._details) >= MOST_UNKNOWN)
        ):
            self._lost += 1
            return None
        if row == UNKNOWN or self._table.rows[row].role != "advice":
            self._progress.failed((line.node, line.rank), key, line.time)
            self._unsettled.add(key)
        if seen and not seen.recovered and not (seen.mood and not mood):
            self._sightings[key] = seen._replace(seen=seen.seen + 1, frame=seen.frame or frame)
            return key
        self._details.add(detail)
        text = line.text.strip()[:LONGEST]
        count = seen.seen + 1 if seen else 1
        self._sightings[key] = Sighting(at.number, line.time, text, count, frame, line.local_rank, line.pid, mood)
        return key

    def _advance(self, end: int) -> None:
        """Look between what was read and `end` for steps of ranks that had failed."""
        if self._progress and end > self._stepped:
            for key in self._progress.read(self._block, self._low, self._stepped, end):
                if isinstance(key, Key) and (seen := self._sightings.get(key)):
                    self._sightings[key] = seen._replace(recovered=True)
        self._stepped = max(self._stepped, end)

    def _time_before(self, begin: int) -> float | None:
        """Return the last time in the lines before a place; no line is read for it twice."""
        if not begin:
            return self._time_of(self._end, last=True)
        looked, known = self._timed
        start = max(looked, begin - _BEFORE)
        found = self._time_of(self._block[start:begin], last=True)
        if found is None and looked >= begin - _BEFORE:
            found = known
        self._timed = begin, found
        return found

    def _time_of(self, lines: bytes, *, last: bool = False) -> float | None:
        """Return the first time in some lines, or the last one."""
        if not _MAY_BE_TIME.search(lines):
            return None
        parts = [part.decode("utf-8", errors="replace") for part in lines.split(b"\n") if _MAY_BE_TIME.search(part)]
        for part in reversed(parts) if last else parts:
            if (time := read(part[:400], self._context.written, self._shape).lines[0].time) is not None:
                return time
        return None

    def _parsed(self, text: str) -> LogLine:
        return self._placed(read(text, self._context.written, self._shape).lines[0])

    def _placed(self, line: LogLine) -> LogLine:
        return line if line.node or not self._context.node else line._replace(node=self._context.node)


def _decoded(lines: Sequence[bytes]) -> list[str]:
    return [line[:400].decode("utf-8", errors="replace") for line in lines]


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
    """Return a line; of a long one its beginning, with the prefixes, and what is around `at`; an object whole."""
    if b'{"' in block[begin : begin + _HEAD]:
        return block[begin : min(end, begin + LONG_LINE)]
    if at - begin <= LONGEST:
        return block[begin : min(end, begin + 2 * LONGEST)]
    return block[begin : begin + _HEAD] + b" ... " + block[at - _HEAD // 2 : min(end, at + LONGEST)]
