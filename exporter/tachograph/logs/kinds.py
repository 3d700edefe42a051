"""The lines that were found, by kind: whose the lines of a kind are, and the first of them, in bounded memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from tachograph.logs.ranks import Place, RankNames
from tachograph.logs.sightings import Key, Sighting, signature

MOST_FIRST = 64
"""Nodes, or files, on which a kind came first whose lines are kept: their clocks are compared."""
MOST_WORDINGS = 5_000
"""Kinds of a general row that are told apart by their wording; further ones of a row are one kind."""
_NO_RANK = -1


class Found(NamedTuple):
    """One kind of line of one rank in one attempt, with the place in its whole file, and its number."""

    key: Key
    sighting: Sighting
    file: str
    line: int
    number: int

    @property
    def time(self) -> float:
        """When it was printed; infinity if nothing says it."""
        return float("inf") if self.sighting.time is None else self.sighting.time

    @property
    def place(self) -> Place:
        """The file and the names that say of whom it is."""
        return Place(self.number, self.key.node, self.key.rank, self.sighting.local_rank, self.sighting.pid)


class LineKind(NamedTuple):
    """An attempt, a row of the table, and the wording of a general row's lines. `passed`: they are no causes."""

    attempt: int
    row: int
    wording: str
    passed: bool


class Lines:
    """The lines of one kind: `count` all of them, `first` those that came first, the earliest one first."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[Found] = []
        self.nodes: set[str] = set()
        self._files = array("L")
        self._at = array("Q")
        self._ranks = array("l")
        self._places: dict[int, Place] = {}

    def add(self, found: Found) -> None:
        """Note those of one rank."""
        place = found.place
        if place.rank is None and (place.node or place.local_rank is not None or place.pid is not None):
            self._places[len(self._ranks)] = place
        self._files.append(found.number)
        self._at.append(found.line)
        self._ranks.append(_NO_RANK if place.rank is None else place.rank)
        self.count += found.sighting.seen
        if place.node:
            self.nodes.add(place.node)
        if len(self.first) < MOST_FIRST or found.time < self.first[-1].time:
            self._keep_first(found)

    def ranks(self, names: RankNames) -> set[int]:
        """Return the ranks that they are of, as far as they are known."""
        return {rank for _, _, rank in self.places(names) if rank is not None}

    def places(self, names: RankNames) -> Iterator[tuple[int, int, int | None]]:
        """Yield the number of the file, the line in it and the rank, if it is known, of each."""
        for at, (file, line, rank) in enumerate(zip(self._files, self._at, self._ranks, strict=True)):
            if rank != _NO_RANK:
                yield file, line, rank
            else:
                yield file, line, names.rank(self._places.get(at) or Place(file))

    def _keep_first(self, found: Found) -> None:
        """Keep a line if none of its file and node came before it."""
        own = found.number, found.key.node
        other = next((at for at, one in enumerate(self.first) if (one.number, one.key.node) == own), None)
        if other is not None:
            if self.first[other].time <= found.time:
                return
            del self.first[other]
        self.first.insert(bisect_right(self.first, found.time, key=lambda one: one.time), found)
        del self.first[MOST_FIRST:]


class Kinds:
    """All that was found, by kind, in the order in which it was read."""

    def __init__(self) -> None:
        self.lines: dict[LineKind, Lines] = {}
        self._wordings: set[str] = set()

    def add(self, found: Found) -> None:
        """Note one kind of line of one rank."""
        wording = found.key.detail
        if wording and wording not in self._wordings:
            if len(self._wordings) < MOST_WORDINGS:
                self._wordings.add(wording)
            else:
                wording = ""
        kind = LineKind(found.key.attempt or 0, found.key.row, wording, bool(passed(found)))
        self.lines.setdefault(kind, Lines()).add(found)


def passed(found: Found) -> str:
    """Return why a line is no cause, though it speaks of a failure; "" if it is one."""
    known = signature(found.key.row)
    if known is not None and known.handled:
        return "handled"
    return "went_on" if found.sighting.recovered else found.sighting.mood
