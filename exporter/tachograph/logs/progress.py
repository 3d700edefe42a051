"""Whether a rank went on after a failure: then it was caught, and is no cause."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from tachograph.logs.line import LogLine

_OF = ("global", "train", "training", "total")


def _word(first: str, rest: str) -> str:
    """Return the pattern of a word that begins here, or behind one of _OF; its first letter makes the search fast."""
    behind = "|".join(f"(?<={word}{mark}{first})" for word in _OF for mark in ("", "_"))
    return f"{first}(?:(?<![a-z_]{first})|{behind}){rest}"


_STEPS = "|".join((_word("s", "teps?"), _word("i", "ter(?:ation)?s?"), _word("b", "atch"), _word("e", "poch")))
STEP = re.compile(
    rb"(?:" + _STEPS.encode() + rb")[\"']?"
    rb"\s{0,3}[=:\[#]?\s{0,6}(\d{1,9}(?:\.\d{1,9})?)"
    rb"|\b(\d{1,9})/\d{1,9} \[\d"
    rb"|\b(training (?:is )?(?:finished|completed?|done|over)"
    rb"|finished training|train_runtime|fit` stopped: `max_\w+)\b",
)
"""In small letters."""
_FAILING = re.compile(
    rb"error|exception|fail|abort|\bnan\b(?! iterations)|timed out|stopping|overflow|resum|restor|saving|checkpoint"
)
OWN, UNNAMED, ANYBODY = 2, 3, 10
"""Further steps after which a failure was none: of the same rank, of lines without a rank, and of anybody."""
LATER = 60.0
"""Seconds after a failure at which a single step of the same rank says it, too."""
MOST = 20_000
"""Lines of steps that are read after a failure before it counts as one."""

_SEARCHED = 64 << 10
"""Bytes of a block that are searched for lines of steps."""

Who = tuple[str, "int | None"]


class _Open(NamedTuple):
    time: float | None
    own: int
    all: int


class StepsAfter:
    """The failures of one stream that nobody has gone on after; `steps`: lines of steps that were read so far."""

    def __init__(self, parsed: Callable[[str], LogLine]) -> None:
        self._parsed = parsed
        self._steps: dict[Who, set[bytes]] = {}
        self._all: set[bytes] = set()
        self._open: dict[Who, dict[Hashable, _Open]] = {}
        self._read = 0
        self.steps = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    def failed(self, who: Who, key: Hashable, time: float | None) -> None:
        """Note a failure; its steps are counted from here."""
        self._open.setdefault(who, {})[key] = _Open(time, len(self._steps.get(who, ())), len(self._all))
        self._read = 0

    def forget(self) -> None:
        """Let all failures stand: an attempt has ended."""
        self._open.clear()

    def read(self, block: bytes, low: bytes, begin: int, end: int) -> Iterator[Hashable]:
        """Read the lines between two places; yield the failures that were none."""
        while self._open and self._read < MOST and (match := STEP.search(low, begin, end)):
            self._read += 1
            start = low.rfind(b"\n", 0, match.start()) + 1
            start = max(start, low.rfind(b"\r", start, match.start()) + 1)  # in the line: not to the block's beginning
            stop = low.find(b"\n", match.end(), end)
            back = low.find(b"\r", match.end(), stop if stop >= 0 else end)
            begin = min((one for one in (stop, back) if one >= 0), default=end)
            begin = max(begin, match.end())
            if start < begin and not _FAILING.search(low, start, min(begin, start + 1024)):
                self.steps += 1
                label = _label(low[match.start() : begin])
                line = self._parsed(block[start : min(begin, start + 400)].decode("utf-8", errors="replace"))
                yield from self._stepped((line.node, line.rank), label, line.time, finished=match[3] is not None)

    def _stepped(self, who: Who, label: bytes, time: float | None, *, finished: bool) -> Iterator[Hashable]:
        own = self._steps.setdefault(who, set())
        own.add(label)
        needed = UNNAMED if who[1] is None else OWN
        mine = self._open.get(who, {})
        yield from self._close(
            who,
            [
                key
                for key, failure in mine.items()
                if len(own) - failure.own >= needed
                or (time is not None and failure.time is not None and time - failure.time >= LATER)
            ],
        )
        if label in self._all and not finished:
            return
        self._all.add(label)
        for other, entries in list(self._open.items()):
            yield from self._close(
                other, [key for key, one in entries.items() if finished or len(self._all) - one.all >= ANYBODY]
            )

    def _close(self, who: Who, keys: Sequence[Hashable]) -> Sequence[Hashable]:
        entries = self._open.get(who, {})
        for key in keys:
            del entries[key]
        if not entries:
            self._open.pop(who, None)
        return keys


def labels(lines: list[str]) -> frozenset[bytes]:
    """Return the steps that some lines report."""
    return frozenset(label for line in lines if (label := step_label(line.encode())))


def step_label(line: bytes) -> bytes:
    """Return the step that a line reports, empty for any other line."""
    low = line.lower()
    match = STEP.search(low)
    return b"" if match is None or _FAILING.search(low) else _label(low[match.start() :])


def says_end(label: bytes) -> bool:
    """Return whether a line with such a step says that the training is over."""
    return any(character.isalpha() for character in label.decode())


def step_lines(block: bytes, low: bytes, most: int) -> list[bytes]:
    """Return the first lines of a block that report steps, each step once; `low`: the block in small letters."""
    found: dict[bytes, bytes] = {}
    at, end = 0, min(len(low), _SEARCHED)
    while len(found) < most and (match := STEP.search(low, at, end)):
        begin = max(low.rfind(b"\n", 0, match.start()), low.rfind(b"\r", 0, match.start())) + 1
        at = low.find(b"\n", match.end(), end)
        at = end if at < 0 else at
        if not match[3] and not _FAILING.search(low, begin, min(at, begin + 400)):
            found.setdefault(_label(low[match.start() : at]), block[begin : min(at, begin + 400)])
    return list(found.values())


def _label(text: bytes) -> bytes:
    """Return all numbers of steps that a line has: an epoch's alone stays the same for long."""
    return b" ".join(match[1] or match[2] or match[3] for match in STEP.finditer(text[:400]))
