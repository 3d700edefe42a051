"""From what was found to the first cause, and what followed from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise

from tachograph.logs.clocks import FARTHEST, Source, StepClocks
from tachograph.logs.clusters import templates
from tachograph.logs.reading import Found, Reading
from tachograph.logs.sightings import UNKNOWN, Sighting, signature
from tachograph.signatures.table import table

EPISODE = 45 * 60
"""Seconds without a finding that part two episodes: a collective may wait 30 minutes before it times out."""

LONGEST_WAIT = 75 * 60
"""Seconds before the end of an episode in which its cause is looked for first: what waits longer is rare."""

CLOCKS = 60.0
"""Seconds that clocks which nothing compares usually differ by at most: within them, what is likelier comes first."""
STEP = 5.0
"""Seconds within which two things are at once on clocks that steps compare: one rank may be ahead by a step."""
MOST_CLOCKS = 64
"""Nodes whose clocks are compared for one kind of line: those on which it came first."""

SILENT = 0.25
"""The largest share of ranks whose silence says something, where the others complain."""
_STRONG = ("out_of_memory", "hardware", "numerical")
"""Categories whose confirmations say more than an exception that no special row knows."""


class Weight(IntEnum):
    """How much a finding says about the cause, the least number the most."""

    ROOT = 0
    CONFIRMED = 1
    PEER = 2
    EXCEPTION = 3
    CONFIRMATION = 4
    ALONE = 5
    UNKNOWN = 6
    CASCADE = 7
    ADVICE = 8


@dataclass
class LogFinding:
    """One kind of line in one attempt: of which ranks and nodes, where it came first, and what to do.

    `line` is the text of the first one and `rank` its rank; `line_number` counts from 1 in `file`. `time`: Unix
    seconds. `frame`: the innermost call of the program, if a traceback goes with it. `nic`: network card. `local_rank`
    counts within its node and is given where nothing says the rank. `by`: who says it (signatures.yaml). `passed`: why
    it is no cause: possibility, warning, retry, skip, handled, or went_on. `source`: whose clock its time is of.
    `suffered`: its rank had complained of a peer before.
    """

    name: str
    category: str
    role: str
    rank: int | None
    local_rank: int | None
    node: str
    by: str
    passed: str
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
    source: Source
    suffered: bool


@dataclass
class LogVerdict:
    """The conclusion. `state`: cause, no_cause (something failed, and nothing says why), nothing_wrong, unreadable.

    `roots`: the cause of each attempt that has one. `rivals`: others by other clocks that may have been earlier.
    `silent`: the ranks that say nothing where nearly all others complain.
    """

    state: str
    findings: list[LogFinding]
    roots: list[LogFinding]
    reading: Reading
    rivals: list[LogFinding]
    silent: list[int]


def conclude(reading: Reading) -> LogVerdict:
    """Return the findings, the root first; where there is none, the first that suffered."""
    findings = _grouped(reading)
    attempts = sorted({finding.attempt for finding in findings})
    by_attempt = [[one for one in findings if one.attempt == attempt] for attempt in attempts]
    roots = [
        _told_who(root, found)
        for found in by_attempt
        if (root := _root(found, reading)) and root.weight < Weight.CASCADE
    ]
    first = roots[0] if roots else _root(findings, reading)
    rest = [finding for finding in findings if first is None or _place(finding) != _place(first)]
    rest.sort(key=lambda one: (one.attempt, one.weight, _when(one), one.line_number))
    if not reading.files:
        state = "unreadable"
    elif first is None or first.weight == Weight.ADVICE:
        state = "nothing_wrong"
    else:
        state = "no_cause" if first.weight == Weight.CASCADE else "cause"
    rivals = _rivals(first, rest, reading.clocks) if first and state == "cause" else []
    silent = _silent(findings, reading) if state == "no_cause" else []
    return LogVerdict(state, ([first] if first else []) + rest, roots, reading, rivals, silent)


def _place(finding: LogFinding) -> tuple[str, int, str, str, int]:
    return finding.file, finding.line_number, finding.name, finding.line, finding.attempt


def _root(findings: Sequence[LogFinding], reading: Reading) -> LogFinding | None:
    """Return the one that the others follow from: by what it says, then by time, in the last episode that has one."""
    best = min((one.weight for one in findings), default=None)
    if best is None:
        return None
    last = _last_episode([one for one in findings if one.weight == best], findings)
    last = [one for one in last if not one.suffered] or last
    any_clock = min(last, key=lambda one: (_when(one), one.category != "hardware", one.file, one.line_number))
    when = {id(one): _when(one) - (reading.clocks.apart(one.source, any_clock.source) or 0.0) for one in last}
    first = min(last, key=lambda one: (when[id(one)], one.category != "hardware", one.file, one.line_number))
    near = [first, *(one for one in last if one.node != first.node and _at_once(one, first, reading.clocks))]
    # what ends many follows; the one that a single rank has is likelier
    return min(near, key=lambda one: (one.category != "hardware", len(one.ranks) > 1, when[id(one)]))


def _at_once(one: LogFinding, first: LogFinding, clocks: StepClocks) -> bool:
    """Return whether clocks cannot tell which of two on different nodes was earlier, as far as clocks usually agree."""
    if one.time is None or first.time is None:
        return False
    ahead = clocks.apart(one.source, first.source)
    return abs(one.time - first.time) <= CLOCKS if ahead is None else abs(one.time - ahead - first.time) <= STEP


def _rivals(first: LogFinding, others: Iterable[LogFinding], clocks: StepClocks) -> list[LogFinding]:
    """Return those of the same weight of which nothing proves that they came later."""
    alike = (one for one in others if one.weight == first.weight and one.attempt == first.attempt)
    return [one for one in alike if not one.suffered and _perhaps_before(one, first, clocks)]


def _perhaps_before(one: LogFinding, first: LogFinding, clocks: StepClocks) -> bool:
    if one.time is None or first.time is None or one.source == first.source:
        return False
    if clocks.apart(one.source, first.source) is None:
        return abs(one.time - first.time) <= FARTHEST
    return one.node != first.node and _at_once(one, first, clocks)


def _told_who(root: LogFinding, findings: Sequence[LogFinding]) -> LogFinding:
    """Return a cause that is confirmed from outside with the one rank that itself says something of its kind."""
    if root.rank is not None or root.weight != Weight.CONFIRMED:
        return root
    alike = [one for one in findings if one.category == root.category and one.weight < Weight.CASCADE]
    ranks = {rank for one in alike for rank in one.ranks}
    if len(ranks) != 1:
        return root
    (rank,) = ranks
    node = next((one.node for one in alike if rank in one.ranks and one.node), "")
    if root.node and node and root.node != node:
        return root
    return replace(root, rank=rank, ranks=[rank], node=root.node or node)


def _silent(findings: Iterable[LogFinding], reading: Reading) -> list[int]:
    """Return the few ranks that do not complain of their peers, where nearly all others do."""
    complain = {rank for one in findings if one.weight == Weight.CASCADE for rank in one.ranks}
    known = reading.names.known() | set(range(max(complain, default=-1) + 1))
    silent = sorted(known - complain)
    return silent if complain and len(silent) <= max(1, SILENT * len(known)) else []


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
    complaints: dict[tuple[int, int], Found] = {}
    for one in reading.found:
        kind = kinds.get(one.key.detail, "")
        groups.setdefault((one.key.attempt or 0, one.key.row, kind), []).append(one)
        row = signature(one.key.row)
        if row and (row.role, row.category) == ("cascade", "network") and not _passed(one, one.key.row):
            rank = reading.names.rank(one.key, one.sighting, one.number)
            if rank is not None:
                complaints.setdefault((one.key.attempt or 0, rank), one)
    return [_finding(attempt, row, group, reading, complaints) for (attempt, row, _), group in groups.items()]


def _finding(
    attempt: int, row: int, group: Sequence[Found], reading: Reading, complaints: Mapping[tuple[int, int], Found]
) -> LogFinding:
    failed = [one for one in group if not _passed(one, row)]
    counted = failed or group
    first = _first(counted, reading.clocks)
    ranks = [reading.names.rank(one.key, one.sighting, one.number) for one in counted]
    known = signature(row)
    category, role = (known.category, known.role) if known else ("unknown", "unknown")
    rank = reading.names.rank(first.key, first.sighting, first.number)
    passed = "" if failed else _passed(first, row)
    complaint = None if rank is None else complaints.get((attempt, rank))
    return LogFinding(
        name=known.name if known else "unknown",
        category=category,
        role=role,
        rank=rank,
        local_rank=first.sighting.local_rank if rank is None else None,
        node=first.key.node,
        by=known.by if known else "program",
        passed=passed,
        line=first.sighting.text,
        file=first.file,
        line_number=first.line,
        time=first.sighting.time,
        attempt=attempt,
        count=sum(one.sighting.seen for one in counted),
        ranks=sorted({one for one in ranks if one is not None}),
        nodes=sorted({one.key.node for one in counted if one.key.node}),
        frame=first.sighting.frame,
        nic=reading.names.nccl.card(first.sighting.text, first.key.node, rank) if category == "network" else "",
        cause=known.cause if known else "No row of the table knows this error.",
        next=list(known.next) if known else ["Read what stands around it"],
        weight=Weight.ADVICE if passed else _weight(row, first.sighting),
        source=_source(first),
        suffered=complaint is not None and complaint.number == first.number and complaint.line < first.line,
    )


def _source(found: Found) -> Source:
    return found.number, found.key.node


def _first(group: Sequence[Found], clocks: StepClocks) -> Found:
    """Return the first of a kind; on several nodes, by clocks that steps compare, where they do."""
    order = sorted(group, key=lambda one: float("inf") if one.sighting.time is None else one.sighting.time)
    earliest: dict[Source, Found] = {}
    for one in order:
        if len(earliest) < MOST_CLOCKS and one.sighting.time is not None:
            earliest.setdefault(_source(one), one)
    head = order[0]
    return min(
        earliest.values(),
        key=lambda one: (one.sighting.time or 0.0) - (clocks.apart(_source(one), _source(head)) or 0.0),
        default=head,
    )


def _passed(found: Found, row: int) -> str:
    """Return why a line is no cause, though it speaks of a failure; "" if it is one."""
    known = signature(row)
    if known is not None and known.handled:
        return "handled"
    return "went_on" if found.sighting.recovered else found.sighting.mood


def _weight(row: int, sighting: Sighting) -> Weight:
    """Return how much a line says about the cause."""
    known = signature(row)
    if row == UNKNOWN or known is None:
        return Weight.UNKNOWN
    if known.evidence and not sighting.frame and not table().exception.search(sighting.text):
        return Weight.UNKNOWN  # reported, and nothing was raised
    if known.role == "root":
        return Weight.EXCEPTION if known.weak else Weight.PEER if known.peer else Weight.ROOT
    if known.role == "confirmation" and known.by != "program":
        return Weight.CONFIRMED if known.category in _STRONG else Weight.CONFIRMATION
    if known.role in ("confirmation", "cascade"):
        return Weight.ALONE if known.alone else Weight.CASCADE
    return Weight.ADVICE
