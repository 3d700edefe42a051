"""Decides what a folder of dumps says: who holds the run up, why and where, what follows from it, what stays open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tachograph.blackbox import crossed, gpu, mismatch, slow, unrecorded, waits
from tachograph.blackbox import folder as folders
from tachograph.blackbox.findings import FAILED, GPU, HOST, NO_DUMP, SLOW, BlockedGroup, Culprit, Open, Verdict
from tachograph.blackbox.folder import Folder
from tachograph.blackbox.mismatch import Mismatch
from tachograph.blackbox.served import known_beside
from tachograph.blackbox.standing import Known, Standing, stand
from tachograph.blackbox.waits import Blocked, Roots
from tachograph.blackbox.words import (
    called,
    line_in,
    line_of,
    operation_name,
    rank_list,
    shape_of,
    wait,
    whereabouts,
    without_dump,
)
from tachograph.text import humanize


def analyze(directory: Path, world_size: int | None = None) -> Verdict:
    """Return what the dumps of a folder say; raises OSError where the folder cannot be listed."""
    return judge(folders.read(directory), str(directory), world_size, known_beside(directory))


def judge(
    folder: Folder, source: str, world_size: int | None = None, known: Mapping[int, Known] | None = None
) -> Verdict:
    """Return what the dumps say that were read from a source; `known` is what others say of ranks."""
    standing = stand(folder, world_size, known)
    verdict = _about_files(source, folder, standing)
    if folder.ranks:
        _decide(verdict, standing)
    else:
        verdict.state = "unreadable"
    return verdict


def _about_files(directory: str, folder: Folder, standing: Standing) -> Verdict:
    stale = [f"{name} (rank {rank})" for rank, name in sorted(folder.stale.items())]
    runs = Counter(dump.run for dump in folder.ranks.values() if dump.run)
    return Verdict(
        directory,
        run=runs.most_common(1)[0][0] if runs else "",
        ranks=tuple(sorted(folder.ranks)),
        world=len(standing.world),
        absent=tuple(sorted(standing.absent)),
        damaged=dict(sorted(folder.damaged.items())),
        other_attempts=sorted(folder.other_attempts) + stale,
        backends=tuple(sorted(set[str]().union(*(dump.backends for dump in folder.ranks.values())))),
        versions=tuple(sorted(set[str]().union(*(dump.versions for dump in folder.ranks.values())))),
    )


def _decide(verdict: Verdict, standing: Standing) -> None:
    operations = waits.blocked(standing)
    behind = gpu.behind(standing) if operations else {}
    found = waits.roots(standing, operations, behind)
    disagreements = mismatch.mismatches(standing)
    named: dict[int, Culprit] = {}
    for one in disagreements:
        _add_mismatch(verdict, standing, one, named)
    disagree = any(one.blocks for one in disagreements)
    if not named and not disagree:
        for rank, late in behind.items():
            named[rank] = _gpu(standing, rank, late)
        _add_stuck(standing, found, named)
        _add_absent(verdict, standing, found, named)
        if not named:
            _add_rings(verdict, standing, operations, found, named)
        if not named and operations:
            _add_idle(standing, operations, named)
    if not named and not operations and not disagree:
        unrecorded.add(verdict, standing, named)
    verdict.culprits = [named[rank] for rank in sorted(named)]
    if any(one.is_counted for one in operations):
        verdict.notes.append("By the ranks' own counts of calls: no recorder of the group holds an operation")
    if operations or named or disagree:
        verdict.state = "stuck"
    elif verdict.state != "stuck":
        _add_slow(verdict, standing)
    _add_blocked(verdict, standing, operations, found, set(named))
    _add_open(verdict, standing, operations)


def _add_mismatch(verdict: Verdict, standing: Standing, one: Mismatch, named: dict[int, Culprit]) -> None:
    title = standing.groups[one.group].title
    mine, theirs = called(one.called), called(one.expected)
    if not one.blocks:
        verdict.notes.append(
            f"{title} #{one.sequence}: {rank_list(one.ranks)} called {mine}, others {theirs}; the group went on"
        )
        return
    if not one.decided:
        verdict.undecided.append(
            Open(
                f"{title} #{one.sequence}: {rank_list(one.ranks)} called {mine}, {rank_list(one.others)} {theirs}",
                "as many say one thing as the other, and no group of its kind says which is right",
                tuple(sorted((*one.ranks, *one.others))),
            )
        )
        return
    words = {
        mismatch.SKIPPED: f"skipped {theirs}, or takes its calls in another order: called {mine} instead",
        mismatch.ORDER: f"wrong order: called {mine} before {theirs}",
        mismatch.EXTRA: f"one call too many: called {mine} before {theirs}",
        mismatch.TYPE: f"called {mine} where the others called {theirs}",
        mismatch.SIZE: f"size mismatch: called {mine}, the others {theirs}",
        mismatch.DTYPE: f"dtype mismatch: called {mine}, the others {theirs}",
    }[one.kind]
    skipped = one.kind == mismatch.SKIPPED
    if skipped and mismatch.is_from_elsewhere(standing, one):
        words = (
            f"wrong order, or one call too many: called {mine}, never before from there, where the others called "
            f"{theirs}"
        )
        one.kind, skipped = mismatch.ORDER, False
    missed_line = one.expected.line or _where_at(standing, one, one.others)
    for rank in one.ranks:
        own_line = one.called.line or _where_at(standing, one, [rank])
        named.setdefault(
            rank,
            Culprit(
                rank,
                one.kind,
                f"{words} (#{one.sequence} of {title})",
                missed_line if skipped and missed_line else own_line,
                missed_line,
            ),
        )


def _where_at(standing: Standing, one: Mismatch, ranks: Sequence[int]) -> str | None:
    """Return where ranks stand of which the operation is the last call, by the first that says it."""
    for rank in ranks:
        dump = standing.dumps[rank]
        calls = dump.calls.get(one.group)
        if dump.where and calls and calls.sequences[-1] == one.sequence:
            return dump.where
    return None


def _gpu(standing: Standing, rank: int, late: gpu.Behind) -> Culprit:
    first = min(
        (one for one in standing.dumps[rank].pending if one.group == late.group and one.peer is None),
        key=lambda one: one.sequence,
        default=None,
    )
    what = standing.shape(first) if first else None
    named = f"{what.name} #{late.completed + 1}" if what else f"#{late.completed + 1}"
    return Culprit(
        rank,
        GPU,
        f"stuck on the GPU: has called {named} of {standing.groups[late.group].title} and not finished it, while other "
        f"members have finished all up to #{late.others} (behind in {humanize.plural(late.groups, 'group')})",
        what.line if what else None,
    )


def _add_stuck(standing: Standing, found: Roots, named: dict[int, Culprit]) -> None:
    for rank, ones in found.stuck.items():
        first = min(ones, key=lambda one: (one.peer is not None, one.since is None, one.since or 0))
        line = line_in(standing, first)
        if rank in first.not_started:
            reason = f"stuck on the GPU: its GPU has not started {operation_name(standing, first)}, others' have"
            named.setdefault(rank, Culprit(rank, GPU, reason, line))
            continue
        members = len(standing.groups[first.group].members)
        alone = first.missing <= found.stuck.keys()
        if alone and len(first.missing) > 1 and 4 * len(first.waiting) <= members and first.peer is None:
            for waiting in first.waiting:
                reason = (
                    f"called {operation_name(standing, first)} alone: {rank_list(first.missing)} have not, and nothing "
                    "else holds them up; one call too many, or all the others have left or are held up on the host"
                )
                named.setdefault(waiting, Culprit(waiting, mismatch.EXTRA, reason, line))
            continue
        dump = standing.dumps[rank]
        failed = bool(dump.failure) and not dump.failed_in_collective
        reason = (
            f"{'failed' if failed else 'stuck on the host'}: never called {operation_name(standing, first)}, for which "
            f"{rank_list(first.waiting)} {wait(first.waiting)}; "
            + ("the others have called what it has pending" if dump.pending else "nothing of its own is pending")
        )
        if dump.where:
            reason += f"; {whereabouts(dump)}"
        elif dump.last_line:
            reason += f"; its last call was at {dump.last_line}"
        reason += (
            f"; it raised {dump.raised}" if dump.raised else f"; it failed: {dump.failure}" if dump.failure else ""
        )
        kind = FAILED if failed else HOST
        named.setdefault(rank, Culprit(rank, kind, reason, dump.where or dump.last_line, line))


def _add_absent(verdict: Verdict, standing: Standing, found: Roots, named: dict[int, Culprit]) -> None:
    if 2 * len(standing.absent) > len(standing.world):
        return
    for rank, ones in found.absent.items():
        first = min(ones, key=lambda one: (one.since is None, one.since or 0))
        if all(waiting in found.explained for one in ones for waiting in one.waiting):
            verdict.undecided.append(
                Open(
                    f"rank {rank} left no dump that can be read",
                    "what waits for it waits for a rank that is named as well; it may have died on its own",
                    (rank,),
                )
            )
            continue
        if slower := crossed.held_up_by(standing, rank, ones, named):
            verdict.undecided.append(
                Open(
                    f"rank {rank} left no dump that can be read",
                    f"it cannot have come as far as what waits for it without rank {slower}, which is named, or died "
                    "on its own",
                    (rank,),
                )
            )
            continue
        reason = (
            f"left no dump that can be read, and {rank_list(first.waiting)} {wait(first.waiting)} for it in "
            f"{operation_name(standing, first)}: {without_dump(standing, rank)}"
        )
        named.setdefault(rank, Culprit(rank, NO_DUMP, reason, line_of(standing, rank), line_in(standing, first)))


def _add_rings(
    verdict: Verdict, standing: Standing, operations: Sequence[Blocked], found: Roots, named: dict[int, Culprit]
) -> None:
    for ranks, ones in found.rings:
        if any(one.missing for one in ones):
            crossed.add(verdict, standing, ones, named)
            continue
        first = ones[0]
        missed = [one for one in operations if ranks <= one.missing]
        if missed and (done := gpu.finished_by(standing, first)):
            reason = (
                f"stuck on the GPU: has called {operation_name(standing, first)} and not finished it, as "
                f"{rank_list(done)} did; {rank_list(missed[0].waiting)} {wait(missed[0].waiting)} for its next calls"
            )
            named.update({rank: Culprit(rank, GPU, reason, line_in(standing, first)) for rank in ranks})
            continue
        have = "have all" if len(ranks) > 1 else "has"
        verdict.undecided.append(
            Open(
                f"{rank_list(ranks)} {have} called {operation_name(standing, first)}, and it ends at none of them",
                "all are equal: the network between them, or a GPU that nothing here tells apart; ask for their "
                "Xids, NICs and switches",
                tuple(sorted(ranks)),
            )
        )


def _add_idle(standing: Standing, operations: Sequence[Blocked], named: dict[int, Culprit]) -> None:
    """Name ranks in which nothing is pending, where the members of the blocked group are not on record."""
    guessed = [one for one in operations if one.peer is None and not standing.groups[one.group].exact]
    if not guessed or guessed[0] is not operations[0]:
        return
    idle = [rank for rank, dump in standing.dumps.items() if not dump.pending and not dump.cut]
    if not idle or 2 * len(idle) > len(standing.dumps):
        return
    for rank in idle:
        dump = standing.dumps[rank]
        reason = (
            f"probably stuck on the host: nothing of its own is pending, while {rank_list(operations[0].waiting)} "
            f"{wait(operations[0].waiting)} in {operation_name(standing, operations[0])}; the dumps do not say who is "
            "in that group"
        )
        line = dump.where or dump.last_line
        named[rank] = Culprit(rank, HOST, reason, line, shape_of(standing, operations[0]).line)


def _add_slow(verdict: Verdict, standing: Standing) -> None:
    for one in slow.slow(standing):
        clock = "; this rests on the nodes' clocks" if one.by_clock else ""
        reason = (
            f"slow: comes last to {humanize.percent(one.share)} of {humanize.plural(one.collectives, 'collective')} of "
            f"{standing.groups[one.group].title}, {humanize.duration(one.seconds)} after the median rank{clock}"
        )
        verdict.culprits.append(Culprit(one.rank, SLOW, reason, standing.dumps[one.rank].last_line))
        verdict.state = "slow"


def _add_blocked(
    verdict: Verdict, standing: Standing, operations: Sequence[Blocked], found: Roots, named: set[int]
) -> None:
    if not operations:
        return
    in_ring = {id(one) for _, ones in found.rings for one in ones}
    at_root = [one for one in operations if named & (one.missing | one.unknown | one.not_started | set(one.waiting))]
    if not any(one.kind == GPU for one in verdict.culprits):
        missed = [one for one in at_root if named & (one.missing | one.unknown | one.not_started)]
        at_root = [one for one in missed if one.peer is None] or missed or at_root
    first = next(iter(at_root or [one for one in operations if id(one) in in_ring] or operations))
    verdict.blocked_first = _blocked_group(standing, first)
    seen = {first.group}
    for one in operations:
        if one.group not in seen:
            seen.add(one.group)
            verdict.cascade.append(_blocked_group(standing, one))


def _add_open(verdict: Verdict, standing: Standing, operations: Sequence[Blocked]) -> None:
    mentioned = {rank for one in verdict.undecided for rank in one.ranks} | {one.rank for one in verdict.culprits}
    silent = sorted(standing.absent - mentioned)
    if silent:
        why = "what the others hold does not depend on them" if operations else "nothing in the others' is pending"
        if 2 * len(standing.absent) > len(standing.world):
            why = "most ranks left none: fetch their dumps first"
        verdict.undecided.append(Open(f"{rank_list(silent)} left no dump that can be read", why, tuple(silent)))
    cut = [rank for rank in verdict.ranks if standing.dumps[rank].cut]
    if cut:
        verdict.undecided.append(
            Open(
                f"{rank_list(cut)}: the dump was cut short",
                "what it does not hold may be behind the cut, and is not held against the rank",
                tuple(cut),
            )
        )
    if operations and not verdict.culprits and not any(one.ranks for one in verdict.undecided):
        verdict.undecided.append(
            Open("who holds the run up", "what is pending leads to no rank that waits for nobody", ())
        )


def _blocked_group(standing: Standing, one: Blocked) -> BlockedGroup:
    shape = shape_of(standing, one)
    group = standing.groups[one.group]
    return BlockedGroup(
        group.title,
        len(group.members),
        shape.name,
        one.sequence,
        shape.line,
        tuple(sorted(one.waiting)),
        tuple(sorted(one.missing | one.unknown)),
        one.since / 1e9 if one.since else None,
    )
