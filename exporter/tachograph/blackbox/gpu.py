"""Finds ranks whose GPU no longer finishes what the same group's other GPUs have finished."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from tachograph.blackbox.recorder import RankDump
from tachograph.blackbox.standing import Standing
from tachograph.blackbox.waits import Blocked

USUAL = 2
"""Difference that is normal in one group: the count of finished collectives moves when a rank's watchdog looks."""

ONE_WAY = frozenset(("broadcast", "broadcast_oop", "scatter", "reduce", "reduce_oop", "gather"))
"""Operations that some members finish before others have; a plain reduce and gather end at the root."""


@dataclass(frozen=True)
class Behind:
    """How far a rank's GPU is behind in the group where that is most."""

    group: str
    completed: int
    others: int
    groups: int


def behind(standing: Standing) -> dict[int, Behind]:
    """Return the ranks that have called what others have finished, and have not finished it themselves.

    A rank counts if it is behind by more than two in one group; or behind in two groups, if few other ranks are behind
    in any: in a run that goes on many are.
    """
    found: defaultdict[int, list[Behind]] = defaultdict(list)
    names = _first_pending(standing)
    for name, group in standing.groups.items():
        if group.point_to_point or len(group.members) < 2:
            continue
        done = {
            rank: count
            for rank in group.members
            if (count := standing.completed(rank, name)) is not None and not standing.dumps[rank].failed_in_collective
        }
        if len(done) < 2 or len(set(done.values())) < 2:
            continue
        most = max(done.values())
        late = [rank for rank, count in done.items() if count < most <= (standing.enqueued(rank, name) or 0)]
        late = [rank for rank in late if _pending_there(standing.dumps[rank], names.get((rank, name)))]
        if not late or 2 * len(late) > len(group.members):
            continue
        for rank in late:
            found[rank].append(Behind(name, done[rank], most, 0))
    result = {}
    few = max(1, len(standing.dumps) // 8)
    for rank, ones in found.items():
        worst = max(ones, key=lambda one: one.others - one.completed)
        if worst.others - worst.completed > USUAL or (len(ones) > 1 and len(found) <= few):
            result[rank] = Behind(worst.group, worst.completed, worst.others, len(ones))
    return result if 2 * len(result) <= len(standing.dumps) else {}


def finished_by(standing: Standing, one: Blocked) -> list[int]:
    """Return the members that have finished an operation which a minority has called and not finished."""
    if one.peer is not None or standing.shape(one.example).name in ONE_WAY:
        return []
    members = standing.groups[one.group].members
    done = [rank for rank in sorted(members) if (standing.completed(rank, one.group) or 0) >= one.sequence]
    return done if 2 * len(done) >= len(members) else []


def _pending_there(dump: RankDump, first: str | None) -> bool:
    """Return whether a rank's ring shows the operation that its count says is not done, if it shows any."""
    if first is None:  # a count that also holds point-to-point operations may be behind without one
        return dump.cut or not (dump.calls or dump.pending)
    return first not in ONE_WAY


def _first_pending(standing: Standing) -> Mapping[tuple[int, str], str]:
    found: dict[tuple[int, str], tuple[int, str]] = {}
    for rank, dump in standing.dumps.items():
        for one in dump.pending:
            key = (rank, one.group)
            if one.peer is None and (key not in found or one.sequence < found[key][0]):
                found[key] = (one.sequence, standing.shape(one).name)
    return {key: name for key, (_, name) in found.items()}
