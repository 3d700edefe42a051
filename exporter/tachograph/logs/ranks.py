"""Which rank a line is of, where it names a rank within its node, a process, or none: its own, or none at all."""

from __future__ import annotations

import sys
from typing import NamedTuple

from tachograph.logs.named import NamedRanks, merged
from tachograph.logs.nccl import NcclFacts
from tachograph.logs.sightings import Context


class Place(NamedTuple):
    """The number of a line's file and the names in it, which say of whom it is."""

    file: int
    node: str = ""
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None


class RankNames:
    """Local ranks, and numbers in the names of files, by what all logs together say."""

    def __init__(self) -> None:
        self.nccl = NcclFacts()
        self._pairs: dict[tuple[str, int], int | None] = {}
        self._processes: dict[tuple[str, int], int | None] = {}
        self._locals: dict[int, set[int]] = {}
        self._by_file: dict[int, tuple[Context, tuple[int, ...]]] = {}
        self._of_node: dict[str, bool] = {}
        self._nodes: set[str] = set()
        self._agreed: dict[str, bool] = {}
        self._highest: tuple[int, int] | None = None

    def add(self, context: Context, named: NamedRanks) -> None:
        """Note what a stream says."""
        self._agreed, self._highest = {}, None
        _, before = self._by_file.get(context.file, (context, ()))
        self._by_file[context.file] = context, tuple(named.ranks.union(before))
        if context.guess and named.nodes:
            alike = self._of_node.get(context.guess, True)
            self._of_node[context.guess] = alike and all(name.endswith(str(context.rank)) for name in named.nodes)
        pairs = named.pairs
        if context.local_rank is not None and len(named.ranks) == 1:
            pairs = {(context.node, context.local_rank): next(iter(named.ranks)), **pairs}
        for (node, local), rank in pairs.items():
            merged(self._pairs, (_counted_in(node, context.file), local), rank)
        for (node, pid), its in named.processes.items():
            merged(self._processes, (_counted_in(node, context.file), pid), its)
            if node:
                merged(self._processes, (_counted_in("", context.file), pid), its)
        if named.within:
            self._locals.setdefault(context.file, set()).update(named.within)
        self._nodes |= named.nodes

    def known(self) -> set[int]:
        """Return the ranks that lines or names of files speak of."""
        named = {rank for context, _ in self._by_file.values() if (rank := self._of_file(context)) is not None}
        return named.union(*(ranks for _, ranks in self._by_file.values()))

    def rank(self, place: Place) -> int | None:
        """Return the rank of a line; None if it is not known for certain."""
        if place.rank is not None:
            return place.rank
        if (rank := self._of_process(place)) is not None:
            return rank
        context, named = self._by_file[place.file]
        local, own = place.local_rank, self._of_file(context)
        if own is not None and (local is None or (named == (own,) and self._one_process(place.file))):
            return own
        local = context.local_rank if local is None else local
        if local is None:
            return None
        if (who := (_counted_in(place.node, place.file), local)) in self._pairs:
            return self._pairs[who]
        return local if self._one_node(local) else None

    def _of_process(self, place: Place) -> int | None:
        """Return the rank of the process that a line names, if others of it say so."""
        if place.pid is None:
            return None
        rank = self.nccl.rank_of(place.node, place.pid)
        return self._processes.get((_counted_in(place.node, place.file), place.pid)) if rank is None else rank

    def _one_process(self, file: int) -> bool:
        """Return whether a file names one local rank at most."""
        return len(self._locals.get(file, ())) <= 1

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
