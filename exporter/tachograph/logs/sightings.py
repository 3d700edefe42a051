"""The contents of one stream: each kind of line of each rank once, with the first line of it, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from tachograph.logs.line import LogLine
from tachograph.logs.named import OF_JOB, NamedRanks
from tachograph.logs.nccl import NcclFacts
from tachograph.logs.times import LastStep
from tachograph.signatures.table import LONGEST, LogSignature, table

MOST_SIGHTINGS = 50_000
"""Of one stream: ten kinds of lines on 5,000 ranks."""
MOST_UNKNOWN = 500
"""Kinds of errors that no row knows."""
UNKNOWN = -1
"""Stands for the row of a line that reports an error and matches none."""

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{12,}|\d+(?:\.\d+)?")


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


class Key(NamedTuple):
    """A thing that is kept once: a kind of line of one rank in one attempt; `attempt` None: no line has said it yet."""

    attempt: int | None
    row: int
    node: str
    rank: int | None
    detail: str


class Beside(NamedTuple):
    """The surroundings of a line: `frame`, where its exception was raised; `mood`, what the program makes of it."""

    frame: str
    mood: str


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

    `named`: who is who, as far as lines say it. `last_step`: the one in its last lines, if they have one.
    `steps`: those that its first lines report, if it follows another part of a file.
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
    last_step: LastStep | None
    attempt: int | None
    named: NamedRanks
    steps: frozenset[bytes]
    unsettled: frozenset[Key]


class Sightings:
    """Keeps what is seen. `by_wording`: rows whose lines are of one kind only if they are worded alike.

    `news`: lines that said more than that there was another one.
    """

    def __init__(self, by_wording: Collection[int]) -> None:
        self.kept: dict[Key, Sighting] = {}
        self.lost = self.news = 0
        self._by_wording = by_wording
        self._details: set[str] = set()
        self._unsettled: set[Key] = set()

    def keep(self, attempt: int | None, row: int, line: LogLine, number: int, beside: Beside) -> Key | None:
        """Note a line; return what it was counted as, None if there is no room for it."""
        of_job = OF_JOB.search(line.text) if "JobId=" in line.text else None
        worded = row == UNKNOWN or row in self._by_wording
        detail = of_job[0] if of_job else _NUMBERS.sub("#", line.text)[:120] if worded else ""
        key = Key(attempt, row, line.node, line.rank, detail)
        seen = self.kept.get(key)
        if seen is None and (
            len(self.kept) >= MOST_SIGHTINGS
            or (not of_job and detail not in self._details and len(self._details) >= MOST_UNKNOWN)
        ):
            self.lost += 1
            return None
        if is_failure(row) and key not in self._unsettled:
            self.news += 1
            self._unsettled.add(key)
        if seen and not seen.recovered and not (seen.mood and not beside.mood):
            self.kept[key] = seen._replace(seen=seen.seen + 1, frame=seen.frame or beside.frame)
            return key
        self.news += 1
        if not of_job:
            self._details.add(detail)
        count = seen.seen + 1 if seen else 1
        text = line.text.strip()[:LONGEST]
        self.kept[key] = Sighting(number, line.time, text, count, beside.frame, line.local_rank, line.pid, beside.mood)
        return key

    def again(self, key: Key) -> bool:
        """Count a further line of a key; return False if that is not all that it says: it was settled before."""
        seen = self.kept[key]
        if seen.recovered:
            return False
        self.kept[key] = seen._replace(seen=seen.seen + 1)
        return True

    def counted(self, key: Key, more: int) -> None:
        """Add further lines of a key."""
        if key in self.kept:
            self.kept[key] = self.kept[key]._replace(seen=self.kept[key].seen + more)

    def recovered(self, key: Key) -> None:
        """Note that the rank of a failure went on."""
        if key in self.kept:
            self.kept[key] = self.kept[key]._replace(recovered=True)

    def settle(self) -> None:
        """Forget what is open: an attempt has ended."""
        self._unsettled.clear()

    def unsettled(self) -> frozenset[Key]:
        """Return the failures after which nobody went on."""
        return frozenset(key for key in self._unsettled if not self.kept[key].recovered)


def signature(row: int) -> LogSignature | None:
    """Return the row of a key, None for an error that no row knows."""
    return None if row == UNKNOWN else table().rows[row]


def is_failure(row: int) -> bool:
    """Return whether lines of a row speak of a failure."""
    known = signature(row)
    return known is None or known.role != "advice"
