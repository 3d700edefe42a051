"""Finds a rank that comes last to most collectives, in a run that goes on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from tachograph.blackbox.standing import Group, Standing

LEAST_COLLECTIVES = 8
LEAST_SHARE = 0.7
"""Share of a group's collectives to which the same rank must come last."""

LEAST_DELAY = 0.1
"""Share of the time between two collectives that it must come later than the median rank."""

LEAST_SECONDS = 0.005
NEWEST = 500
"""Collectives of a group that are looked at, the newest."""


@dataclass(frozen=True)
class Slow:
    """A rank for which a group waits, again and again."""

    rank: int
    group: str
    seconds: float
    """Median time by which it comes later than the median rank."""
    share: float
    collectives: int
    by_clock: bool
    """Whether that rests on the nodes' clocks; else on how long each rank waits by its own."""


def slow(standing: Standing) -> list[Slow]:
    """Return the ranks for which their groups wait, the worst first; of one group at most one."""
    found: dict[int, Slow] = {}
    for name, group in standing.groups.items():
        one = _of_group(standing, name, group)
        if one is not None and (one.rank not in found or found[one.rank].seconds < one.seconds):
            found[one.rank] = one
    return sorted(found.values(), key=lambda one: -one.seconds)


def _of_group(standing: Standing, name: str, group: Group) -> Slow | None:
    calls = {
        rank: standing.dumps[rank].calls[name]
        for rank in group.members & standing.dumps.keys()
        if name in standing.dumps[rank].calls
    }
    if len(calls) < 2:
        return None
    waits: dict[int, dict[int, int]] = {}
    arrivals: dict[int, dict[int, int]] = {}
    for rank, one in calls.items():
        start = max(0, len(one.sequences) - NEWEST)
        waits[rank] = {
            number: waited
            for number, waited in zip(one.sequences[start:], one.waited[start:], strict=True)
            if waited >= 0
        }
        arrivals[rank] = {
            number: created
            for number, created in zip(one.sequences[start:], one.created[start:], strict=True)
            if created > 0
        }
    by_wait = _late(name, {rank: {number: -waited for number, waited in one.items()} for rank, one in waits.items()})
    spacing = _spacing(arrivals)
    if all(waits.values()):
        found, by_clock = by_wait, False
    else:
        found, by_clock = _late(name, arrivals), True
    if found is None or found.seconds < max(LEAST_SECONDS, LEAST_DELAY * spacing):
        return None
    return Slow(found.rank, name, found.seconds, found.share, found.collectives, by_clock)


def _late(name: str, times: dict[int, dict[int, int]]) -> Slow | None:
    common = set.intersection(*(set(one) for one in times.values()))
    if len(common) < LEAST_COLLECTIVES:
        return None
    last: Counter[int] = Counter()
    delays: dict[int, list[int]] = {rank: [] for rank in times}
    for number in common:
        at = {rank: one[number] for rank, one in times.items()}
        usual = median(at.values()) if len(at) > 2 else min(at.values())
        late = max(at, key=lambda rank: at[rank])
        last[late] += 1
        delays[late].append(int(at[late] - usual))
    rank, times_last = last.most_common(1)[0]
    share = times_last / len(common)
    if share < LEAST_SHARE:
        return None
    return Slow(rank, name, median(delays[rank]) / 1e9, share, len(common), True)


def _spacing(arrivals: dict[int, dict[int, int]]) -> float:
    """Return the median time between two collectives of a group, in seconds."""
    gaps = []
    for one in arrivals.values():
        ordered = sorted(one.values())
        gaps += [later - earlier for earlier, later in pairwise(ordered)]
        if len(gaps) > 5000:
            break
    return median(gaps) / 1e9 if gaps else 0.0
