"""Names who holds a run up in which nothing is pending on record: by boxes, and by what gloo counts as done."""

from __future__ import annotations

from collections import defaultdict

from tachograph.blackbox import mismatch
from tachograph.blackbox.findings import FAILED, HOST, NO_DUMP, Culprit, Open, Verdict
from tachograph.blackbox.recorder import COMMUNICATION, RankDump
from tachograph.blackbox.standing import Standing
from tachograph.blackbox.words import line_of, rank_list, whereabouts, without_dump

COLLECTIVES = "distributed_c10d.py"
"""The file of PyTorch's that is innermost in most calls of a collective."""

MESSAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
"""Functions in which stages of a pipeline wait for their neighbours: each at a line of its own."""


def add(verdict: Verdict, standing: Standing, named: dict[int, Culprit]) -> None:
    """Add who is a call short, who failed by itself, who stands still, or who alone left no dump; the first found."""
    for find in (_add_failed, _add_odd_place):
        if not named:
            find(standing, named)
    if not named:
        _add_by_its_box(verdict, standing, named)
    if not named:
        _add_absent_of_gloo(standing, named)


def _add_failed(standing: Standing, named: dict[int, Culprit]) -> None:
    """Name ranks that are one call short of all others; gloo calls an operation done once it has timed out."""
    for name, group in standing.groups.items():
        if not group.exact or group.point_to_point:
            continue
        counts = {rank: count for rank in group.members if (count := standing.enqueued(rank, name)) is not None}
        most = max(counts.values(), default=0)
        behind = [rank for rank, count in counts.items() if count < most]
        short = [rank for rank in behind if not standing.dumps[rank].failed_in_collective]
        backends = set[str]().union(*(standing.dumps[rank].backends for rank in counts))
        level = all(count in (most, most - 1) for count in counts.values())
        if not short or 2 * len(short) >= len(counts) or backends != {"gloo"} or not level:
            continue
        waiting = [rank for rank in counts if rank not in behind]
        calls = standing.dumps[waiting[0]].calls.get(name)
        line = standing.shapes[calls.shapes[-1]].line if calls else None
        for rank in short:
            dump = standing.dumps[rank]
            reason = (
                f"stuck on the host: never called #{most} of {group.title}, which {rank_list(waiting)} called; gloo "
                "counts it as done, as it does after a timeout"
            )
            named.setdefault(rank, Culprit(rank, HOST, reason, dump.where or dump.last_line, line))


def _add_odd_place(standing: Standing, named: dict[int, Culprit]) -> None:
    """Name the few that stand still at another line than most, where all have made as many calls of each group."""
    dumps = standing.dumps
    if standing.absent or len(dumps) < 3 or not all(dump.where and dump.stands_still for dump in dumps.values()):
        return
    if any(_function(dump) in MESSAGES for dump in dumps.values()):
        return
    for name, group in standing.groups.items():
        if len({standing.enqueued(rank, name) for rank in group.members}) > 1:
            return
    by_line: defaultdict[str, list[int]] = defaultdict(list)
    for rank, dump in dumps.items():
        by_line[_line(dump)].append(rank)
    line, most = max(by_line.items(), key=lambda item: len(item[1]))
    if 2 * len(most) <= len(dumps) or not _function(dumps[most[0]]):  # as at a handle's `wait`, of whatever it is
        return
    for rank in dumps.keys() - set(most):
        dump = dumps[rank]
        calls = COLLECTIVES in (dump.where or "")
        reason = (
            f"{'called something else' if calls else 'stands elsewhere'} than {rank_list(most)} at {line}: "
            f"{whereabouts(dump)}; all have made equally many calls, and no recorder says which"
        )
        named[rank] = Culprit(rank, mismatch.TYPE if calls else HOST, reason, dump.where, line)


def _line(dump: RankDump) -> str:
    return (dump.where or "").partition(", in ")[0]


def _function(dump: RankDump) -> str:
    """Return the innermost function in which the rank's own line waits; empty where it calls none."""
    return (dump.where or "").partition(", in ")[2].rpartition(" ")[2]


def _add_by_its_box(verdict: Verdict, standing: Standing, named: dict[int, Culprit]) -> None:
    """Name who failed by itself, else who went no further, by their boxes: no recorder knows of a collective."""
    dumps = standing.dumps
    failed = [rank for rank, dump in dumps.items() if dump.failure and dump.failure != COMMUNICATION]
    still = [rank for rank, dump in dumps.items() if dump.stands_still]
    for rank in failed or still:
        dump = dumps[rank]
        what = f"failed: {dump.failure}" if dump.failure else f"{dump.reason}, and waits in no collective on record"
        what += f": {dump.raised}" if dump.raised else ""
        reason = what + (f"; in phase {dump.phase}" if dump.phase else "")
        named[rank] = Culprit(rank, FAILED if dump.failure else HOST, reason, dump.where)
    if len(named) > max(1, len(standing.world) // 2):
        verdict.undecided.append(
            Open(
                f"{rank_list(named)} {'failed' if failed else 'went no further'}",
                "no recorder says who waits for whom, and they are most of the run",
                tuple(sorted(named)),
            )
        )
        verdict.state = "stuck"
        named.clear()


def _add_absent_of_gloo(standing: Standing, named: dict[int, Culprit]) -> None:
    """Name the few without a dump where all else has ended; gloo counts calls as done that failed with a peer."""
    backends = set[str]().union(*(dump.backends or dump.configured for dump in standing.dumps.values()))
    if backends != {"gloo"} or 2 * len(standing.absent) > len(standing.world):
        return
    for rank in standing.absent:
        reason = (
            "left no dump that can be read, alone of all; nothing of the others is pending, but gloo counts a call as "
            f"done that failed because a peer was gone: {without_dump(standing, rank)}"
        )
        named[rank] = Culprit(rank, NO_DUMP, reason, line_of(standing, rank))
