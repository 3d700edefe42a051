"""Which rank a line is of, where it names a rank within its node, a process, or none: its own, or none at all."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tachograph.logs.line import LogLine
from tachograph.logs.nccl import NcclFacts
from tachograph.logs.sightings import Context

_MAY_BE_RANK = re.compile(r"rank|[\[(<{|]|^\s*\w+:", re.IGNORECASE)
_RANK_FIRST = re.compile(r"\W?rank\W{0,2}(\d{1,6})\W", re.IGNORECASE)
"""A rank that a line begins with."""
_ALIKE, _FEW = 3, 7
"""Lines in a row that name nobody new, after which one in so many is read."""


class Place(NamedTuple):
    """The number of a line's file and the names in it, which say of whom it is."""

    file: int
    node: str = ""
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None


class NamedRanks:
    """Those that the lines of one stream name: ranks, local ones, nodes, and which of them go together."""

    def __init__(self, node: str) -> None:
        self.ranks: set[int] = set()
        self.within: set[int] = set()
        self.pairs: dict[tuple[str, int], int] = {}
        self.nodes: set[str] = {node} if node else set()

    def sample(self, lines: Sequence[str], parsed: Callable[[str], LogLine]) -> None:
        """Note of whom some lines are; where several in a row name nobody new, a few of the rest are read.

        A line that begins with the same words for its rank as one before it says nothing new.
        """
        known = same = number = 0
        begins: tuple[str, ...] = ()
        for line in lines:
            if line.startswith(begins) or not _MAY_BE_RANK.search(line):
                continue
            number += 1
            if same < _ALIKE or number % _FEW == 1:
                found = parsed(line)
                self.note(found)
                words = _RANK_FIRST.match(line)
                if words and found.rank == int(words[1]):
                    begins = (*begins, words[0])
                named = len(self.ranks) + len(self.within) + len(self.pairs) + len(self.nodes)
                same, known = (same + 1, known) if named == known else (0, named)

    def note(self, line: LogLine) -> None:
        """Note of whom a line is."""
        if line.rank is not None:
            self.ranks.add(line.rank)
        if line.local_rank is not None:
            self.within.add(line.local_rank)
            if line.rank is not None:
                self.pairs[line.node, line.local_rank] = line.rank
        if line.node:
            self.nodes.add(line.node)


class RankNames:
    """Local ranks, and numbers in the names of files, by what all logs together say."""

    def __init__(self) -> None:
        self.nccl = NcclFacts()
        self._pairs: dict[tuple[str, int], int | None] = {}
        self._locals: dict[int, set[int]] = {}
        self._by_file: dict[int, tuple[Context, tuple[int, ...]]] = {}
        self._of_node: dict[str, bool] = {}
        self._nodes: set[str] = set()
        self._agreed: dict[str, bool] = {}
        self._highest: tuple[int, int] | None = None

    def add(
        self,
        context: Context,
        ranks: frozenset[int],
        pairs: Mapping[tuple[str, int], int],
        within: frozenset[int],
        nodes: frozenset[str],
    ) -> None:
        """Note what a stream says: its ranks, those of local ones that are known, its local ranks, its nodes."""
        self._agreed, self._highest = {}, None
        _, before = self._by_file.get(context.file, (context, ()))
        self._by_file[context.file] = context, tuple(ranks.union(before))
        if context.guess and nodes:
            alike = self._of_node.get(context.guess, True)
            self._of_node[context.guess] = alike and all(name.endswith(str(context.rank)) for name in nodes)
        if context.local_rank is not None and len(ranks) == 1:
            pairs = {(context.node, context.local_rank): next(iter(ranks)), **pairs}
        for (node, local), rank in pairs.items():
            who = _counted_in(node, context.file), local
            self._pairs[who] = rank if self._pairs.get(who, rank) == rank else None
        if within:
            self._locals.setdefault(context.file, set()).update(within)
        self._nodes |= nodes

    def known(self) -> set[int]:
        """Return the ranks that lines or names of files speak of."""
        named = {rank for context, _ in self._by_file.values() if (rank := self._of_file(context)) is not None}
        return named.union(*(ranks for _, ranks in self._by_file.values()))

    def rank(self, place: Place) -> int | None:
        """Return the rank of a line; None if it is not known for certain."""
        if place.rank is not None:
            return place.rank
        if (rank := self.nccl.rank_of(place.node, place.pid)) is not None:
            return rank
        context, _ = self._by_file[place.file]
        local = place.local_rank
        if local is None and (rank := self._of_file(context)) is not None:
            return rank
        local = context.local_rank if local is None else local
        if local is None:
            return None
        if (who := (_counted_in(place.node, place.file), local)) in self._pairs:
            return self._pairs[who]
        return local if self._one_node(local) else None

    def _of_file(self, context: Context) -> int | None:
        """Return the rank in a file's name, unless lines of such files say that the number is none, or a node's."""
        if context.rank is None or not context.guess:
            return context.rank
        if not self._agreed:
            for one, ranks in self._by_file.values():
                known = self._agreed.get(one.guess, not self._of_node.get(one.guess, False))
                self._agreed[one.guess] = known and ranks in ((), (one.rank,))
        return context.rank if self._agreed[context.guess] else None

    def _one_node(self, local: int) -> bool:
        """Return whether local ranks are ranks: all lines are of one node, as far as they say."""
        if self._nodes or len(self._locals) > 1 or any(who[1] != rank for who, rank in self._pairs.items()):
            return False
        if self._highest is None:
            places = [(one.attempt, one.local_rank) for one, _ in self._by_file.values() if one.local_rank is not None]
            numbers = set().union(*self._locals.values()) | {one for _, one in places if one is not None}
            one_of_each = len(places) <= 2 * len(set(places))  # its output, and its errors
            self._highest = max(numbers, default=-1), max(self.known(), default=0) if one_of_each else sys.maxsize
        within, rank = self._highest
        return rank <= max(local, within)


def _counted_in(node: str, file: int) -> str:
    """Return where a local rank counts: in a node, or in a file where no node is named."""
    return node or f"file {file}"
