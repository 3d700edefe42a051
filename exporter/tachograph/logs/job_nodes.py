"""The nodes that the job ran on: what a scheduler or a kernel reports of another node, or job, is not its cause."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tachograph.logs.named import NamedRanks
from tachograph.logs.nccl import NcclFacts
from tachograph.logs.sightings import Context

_PARTS = re.compile(r"([^,\[\]]+)(?:\[([\d,-]+)\])?")
_MOST = 100_000
"""Nodes of one list that are told apart."""
_NUMBERS = re.compile(r"\d+")
_ADDRESS = re.compile(r"[\d.]+")
_JOB = re.compile(r"\bJobId=(\d+)")
_OF_SLURM = re.compile(r"^slurm-(\d+)")


class JobNodes:
    """The nodes and the number of a folder's job, as all its logs say it; nothing is foreign where they do not.

    The nodes are known if the job's list of nodes is printed, or if each rank up to the highest has lines or a file
    that name its node. The job is, if a file's name has the number of one whose list of nodes the scheduler's log
    prints, or is the name that Slurm gives. Pods are known by the names of files.
    """

    def __init__(self) -> None:
        self._of_ranks: set[str] = set()
        self._placed: set[int] = set()
        self._ranks: set[int] = set()
        self._lists: dict[str, str] = {}
        self._numbers: set[str] = set()
        self._jobs: set[str] = set()
        self._families: set[str] = set()
        self._known: tuple[frozenset[str], frozenset[str]] | None = None

    def add(self, name: str, context: Context, named: NamedRanks) -> None:
        """Note what a stream says; `name`: of its file."""
        self._known = None
        file = Path(name).name
        self._numbers.update(number.lstrip("0") for number in _NUMBERS.findall(file))
        self._jobs.update(_OF_SLURM.findall(file))
        if context.node:
            self._families.add(_family(context.node))
        ranks = named.ranks if context.rank is None else named.ranks | {context.rank}
        self._ranks |= ranks
        self._placed |= named.placed
        self._of_ranks |= named.of_ranks
        if context.node and (ranks or named.within):
            self._of_ranks.add(context.node)
            self._placed |= ranks
        self._lists.update(named.lists)

    def foreign(self, node: str, text: str, nccl: NcclFacts) -> bool:
        """Return whether a line, which names a node or a job of Slurm's, is of another one than this job's."""
        nodes, jobs = self._known = self._known or self._learned(nccl)
        if jobs and (job := _JOB.search(text)):
            return job[1] not in jobs
        if node and f"pod/{node}" in text:
            return bool(self._families) and _family(node) not in self._families
        if not nodes or not node:
            return False
        names = {_short(one) for one in expanded(node)}
        return names.isdisjoint(nodes) and {_form(one) for one in names} <= {_form(one) for one in nodes}

    def _learned(self, nccl: NcclFacts) -> tuple[frozenset[str], frozenset[str]]:
        """Return the nodes and the job's numbers, as far as they are known."""
        jobs = frozenset(self._numbers.intersection(self._lists) | self._jobs)
        own = [self._lists[job] for job in (*jobs, "") if job in self._lists]
        nodes = {_short(node) for listed in own for node in expanded(listed)}
        placed = self._placed | {rank for rank, _ in nccl.ranks.values()}
        if nodes or set(range(max(self._ranks | placed, default=-1) + 1)) <= placed:
            nodes |= {_short(node) for node in self._of_ranks} | {_short(node) for node, _ in nccl.ranks if node}
        return frozenset(nodes), jobs


def expanded(listed: str) -> Iterator[str]:
    """Yield the names in a list of Slurm's, such as gpu-[01-03,07],login1."""
    left = _MOST
    for part in _PARTS.finditer(listed):
        if part[2] is None:
            yield part[1]
            continue
        for span in part[2].split(","):
            first, _, last = span.partition("-")
            for number in range(int(first or 0), min(int(last or first or 0), int(first or 0) + left) + 1):
                left -= 1
                yield f"{part[1]}{number:0{len(first)}d}"


def _short(node: str) -> str:
    """Return a node's name without its domain."""
    return node if _ADDRESS.fullmatch(node) else node.partition(".")[0]


def _form(node: str) -> str:
    """Return what names of nodes of one kind have in common; names of another kind cannot be compared."""
    return _NUMBERS.sub("#", node)


def _family(pod: str) -> str:
    """Return the beginning of a pod's name, which those of one job have in common."""
    return pod.partition("-")[0]
