"""Which of many nodes makes a command fail: halves of the suspects, one run a round (group testing)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tachograph.bisect.tally import Tally, Trial

MOST_NODES = 65_536
TWICE = 2
"""By how many runs each outcome must lead once they do not agree on one node."""

_ENTRY = re.compile(r"((?:[^,\[\]]|\[[^\[\]]*\])+)(?:,|$)")
_NAME = re.compile(r"[\w.:-]+")


@dataclass(frozen=True)
class BadNode:
    """The node whose presence makes the command fail; None if no single one does, then `among` fails together.

    `rounds` is the number of runs that it took.
    """

    node: str | None
    among: tuple[str, ...]
    rounds: int


def next_set(
    suspects: Sequence[str], good: Sequence[str], fewest: int, trials: Sequence[Trial], lead: int
) -> tuple[str, ...] | BadNode:
    """Return the nodes to run the command on next, or the culprit if it is known.

    Of one culprit among n it takes log2 n runs, and one more to see it fail alone. A set of suspects is filled up to
    `fewest` with nodes that are good, or were found so. If the one that is left does not fail, all runs on the way are
    repeated until one outcome leads by `lead`; if it still does not, no single node is the culprit.
    """
    tally = Tally(trials, lead)
    for needed in dict.fromkeys((lead, max(lead, TWICE), max(tally.lead, TWICE))):
        left, fine = list(suspects), list(good)
        while len(left) > 1:
            half, rest = left[: (len(left) + 1) // 2], left[(len(left) + 1) // 2 :]
            chosen = _filled(half, [*fine, *rest], fewest)
            works = tally.works(",".join(chosen))
            if works is None or not tally.sure(",".join(chosen), needed):
                return chosen
            left, fine = (rest, fine + half) if works else (half, fine + rest)
        alone = _filled(left, fine, fewest)
        works = tally.works(",".join(alone))
        if works is None or not tally.sure(",".join(alone), max(needed, tally.lead)):
            return alone
        if not works:
            return BadNode(left[0], tuple(left), len(trials))
    whole = tuple(suspects)
    if tally.works(",".join(whole)) is None or not tally.sure(",".join(whole)):
        return whole
    return BadNode(None, () if tally.works(",".join(whole)) else whole, len(trials))


def _filled(suspects: Sequence[str], fine: Sequence[str], fewest: int) -> tuple[str, ...]:
    return (*suspects, *fine[: max(0, fewest - len(suspects))])


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
