"""Who is who, as the lines of one stream say it: their ranks, and those of processes and local ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from tachograph.logs.line import LogLine

TOLD = "world_rank="
"""In lines of a launcher that say of each process which rank it is."""
LISTED = "nodelist"
"""In lines, of Slurm's or with its variables, that list the nodes of a job; in lower case."""

_MAY_BE_RANK = re.compile(r"rank|[\[(<{|]|^\s*\w+:", re.IGNORECASE)
_RANK_FIRST = re.compile(r"\W?rank\W{0,2}(\d{1,6})\W", re.IGNORECASE)
"""A rank that a line begins with."""
_ALIKE, _FEW = 3, 7
"""Lines in a row that name nobody new, after which one in so many is read."""
_TOLD = re.compile(r"\bip=(?P<node>[\w.:-]+), pid=(?P<pid>\d+)\) world_rank=(?P<rank>\d+)")
"""Ray Train, when it has started its workers."""
_LISTED = re.compile(r"(?<![a-z])(?:SLURM_(?:JOB_)?)?NODELIST(?:=|: ?)(?P<nodes>[a-z][\w.,\[\]-]*)", re.IGNORECASE)
_JOB = re.compile(r"\bJobId=(\d+)")

_Who = TypeVar("_Who", bound=Hashable)


class NamedRanks:
    """Those that the lines of one stream name: ranks, local ones, nodes, processes, and which of them go together.

    `pairs`: ranks by node and local rank; `processes`: by node and process, None where lines contradict each other.
    Only a launcher's own list counts: what a process relays may be of several ranks. `of_ranks`: the nodes of lines
    that name a rank too, `placed` these ranks. `lists`: the nodes of jobs, by a job's number; "": of the job itself.
    """

    def __init__(self, node: str) -> None:
        self.ranks: set[int] = set()
        self.within: set[int] = set()
        self.pairs: dict[tuple[str, int], int] = {}
        self.processes: dict[tuple[str, int], int | None] = {}
        self.nodes: set[str] = {node} if node else set()
        self.of_ranks: set[str] = set()
        self.placed: set[int] = set()
        self.lists: dict[str, str] = {}

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
                named = sum(map(len, (self.ranks, self.within, self.pairs, self.nodes, self.processes)))
                same, known = (same + 1, known) if named == known else (0, named)

    def note(self, line: LogLine) -> None:
        """Note of whom a line is."""
        if line.rank is not None:
            self.ranks.add(line.rank)
        if line.local_rank is not None:
            self.within.add(line.local_rank)
            if line.rank is not None:
                self.pairs[line.node, line.local_rank] = line.rank
        if TOLD in line.text and (told := _TOLD.search(line.text)):
            merged(self.processes, (told["node"], int(told["pid"])), int(told["rank"]))
        if LISTED in line.text.lower() and (listed := _LISTED.search(line.text)):
            job = _JOB.search(line.text)
            self.lists[job[1] if job else ""] = listed["nodes"]
        if line.node:
            self.nodes.add(line.node)
            if line.rank is not None:
                self.of_ranks.add(line.node)
                self.placed.add(line.rank)


def merged(known: dict[_Who, int | None], who: _Who, rank: int | None) -> None:
    """Note the rank of somebody: None from then on if it was another one before."""
    known[who] = rank if known.get(who, rank) == rank else None
