"""From what was found to the first cause, and what followed from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tachograph.logs.clocks import FARTHEST, StepClocks
from tachograph.logs.findings import LogFinding, Weight, all_findings
from tachograph.logs.reading import Reading

EPISODE = 45 * 60
"""Seconds without a finding that part two episodes: a collective may wait 30 minutes before it times out."""

LONGEST_WAIT = 75 * 60
"""Seconds before the end of an episode in which its cause is looked for first: what waits longer is rare."""

CLOCKS = 60.0
"""Seconds that clocks which nothing compares usually differ by at most: within them, what is likelier comes first."""
STEP = 5.0
"""Seconds within which two things are at once on clocks that steps compare: one rank may be ahead by a step."""
SURVIVED = 600.0
"""Seconds of steps after what a kernel reports, after which it has ended none of them."""
SURVIVED_LOST_NODE = 120.0
"""Seconds of steps after a scheduler has lost a node, after which no rank was on it."""
_EVENT = re.compile(r"\b(?:pod|node)/[\w.-]")
"""What Kubernetes' events are of."""
SILENT = 0.25
"""The largest share of ranks whose silence says something, where the others complain."""


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
    findings = _weighed(all_findings(reading), reading)
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


def _weighed(findings: Sequence[LogFinding], reading: Reading) -> list[LogFinding]:
    """Return findings with the weight that each has beside the others.

    What a kernel reports, or a scheduler of a node, explains no failure if all ranks made steps for long after it, nor
    does an event of Kubernetes if the training says that it is over. A line that has no more than the level of an error
    is part of what follows if its ranks complain of their peers, as others do.
    """
    one_attempt = len({one.attempt for one in findings}) == 1
    survived = [one_attempt and _is_survived(one, reading) for one in findings]
    otherwise = any(
        one.by != "kernel" and not over and one.weight < Weight.ADVICE
        for one, over in zip(findings, survived, strict=True)
    )
    complain: dict[int, set[int]] = {}
    for one in findings:
        if one.weight == Weight.CASCADE:
            complain.setdefault(one.attempt, set()).update(one.ranks)
    weighed: list[LogFinding] = []
    for one, over in zip(findings, survived, strict=True):
        weight = one.weight
        if over:
            weight = max(weight, Weight.ALONE if otherwise else Weight.ADVICE)
        elif (
            weight in (Weight.REPORTED, Weight.UNKNOWN)
            and one.ranks
            and len(others := complain.get(one.attempt, set())) > 1
        ):
            weight = Weight.CASCADE if others.issuperset(one.ranks) else weight
        weighed.append(replace(one, weight=weight))
    return weighed


def _is_survived(finding: LogFinding, reading: Reading) -> bool:
    """Return whether the training went on for so long that this has not ended it, or came to its end."""
    if reading.finished and finding.rank is None and finding.category != "preemption" and _EVENT.search(finding.line):
        return True
    return finding.time is not None and (reading.stepped or 0.0) >= finding.time + _survived_after(finding)


def _survived_after(finding: LogFinding) -> float:
    """Return how long all ranks must make steps after something to say that it has ended none of them."""
    if finding.by == "kernel":
        return SURVIVED
    return SURVIVED_LOST_NODE if (finding.by, finding.category) == ("scheduler", "hardware") else float("inf")


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
    """Return a cause that others say, not a program, with the one rank of which something of its kind is said."""
    if root.rank is not None or root.by == "program":
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
