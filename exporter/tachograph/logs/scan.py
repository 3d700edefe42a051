"""One stream of a log, read block by block in stages: candidate, record, prefix, traceback, message."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from itertools import chain

from tachograph.logs import messages, shape
from tachograph.logs.candidates import (
    LONG_LINE,
    PARTIAL,
    RESTART,
    SUMMARIES,
    TRACEBACK,
    Candidate,
    candidates,
    known_texts,
    line_end,
    long_lines,
    pieces,
)
from tachograph.logs.line import PLAIN, LogLine, plain, with_facts
from tachograph.logs.named import NamedRanks
from tachograph.logs.nccl import MARKS, NcclFacts
from tachograph.logs.prefilter import Prefilter
from tachograph.logs.progress import STEP, StepsAfter, labels
from tachograph.logs.record import LogRecord, read
from tachograph.logs.sections import LogSection, headers, sections
from tachograph.logs.sightings import Beside, Context, Key, Scanned, Sightings, is_failure
from tachograph.logs.times import LineTimes
from tachograph.logs.tracebacks import TracebackEnd, Tracebacks
from tachograph.logs.wordings import LineWordings, TracebackWordings

MOST_KNOWN = 4_000
"""Lines that are known again, whatever their time."""

ASKED = 256
"""Files whose last step is looked for: ranks make steps together, so that those of some are enough."""

_SUMMARIES = frozenset(SUMMARIES)
_OF_SUMMARY = ("exitcode ", "traceback :", "KILLED BY SIGNAL", "EXIT CODE:")
_NCCL = frozenset(MARKS)
_RESTART = frozenset(RESTART)
_BEGINNINGS = tuple(text.encode() for text in (*PARTIAL, *RESTART, TRACEBACK))
"""Texts of lines after which others are read in another way."""
_ATTEMPT = re.compile(r"restart_count[=: ]+(\d{1,6})|(\d{1,6}) ?/ ?(\d{1,6}) attempts left")
_CLOCK = re.compile(rb"\d\d:\d\d:\d\d(?:[.,]\d+)?")
_PREFIXES = 100
"""Lines of them whose ranks are noted."""


def prepare() -> None:
    """Read the table; raise ModuleNotFoundError without the extra `logs`.

    The search for its texts is made by the process that reads: it takes 10 MB.
    """
    messages.rules()
    Prefilter([b" "])


class LogScan:
    """Reads one stream; `follows`: it begins within a file, so that its first steps say whether a failure was one."""

    def __init__(self, context: Context, *, follows: bool = False) -> None:
        self._context = context
        self._follows = follows
        self._shape = PLAIN
        self._sightings = Sightings(messages.rules().by_wording)
        self._nccl = NcclFacts()
        self._named = NamedRanks(context.node)
        self._tracebacks = Tracebacks()
        self._partial: LogRecord | None = None
        self._progress = StepsAfter(self._parsed)
        self._times = LineTimes(self._parsed)
        self._known: dict[bytes, Key | None] = {}
        self._wordings = LineWordings()
        self._raised = TracebackWordings()
        self._opened: int | None = None
        self._ended = 0, ""
        self._summary: tuple[int | None, str] = None, ""
        self._steps: frozenset[bytes] = frozenset()
        self._headers: re.Pattern[bytes] | None = None
        self._section = LogSection(0)
        self._attempt = context.attempt
        self._first: float | None = None
        self._lines = self._size = self._long = 0
        self._block = self._low = self._whole = b""
        self._begins = 0
        self._thin = False
        self._number = self._counted = self._stepped = 0

    def feed(self, block: bytes) -> None:
        """Read the next block, which ends with the end of a line unless the stream does."""
        size = len(block)
        if b"\0" in block:  # as a file that was cut while it was open for writing
            block = block.replace(b"\0", b"")
        self._long += long_lines(block, continued=not self._times.whole)
        if not self._size:
            self._learn(block)
        self._size += size
        self._whole, self._begins = block, 0
        for piece in [block] if self._headers else pieces(block):
            self._piece(piece)
            self._begins += len(piece)
        self._whole = b""

    def _piece(self, block: bytes) -> None:
        """Read some lines; what they teach of wordings spares the next ones."""
        self._thin = self._thinned(block)
        self._number, self._counted, self._stepped = self._lines + 1, 0, 0
        self._times.begin(block)
        begins = deque(sections(block, self._headers))
        for candidate in candidates(self._block, self._low, every=self._is_open, channels=lambda: not self._nccl.full):
            self._number += block.count(b"\n", self._counted, candidate.begin)
            self._counted = candidate.begin
            while begins and begins[0].begin <= candidate.begin:
                self._begin_section(begins.popleft())
            self._read(candidate)
        while begins:
            self._begin_section(begins.popleft())
        self._advance(len(block))
        self._lines = self._number - 1 + block.count(b"\n", self._counted)
        self._times.end()
        self._block = self._low = b""

    def _thinned(self, block: bytes) -> bool:
        """Turn to the next block, and return whether most lines of settled wordings were taken out of it.

        Of blocks with steps of ranks, and with lines after which others are read in another way, every line is wanted.
        """
        self._opened = None
        steps = self._progress.steps
        for wordings, others in ((self._raised, _BEGINNINGS[:-1]), (self._wordings, _BEGINNINGS)):
            if self._headers or (self._is_open() and wordings is self._wordings):
                break
            thin = wordings.thin(block, steps)
            if thin and not STEP.search(rest := thin.rest.lower()) and not any(text in rest for text in others):
                self._block, self._low = thin.block, thin.block.lower()
                wordings.count(thin.blank)
                return True
        self._block, self._low = block, block.lower()
        return False

    def result(self) -> Scanned:
        """Return what was read."""
        kept = self._sightings
        self._forget()
        last = self._times.last_step() if self._context.file <= ASKED else None
        return Scanned(
            kept.kept, self._nccl, self._size, self._lines + (not self._times.whole), self._long, kept.lost,
            self._first, self._times.last(), last, self._attempt, self._named, self._steps, kept.unsettled(),
        )  # fmt: skip

    def _learn(self, block: bytes) -> None:
        """Learn from some lines what each begins with, which ranks there are, and when the first one came."""
        self._times.begin(block)
        lines, later = shape.samples(block)
        self._shape = shape.learn(lines, self._context.written, later)
        self._headers = headers(lines)
        self._steps = labels(lines) if self._follows else frozenset()
        self._first = self._times.first()
        self._named.sample(lines[:_PREFIXES], lambda line: self._record(line).lines[0])

    def _is_open(self) -> bool:
        """Return whether each line may belong to what has begun."""
        return bool(self._tracebacks) or self._partial is not None

    def _read(self, candidate: Candidate) -> None:
        """Read a line; one that was seen before at another time is counted."""
        raw, marks = candidate.raw, candidate.marks
        if self._is_open():
            self._inner(candidate)
            return
        self._advance(candidate.begin)
        if not self._thin and self._wordings.counts(raw, self._progress.steps):
            self._stepped = max(self._stepped, candidate.begin + len(raw))
            return
        if messages.is_unimportant(raw, marks):
            return
        same = _CLOCK.sub(b"", raw)
        if same in self._known:
            key = self._known[same]
            if key is None or (not self._progress and self._sightings.again(key)):
                return
        news = self._sightings.news
        key = self._line(candidate)
        if self._is_open():
            self._opened = candidate.begin
        else:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[same] = key
            self._wordings.read(raw, key, self._progress.steps, new=self._sightings.news > news)

    def _inner(self, candidate: Candidate) -> None:
        """Read a line while something is open; note the wording of a traceback that nothing else stands between."""
        news, self._ended = self._sightings.news, (0, "")
        key = self._line(candidate)
        if not self._is_open() and self._opened is not None:
            raw = self._block[self._opened : candidate.begin + len(candidate.raw)]
            lines, mood = self._ended
            if raw.count(b"\n") + 1 == lines:
                new = self._sightings.news > news
                self._raised.read(raw, None if mood else key, self._progress.steps, new=new)

    def _line(self, candidate: Candidate) -> Key | None:
        """Read one line; return what it was counted as, None if it was not, or as several things."""
        text, marks, begin = candidate.raw.decode("utf-8", errors="replace"), candidate.marks, candidate.begin
        if not self._is_open() and self._is_common(text, marks):
            return None
        inside: TracebackEnd | bool | None = None
        if self._tracebacks and not marks and not self._partial and "{" not in text and '": ' not in text:
            inside = self._tracebacks.add(plain(text))  # first: of its inner lines nothing else is read
            if inside is True:
                return None
        record = self._record(text)
        if self._partial or record.partial:
            record = self._joined(record)
            if record.partial:
                return None
        if not record.json:
            return self._message(record.lines[0], record.raws[0], marks, begin, inside=inside)
        for line, raw in zip(record.lines, record.raws, strict=True):
            low = line.text.lower()
            self._message(line, raw, [mark for mark, one in enumerate(known_texts().texts) if one in low], begin)
        return None

    def _is_common(self, text: str, marks: Sequence[int]) -> bool:
        if marks and all(mark == known_texts().channel for mark in marks):
            self._nccl.channel(text)
            return True
        return messages.is_common(text, marks)

    def _record(self, text: str) -> LogRecord:
        return read(text, self._context.written, self._shape)

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
        self, line: LogLine, raw: str, marks: Sequence[int], begin: int, *, inside: TracebackEnd | bool | None = None
    ) -> Key | None:
        """Read one message; return what it was counted as. `inside`: what it is to the open tracebacks, if known."""
        texts = messages.texts_of(marks)
        line = self._told_who(self._placed(line), texts)
        if inside is None and (self._tracebacks or TRACEBACK in texts):
            inside = self._tracebacks.add(raw)
        if inside is True:
            return None
        raised = inside if isinstance(inside, TracebackEnd) else None
        if raised:
            line = with_facts(line._replace(text=raised.text), raised.prefix, self._context.written, self._shape)
            line = line if raised.rank is None else line._replace(rank=raised.rank, local_rank=None)
        if not texts.isdisjoint(_NCCL):
            self._nccl.read(line)
        self._named.note(line)
        if not texts.isdisjoint(_RESTART) and (match := _ATTEMPT.search(line.text)):
            self._begin_attempt(int(match[1]) if match[1] else int(match[3]) - int(match[2]) + 1, begin)
        row = messages.row_of(line.text, marks, raised)
        if row is None:
            return None
        if line.time is None:
            line = line._replace(time=self._times.before(begin))
        mood = (
            messages.mood_beside(self._whole, self._begins + begin, raised) if raised else messages.mood(line.text, row)
        )
        self._ended = (raised.lines, mood) if raised else (0, "")
        return self._keep(row, line, raised.frame if raised else "", mood, begin)

    def _told_who(self, line: LogLine, texts: set[str]) -> LogLine:
        """Return the line of a launcher's summary with the rank and node that its head named."""
        if not texts.isdisjoint(_SUMMARIES):
            self._summary = line.rank, line.node
        elif line.rank is None and line.text.lstrip(" =").startswith(_OF_SUMMARY):
            return line._replace(rank=self._summary[0], node=line.node or self._summary[1])
        return line

    def _begin_attempt(self, attempt: int, begin: int) -> None:
        self._advance(begin)
        self._progress.forget()
        self._sightings.settle()
        self._attempt = attempt
        self._forget()

    def _forget(self) -> None:
        """Forget which lines are known: the next ones are of another attempt or log."""
        self._known.clear()
        for key, more in chain(self._wordings.forget(), self._raised.forget()):
            self._sightings.counted(key, more)

    def _begin_section(self, section: LogSection) -> None:
        """Begin another log within the file: what failed in the one before has not been gone on after."""
        self._advance(section.begin)
        self._progress.forget()
        self._sightings.settle()
        self._forget()
        self._tracebacks = Tracebacks()
        self._section = section

    def _keep(self, row: int, line: LogLine, frame: str, mood: str, begin: int) -> Key | None:
        self._advance(begin)
        self._stepped = max(self._stepped, line_end(self._block, begin))
        key = self._sightings.keep(self._attempt, row, line, self._number, Beside(frame, mood))
        if key is not None and is_failure(row):
            self._progress.failed((line.node, line.rank), key, line.time)
        return key

    def _advance(self, end: int) -> None:
        """Look between what was read and `end` for steps of ranks that had failed."""
        if self._progress and end > self._stepped and not self._thin:
            for key in self._progress.read(self._block, self._low, self._stepped, end):
                if isinstance(key, Key):
                    self._sightings.recovered(key)
        self._stepped = max(self._stepped, end)

    def _parsed(self, text: str) -> LogLine:
        return self._placed(self._record(text).lines[0])

    def _placed(self, line: LogLine) -> LogLine:
        """Return a line with the node and the rank that its file, or the header above it, says."""
        if line.rank is None and self._section.rank is not None:
            line = line._replace(rank=self._section.rank)
        node = line.node or self._section.node or self._context.node
        return line if node == line.node else line._replace(node=node)
