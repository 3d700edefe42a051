"""From what was found to the first cause, and what followed from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

from tachograph.logs.clusters import templates
from tachograph.logs.reading import Found, Reading
from tachograph.logs.scan import UNKNOWN, signature

EPISODE = 45 * 60
"""Seconds without a finding that part two episodes: a collective may wait 30 minutes before it times out."""

LONGEST_WAIT = 75 * 60
"""Seconds before the end of an episode in which its cause is looked for first: what waits longer is rare."""

_MILD = re.compile(
    r"\b(?:User|Future|Deprecation|Runtime)Warning\b|(?:^|[\s\[|])(?:WARNING|WARN|INFO|DEBUG)(?:[\s\]:|]|$)|^warning: "
)
_NOT_MILD = re.compile(r"NCCL (?:WARN|INFO)|^\w*Error\b")
_STRONG = ("out_of_memory", "hardware", "numerical")
"""Categories whose confirmations say more than an exception that no special row knows."""


class Weight(IntEnum):
    """How much a finding says about the cause, the least number the most."""

    ROOT = 0
    CONFIRMED = 1
    PEER = 2
    EXCEPTION = 3
    CONFIRMATION = 4
    UNKNOWN = 5
    CASCADE = 6
    ADVICE = 7


@dataclass
class LogFinding:
    """One kind of line in one attempt: of which ranks and nodes, where it came first, and what to do.

    `line` is the text of the first one and `rank` its rank; `line_number` counts from 1 in `file`. `time`: Unix
    seconds. `frame`: the innermost call of the program, if a traceback goes with it. `nic`: network card.
    """

    name: str
    category: str
    role: str
    rank: int | None
    node: str
    line: str
    file: str
    line_number: int
    time: float | None
    attempt: int
    count: int
    ranks: list[int]
    nodes: list[str]
    frame: str
    nic: str
    cause: str
    next: list[str]
    weight: Weight


@dataclass
class LogVerdict:
    """The conclusion. `state`: cause, no_cause (something failed, and nothing says why), nothing_wrong, unreadable."""

    state: str
    findings: list[LogFinding]
    roots: list[LogFinding]
    reading: Reading


def conclude(reading: Reading) -> LogVerdict:
    """Return the findings, the root first; `roots` has that of each attempt."""
    findings = _grouped(reading)
    attempts = sorted({finding.attempt for finding in findings})
    roots = [root for attempt in attempts if (root := _root(one for one in findings if one.attempt == attempt))]
    first = min(roots, key=lambda root: (root.weight >= Weight.CASCADE, root.attempt), default=None)
    rest = [finding for finding in findings if finding is not first]
    rest.sort(key=lambda one: (one.attempt, one.weight, _when(one), one.line_number))
    if not reading.files:
        state = "unreadable"
    elif first is None or first.weight == Weight.ADVICE:
        state = "nothing_wrong"
    else:
        state = "no_cause" if first.weight == Weight.CASCADE else "cause"
    return LogVerdict(state, ([first] if first else []) + rest, roots, reading)


def _root(findings: Iterable[LogFinding]) -> LogFinding | None:
    """Return the one that the others follow from: by what it says, then by time, in the last episode that has one."""
    found = list(findings)
    best = min((one.weight for one in found), default=None)
    if best is None:
        return None
    among = [one for one in found if one.weight == best]
    last = _last_episode(among, found)
    return min(last, key=lambda one: (_when(one), one.category != "hardware", one.file, one.line_number))


def _last_episode(among: Sequence[LogFinding], found: Sequence[LogFinding]) -> list[LogFinding]:
    """Return those of the last episode that has some, and those without a time."""
    last = max((one.time for one in among if one.time is not None), default=None)
    if last is None:
        return list(among)
    times = sorted(one.time for one in found if one.time is not None)
    begin, end = times[0], times[0]
    for before, after in pairwise(times):
        if after - before > EPISODE:
            if before >= last:
                break
            begin = after
        end = after
    begin = max(begin, min(end - LONGEST_WAIT, last))
    return [one for one in among if one.time is None or one.time >= begin]


def _when(finding: LogFinding) -> float:
    """Return when a finding came; a fault of hardware without a time, as of a kernel's log, counts as earlier."""
    if finding.time is not None:
        return finding.time
    return float("-inf") if finding.category == "hardware" else float("inf")


def _grouped(reading: Reading) -> list[LogFinding]:
    kinds = templates(one.key.detail for one in reading.found if one.key.detail)
    groups: dict[tuple[int, int, str], list[Found]] = {}
    for one in reading.found:
        kind = kinds.get(one.key.detail, "")
        groups.setdefault((one.key.attempt or 0, one.key.row, kind), []).append(one)
    return [_finding(attempt, row, group, reading) for (attempt, row, _), group in groups.items()]


def _finding(attempt: int, row: int, group: Sequence[Found], reading: Reading) -> LogFinding:
    first = min(group, key=lambda one: float("inf") if one.sighting.time is None else one.sighting.time)
    ranks = [_rank(one, reading) for one in group]
    known = signature(row)
    category, role = (known.category, known.role) if known else ("unknown", "unknown")
    rank = _rank(first, reading)
    return LogFinding(
        name=known.name if known else "unknown",
        category=category,
        role=role,
        rank=rank,
        node=first.key.node,
        line=first.sighting.text,
        file=first.file,
        line_number=first.line,
        time=first.sighting.time,
        attempt=attempt,
        count=sum(one.sighting.seen for one in group),
        ranks=sorted({one for one in ranks if one is not None}),
        nodes=sorted({one.key.node for one in group if one.key.node}),
        frame=first.sighting.frame,
        nic=reading.nccl.card(first.sighting.text, first.key.node, rank) if category == "network" else "",
        cause=known.cause if known else "No row of the table knows this error.",
        next=list(known.next) if known else ["Read what stands around it"],
        weight=_weight(row, first.sighting.text),
    )


def _rank(found: Found, reading: Reading) -> int | None:
    """Return the rank of a line; the one that NCCL's lines say of its process is preferred to a local one."""
    if found.key.rank is None or found.sighting.local:
        known = reading.nccl.rank_of(found.key.node, found.sighting.pid)
        return found.key.rank if known is None else known
    return found.key.rank


def _weight(row: int, text: str) -> Weight:
    """Return how much a line says about the cause; a root that its program calls a warning only perhaps."""
    known = signature(row)
    if row == UNKNOWN or known is None:
        return Weight.UNKNOWN
    if known.role == "root":
        if _MILD.search(text[:200]) and not _NOT_MILD.search(text[:200]):
            return Weight.UNKNOWN
        return Weight.EXCEPTION if known.weak else Weight.PEER if known.peer else Weight.ROOT
    if known.role == "confirmation":
        return Weight.CONFIRMED if known.category in _STRONG else Weight.CONFIRMATION
    return Weight.CASCADE if known.role == "cascade" else Weight.ADVICE
