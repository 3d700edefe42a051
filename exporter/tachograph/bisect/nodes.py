"""Which of many nodes makes a command fail: halves of the suspects, one run a round (adaptive group testing)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

from tachograph.bisect.tally import Tally, Trial

MOST_NODES = 65_536
TWICE = 2
"""By how many runs each outcome must lead once they do not agree on one node."""
MOST_RUNS_A_NODE = 2
"""Runs for each suspect after which the search for nodes that work together is given up."""

_ENTRY = re.compile(r"((?:[^,\[\]]|\[[^\[\]]*\])+)(?:,|$)")
_NAME = re.compile(r"[\w.:-]+")


@dataclass(frozen=True)
class BadNode:
    """The node whose presence makes the command fail; None if none is proven to, and then `why`, one of WHYS.

    `among` are the nodes of the run that convicts it, else those that `why` is about; `rounds` is the number of runs.
    """

    node: str | None
    among: tuple[str, ...]
    rounds: int
    why: str = ""


NOTHING, TOGETHER, UNPROVEN = "nothing", "together", "unproven"
WHYS = ("", NOTHING, TOGETHER, UNPROVEN)
"""All work, also together; each works, but all together do not; no run worked that could convict a node."""

NodeSet: TypeAlias = tuple[str, ...]


def next_set(
    suspects: Sequence[str], good: Sequence[str], fewest: int, trials: Sequence[Trial], lead: int
) -> NodeSet | BadNode:
    """Return the nodes to run the command on next, or the culprit if it is known.

    A node is convicted by a run that failed with it and with nodes that are proven good, as these worked together
    without it; a node is proven good by a run with it that worked. So for a command whose outcome depends on the nodes
    alone, none is convicted wrongly, however many are bad. Of one culprit among n it takes log2 n runs, one that sees
    it fail again, and at most two that work where those on the way did not. Once outcomes contradict each other, each
    run is repeated until one of its outcomes leads.
    """
    tally = Tally(trials, lead)
    values = dict.fromkeys(trial.value for trial in trials)
    found: NodeSet | BadNode = BadNode(None, (), len(trials), NOTHING)
    for needed in dict.fromkeys((lead, max(lead, TWICE), max(tally.lead, TWICE))):
        known: dict[NodeSet, bool] = {}
        for value in values:
            works = tally.works(value)
            if works is None or not tally.sure(value, needed):
                return tuple(value.split(","))
            known[tuple(value.split(","))] = works
        found = _Proof(suspects, good, fewest, known).next()
        if isinstance(found, BadNode) and found.node is not None and not tally.sure(",".join(found.among), TWICE):
            return found.among
        if not isinstance(found, BadNode) or found.why != TOGETHER:
            break
    return replace(found, rounds=len(trials)) if isinstance(found, BadNode) else found


class _Proof:
    """The facts that the outcomes of runs prove, by the nodes of each."""

    def __init__(
        self, suspects: Sequence[str], good: Sequence[str], fewest: int, known: Mapping[NodeSet, bool]
    ) -> None:
        self._suspects, self._fewest, self._known = suspects, fewest, known
        self._worked = [frozenset(nodes) for nodes, works in known.items() if works]
        proven = dict.fromkeys([*good, *(node for nodes, works in known.items() if works for node in nodes)])
        self._good = list(proven)
        self._open = [node for node in suspects if node not in proven]
        """Suspects of which nothing is proven."""
        self._left = [[node for node in nodes if node not in proven] for nodes, works in known.items() if not works]
        """Of each run that failed the nodes that may be why."""

    def next(self) -> NodeSet | BadNode:
        """Return the nodes of the next run, or what is proven."""
        if not all(self._left):
            return self._whole()  # good nodes failed together
        left = min(self._left, key=len, default=self._open)
        if not left:
            return self._whole()
        if len(left) == 1 and left in self._left:
            return self._convict(left[0])
        half = left[: (len(left) + 1) // 2]
        if len(half) + len(self._good) >= self._fewest:
            return self._filled(half)
        return self._any_that_works()

    def _filled(self, nodes: Sequence[str]) -> NodeSet:
        """Return nodes with as many good ones as a run needs."""
        return (*nodes, *self._good[: max(0, self._fewest - len(nodes))])

    def _convict(self, node: str) -> NodeSet | BadNode:
        """Return the culprit, or the run without it that is needed to tell it from a command that always fails."""
        failed = next(nodes for nodes, works in self._known.items() if not works and node in nodes
                      and all(other in self._good for other in nodes if other != node))  # fmt: skip
        beside = [other for other in failed if other != node]
        if any(set(beside) <= worked for worked in self._worked):
            return BadNode(node, failed, 0)
        control = tuple(dict.fromkeys([*beside, *self._good]))[: max(self._fewest, len(beside))]
        if len(control) >= self._fewest and control not in self._known:
            return control
        return self._whole() if control in self._known else self._any_that_works()

    def _any_that_works(self) -> NodeSet | BadNode:
        """Return as few nodes as a run may have, of which none is known to make it fail; else that it cannot be told.

        Of each run that failed one node is left out, those first that are in most of them.
        """
        room = len(self._open) + len(self._good) - self._fewest
        out: list[str] = []
        unexplained = self._left
        while unexplained and len(out) < room:
            often = Counter(node for nodes in unexplained for node in nodes)
            out.append(max(often, key=lambda node: often[node]))
            unexplained = [nodes for nodes in unexplained if out[-1] not in nodes]
        often = Counter(node for nodes in self._left for node in nodes)
        rest = sorted((node for node in self._open if node not in out), key=lambda node: -often[node])
        out += rest[: max(0, room - len(out))]
        chosen = tuple([*self._good, *(node for node in self._open if node not in out)][: self._fewest])
        if (
            unexplained
            or room < 0
            or chosen in self._known
            or len(self._known) > MOST_RUNS_A_NODE * len(self._suspects)
        ):
            return BadNode(None, tuple(self._open), 0, UNPROVEN)
        return chosen

    def _whole(self) -> NodeSet | BadNode:
        """Return what is left where no single node is to blame: all of them together."""
        whole = tuple(self._suspects)
        if len(whole) < self._fewest:
            whole = self._filled(whole)
        if whole not in self._known:
            return whole
        return BadNode(None, () if self._known[whole] else whole, 0, NOTHING if self._known[whole] else TOGETHER)


def expand(text: str) -> list[str]:
    """Return the nodes of a list as Slurm writes it: `gpu[01-03,07],login`; raise ValueError."""
    found: list[str] = []
    place = 0
    stripped = re.sub(r"\s", "", text)
    while place < len(stripped):
        entry = _ENTRY.match(stripped, place)
        if entry is None:
            raise ValueError(f"{text!r:.60} is not a list of nodes: write gpu[01-64] or a,b,c")
        found += _entry(entry[1])
        place = entry.end()
        if len(found) > MOST_NODES:
            raise ValueError(f"more than {MOST_NODES:,} nodes")
    if not found:
        raise ValueError("the list of nodes is empty")
    if twice := {name for name in found if found.count(name) > 1} if len(found) < 10_000 else set():
        raise ValueError(f"node {min(twice)} is in the list twice")
    return found


def _entry(text: str) -> Iterator[str]:
    parts = [list(_numbers(part[1:-1])) if part.startswith("[") else [part] for part in re.split(r"(\[[^\]]*\])", text)]
    count = 1
    for part in parts:
        count *= len(part)
    if count > MOST_NODES:
        raise ValueError(f"{text!r:.60} are more than {MOST_NODES:,} nodes")
    for pieces in product(*parts):
        name = "".join(pieces)
        if not _NAME.fullmatch(name) or name.startswith("-"):
            raise ValueError(f"{name!r:.60} is not the name of a node")
        yield name


def _numbers(text: str) -> Iterator[str]:
    for piece in text.split(","):
        bounds = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", piece)
        if bounds is None:
            raise ValueError(f"[{text:.60}] is not a range of numbers: write [01-64,70]")
        first, last = bounds[1], bounds[2] or bounds[1]
        if int(last) < int(first) or int(last) - int(first) >= MOST_NODES:
            raise ValueError(f"[{text:.60}]: {piece} is no range, or too long")
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
