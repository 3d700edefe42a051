"""One finding for each kind of line: of whom, where it came first, and how much it says about the cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tachograph.logs.clocks import Source, StepClocks
from tachograph.logs.clusters import templates
from tachograph.logs.kinds import MOST_FIRST, Found, Lines, passed
from tachograph.logs.reading import Reading
from tachograph.logs.sightings import UNKNOWN, Sighting, signature
from tachograph.signatures.table import table

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
    REPORTED = 6
    UNKNOWN = 7
    CASCADE = 8
    ADVICE = 9


@dataclass
class LogFinding:
    """One kind of line in one attempt: of which ranks and nodes, where it came first, and what to do.

    `line` is the text of the first one and `rank` its rank; `line_number` counts from 1 in `file`. `time`: Unix
    seconds. `frame`: the innermost call of the program, if a traceback goes with it. `nic`: network card. `local_rank`
    counts within its node and is given where nothing says the rank. `by`: who says it (signatures.yaml). `passed`: why
    it is no cause: possibility, warning, retry, skip, handled, went_on, or elsewhere. `source`: whose clock its time is
    of. `suffered`: its rank had complained of a peer before.
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


class _Group(NamedTuple):
    """Lines of one row in one attempt, those of a general row if they are worded alike. `lines`: what counts of them.

    `first`: the one that came first. `elsewhere`: all are of other nodes or jobs.
    """

    attempt: int
    row: int
    lines: list[Lines]
    first: Found
    elsewhere: bool


_Complaints = Mapping[tuple[int, int, int], int]
"""The first line in which a rank complains of a peer, by attempt, file and rank."""


def all_findings(reading: Reading) -> list[LogFinding]:
    """Return what was found."""
    groups = list(_groups(reading))
    complaints = _complaints(groups, reading)
    return [_finding(group, reading, complaints) for group in groups]


def source(found: Found) -> Source:
    """Return whose clock the time of a line is of."""
    return found.number, found.key.node


def _groups(reading: Reading) -> Iterator[_Group]:
    """Yield the groups; of what counts as no cause in some places and not in others, the latter count."""
    alike = templates(kind.wording for kind in reading.kinds.lines if kind.wording)
    failed: dict[tuple[int, int, str], list[Lines]] = {}
    went_on: dict[tuple[int, int, str], list[Lines]] = {}
    for kind, lines in reading.kinds.lines.items():
        group = kind.attempt, kind.row, alike.get(kind.wording, "")
        failed.setdefault(group, [])
        (went_on if kind.passed else failed).setdefault(group, []).append(lines)
    for group, of_group in failed.items():
        counted = of_group or went_on[group]
        among = [one for lines in counted for one in lines.first]
        own = [one for one in among if not _is_elsewhere(one, reading)]
        yield _Group(*group[:2], counted, _first(own or among, reading.clocks), elsewhere=not own)


def _is_elsewhere(found: Found, reading: Reading) -> bool:
    """Return whether a scheduler or a kernel says it of a node, or a job, that is not this one's."""
    known = signature(found.key.row)
    if known is None or known.by not in ("scheduler", "kernel") or reading.names.rank(found.place) is not None:
        return False
    return reading.job.foreign(found.key.node, found.sighting.text, reading.names.nccl)


def _complaints(groups: Sequence[_Group], reading: Reading) -> _Complaints:
    """Return where ranks complain of a peer, in the files in which something else came first."""
    files = {group.first.number for group in groups}
    found: dict[tuple[int, int, int], int] = {}
    for group in groups:
        known = signature(group.row)
        if known is None or (known.role, known.category) != ("cascade", "network") or passed(group.first):
            continue
        for lines in group.lines:
            for file, line, rank in lines.places(reading.names):
                if rank is not None and file in files:
                    key = group.attempt, file, rank
                    found[key] = min(line, found.get(key, line))
    return found


def _finding(group: _Group, reading: Reading, complaints: _Complaints) -> LogFinding:
    first, counted = group.first, group.lines
    known = signature(group.row)
    category, role = (known.category, known.role) if known else ("unknown", "unknown")
    rank = reading.names.rank(first.place)
    why = passed(first) or ("elsewhere" if group.elsewhere else "")
    complained_at = first.line if rank is None else complaints.get((group.attempt, first.number, rank), first.line)
    return LogFinding(
        name=known.name if known else "unknown",
        category=category,
        role=role,
        rank=rank,
        local_rank=first.sighting.local_rank if rank is None else None,
        node=first.key.node,
        by=known.by if known else "program",
        passed=why,
        line=first.sighting.text,
        file=first.file,
        line_number=first.line,
        time=first.sighting.time,
        attempt=group.attempt,
        count=sum(lines.count for lines in counted),
        ranks=sorted(set().union(*(lines.ranks(reading.names) for lines in counted))),
        nodes=sorted(set().union(*(lines.nodes for lines in counted))),
        frame=first.sighting.frame,
        nic=reading.names.nccl.card(first.sighting.text, first.key.node, rank) if category == "network" else "",
        cause=known.cause if known else "No row of the table knows this error.",
        next=list(known.next) if known else ["Read what stands around it"],
        weight=Weight.ADVICE if why else _weight(group.row, first.sighting),
        source=source(first),
        suffered=complained_at < first.line,
    )


def _first(among: Sequence[Found], clocks: StepClocks) -> Found:
    """Return the first of a kind; on several nodes, by clocks that steps compare, where they do."""
    order = sorted(among, key=lambda one: one.time)
    earliest: dict[Source, Found] = {}
    for one in order:
        if len(earliest) < MOST_FIRST and one.sighting.time is not None:
            earliest.setdefault(source(one), one)
    head = order[0]
    return min(
        earliest.values(),
        key=lambda one: one.time - (clocks.apart(source(one), source(head)) or 0.0),
        default=head,
    )


def _weight(row: int, sighting: Sighting) -> Weight:
    """Return how much a line says about the cause."""
    known = signature(row)
    if row == UNKNOWN or known is None:
        return Weight.UNKNOWN
    if known.evidence and not sighting.frame and not table().exception.search(sighting.text):
        return Weight.REPORTED  # and nothing was raised
    if known.role == "root":
        return Weight.EXCEPTION if known.weak else Weight.PEER if known.peer else Weight.ROOT
    if known.role == "confirmation" and known.by != "program":
        return Weight.CONFIRMED if known.category in _STRONG else Weight.CONFIRMATION
    if known.role in ("confirmation", "cascade"):
        return Weight.ALONE if known.alone else Weight.CASCADE
    return Weight.ADVICE
