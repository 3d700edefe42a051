"""Finds which of the ranks that wait for each other, in different operations, has left out a call.

Or it takes its calls in another order. Which it is follows from the order in which others make the same calls, and in
which it made them in earlier rounds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

from tachograph.blackbox import mismatch
from tachograph.blackbox.findings import Culprit, Open, Verdict
from tachograph.blackbox.recorder import RankDump
from tachograph.blackbox.standing import Standing
from tachograph.blackbox.waits import Blocked
from tachograph.blackbox.words import line_in, operation_name, rank_list, shape_of

ROUNDS = 8
"""Earlier rounds of a rank that are compared."""

NEAR = 2
"""Calls that a witness may have made since: with more, its group counts on its own."""

MOST_WITNESSES = 64
MOST_PAIRS = 4096
"""Pairs of operations that are looked at: some three for each group of a thousand ranks."""


class _Case(NamedTuple):
    """A rank that waits in one operation and is missed in another; `skipped` says whether the other one comes first."""

    rank: int
    own: Blocked
    missed: Blocked
    skipped: bool | None


def add(verdict: Verdict, standing: Standing, ones: Sequence[Blocked], named: dict[int, Culprit]) -> None:
    """Name who skipped a call, else the few that wait in one group while most wait in another, each for the other."""
    cases = _cases(standing, ones)
    found = [case for case in cases if case.skipped] or _by_elimination(standing, cases)
    if not found:
        _by_number(verdict, standing, ones, named)
    for case in found:
        reason = (
            f"skipped {operation_name(standing, case.missed)}, or takes its calls in another order: "
            f"{rank_list(case.missed.waiting)} called it, while it waits in {operation_name(standing, case.own)}"
        )
        where = standing.dumps[case.rank].where
        reason += f"; it stands at {where}" if where else ""
        line = line_in(standing, case.missed)
        named.setdefault(
            case.rank,
            Culprit(case.rank, mismatch.SKIPPED, reason, line or where or shape_of(standing, case.own).line, line),
        )


def held_up_by(standing: Standing, absent: int, ones: Sequence[Blocked], named: Iterable[int]) -> int | None:
    """Return a named rank without whose calls one that left no dump cannot have come as far as those that wait for it.

    These have made more calls in groups of the kind in which the two are together.
    """
    places = _Places(standing)
    waiting = {rank for one in ones for rank in one.waiting}
    for other in named:
        for name, group in standing.groups.items():
            if group.point_to_point or not {absent, other} <= group.members:
                continue
            made, like = standing.enqueued(other, name), places.like(name)
            further = (standing.enqueued(rank, like[rank]) or 0 for rank in waiting if like.get(rank, name) != name)
            if made is not None and any(calls > made for calls in further):
                return other
    return None


def _cases(standing: Standing, ones: Sequence[Blocked]) -> list[_Case]:
    places = _Places(standing)
    found = []
    pairs = (
        (own, missed, ranks)
        for own in ones
        for missed in ones
        if missed.missing and (ranks := missed.missing.intersection(own.waiting))
    )
    for own, missed, ranks in islice(pairs, MOST_PAIRS):
        by_others = _by_others(standing, places, own, missed)
        for rank in sorted(ranks):
            skipped = by_others if by_others is not None else _by_earlier_rounds(standing, rank, own, missed)
            found.append(_Case(rank, own, missed, skipped))
    return found


class _Places:
    """The kinds of groups: members equally far apart and the same description, where it is shared."""

    def __init__(self, standing: Standing) -> None:
        called = Counter(group.description for group in standing.groups.values())
        self._role: dict[str, tuple[str | None, tuple[int, ...]]] = {}
        self._of_rank: defaultdict[tuple[str | None, tuple[int, ...]], dict[int, str]] = defaultdict(dict)
        twice = set()
        for name, group in standing.groups.items():
            first = min(group.members, default=0)
            description = group.description if called[group.description] > 1 else None
            role = self._role[name] = (description, tuple(sorted(rank - first for rank in group.members)))
            for rank in group.members:
                if self._of_rank[role].setdefault(rank, name) != name:
                    twice.add((role, rank))
        for role, rank in twice:
            del self._of_rank[role][rank]

    def like(self, group: str) -> Mapping[int, str]:
        """Return, of each rank that is in one group of the kind, which that is."""
        return self._of_rank[self._role[group]]


def _by_others(standing: Standing, places: _Places, own: Blocked, missed: Blocked) -> bool | None:
    """Return whether most that made both calls, or one of them, in groups of these kinds, made the missed one first."""
    if own.peer is not None or missed.peer is not None:
        return None
    first, second = places.like(own.group), places.like(missed.group)
    votes: list[bool] = []
    for rank in first:
        if rank in second and len(votes) < MOST_WITNESSES:
            one = _called_at(standing, rank, first[rank], own)
            other = _called_at(standing, rank, second[rank], missed)
            if one and other and one != other:
                votes.append(other < one)
            elif first[rank] != own.group or second[rank] != missed.group:  # nobody whom this is about
                if one and standing.enqueued(rank, second[rank]) == missed.sequence - 1:
                    votes.append(False)
                elif other and standing.enqueued(rank, first[rank]) == own.sequence - 1:
                    votes.append(True)
    yes = sum(votes)
    return None if 2 * yes == len(votes) else 2 * yes > len(votes)


def _called_at(standing: Standing, rank: int, group: str, one: Blocked) -> int | None:
    """Return when a rank called, in a group of its own, what corresponds to an operation, by its own clock."""
    dump = standing.dumps.get(rank)
    calls = dump.calls.get(group) if dump is not None else None
    if calls is None:
        return None
    index = bisect_left(calls.sequences, one.sequence)
    if (
        index == len(calls.sequences)
        or calls.sequences[index] != one.sequence
        or calls.sequences[-1] > one.sequence + NEAR
    ):
        return None
    same = one.example.shape < 0 or standing.shapes[calls.shapes[index]].name == shape_of(standing, one).name
    return calls.created[index] if same else None


def _by_earlier_rounds(standing: Standing, rank: int, own: Blocked, missed: Blocked) -> bool | None:
    """Return whether a rank made fewer calls of the missed kind before this one than each time before."""
    dump = standing.dumps[rank]
    marks, calls = _rounds(standing, dump, own), _times(standing, dump, missed)
    if len(marks) < 3 or not all(marks) or not all(calls):
        return None
    *earlier, last = (after - before for before, after in pairwise(bisect_left(calls, mark) for mark in marks))
    if len(set(earlier)) > 1 or not earlier[0] or last > earlier[0]:
        return None
    return last < earlier[0]


def _rounds(standing: Standing, dump: RankDump, own: Blocked) -> Sequence[int]:
    """Return when a rank made the call that it waits in, and the same one before."""
    if own.peer is not None:
        return [time for time in _times(standing, dump, own) if time <= (own.example.created or 0)][-ROUNDS - 1 :]
    calls = dump.calls.get(own.group)
    if calls is None:
        return ()
    index = bisect_left(calls.sequences, own.sequence)
    if index == len(calls.sequences) or calls.sequences[index] != own.sequence:
        return ()
    shape = calls.shapes[index]
    return [calls.created[one] for one in range(index + 1) if calls.shapes[one] == shape][-ROUNDS - 1 :]


def _times(standing: Standing, dump: RankDump, one: Blocked) -> Sequence[int]:
    """Return when a rank made calls of an operation's kind: of its group, or to and from the same peer."""
    if one.peer is None:
        calls = dump.calls.get(one.group)
        return calls.created if calls is not None else ()
    direction, peer = one.peer
    if peer == dump.rank:  # what the other end waits for
        direction, peer = ("recv" if direction == "send" else "send"), one.waiting[0]
    order = sorted(standing.groups[one.group].members)
    return dump.messages.get((one.group, direction, order.index(peer)), ()) if peer in order else ()


def _by_elimination(standing: Standing, cases: Sequence[_Case]) -> list[_Case]:
    """Return those whose counterparts did as always, else those that went on to a larger group without their own.

    Of groups with the same members, the number of ranks on either side tells more.
    """
    members = {id(one): _members(standing, one) for case in cases for one in (case.own, case.missed)}
    open_cases = [c for c in cases if c.skipped is None and members[id(c.own)] != members[id(c.missed)]]
    against = {id(case): [other for other in cases if _oppose(case, other)] for case in open_cases}
    found = [
        case for case in open_cases if against[id(case)] and all(other.skipped is False for other in against[id(case)])
    ]
    if found:
        return found
    found = [case for case in open_cases if against[id(case)] and members[id(case.missed)] < members[id(case.own)]]
    waiting = {rank for case in cases for one in (case.own, case.missed) for rank in one.waiting}
    return found if 2 * len({case.rank for case in found}) < len(waiting) else []


def _oppose(case: _Case, other: _Case) -> bool:
    return case.own is other.missed and case.missed is other.own


def _members(standing: Standing, one: Blocked) -> frozenset[int]:
    return standing.groups[one.group].members if one.peer is None else frozenset((*one.waiting, one.peer[1]))


def _by_number(verdict: Verdict, standing: Standing, ones: Sequence[Blocked], named: dict[int, Culprit]) -> None:
    by_size = sorted((one for one in ones if one.missing and one.peer is None), key=lambda one: len(one.waiting))
    pairs = [
        (few, most)
        for few in by_size
        for most in reversed(by_size)
        if most.missing.intersection(few.waiting) and few.missing.intersection(most.waiting)
    ]
    few, most = max(pairs, key=lambda pair: len(pair[1].waiting) - len(pair[0].waiting), default=(ones[0], ones[0]))
    ranks = sorted({rank for one in ones for rank in one.waiting})
    if len(few.waiting) == len(most.waiting) or len(most.missing.intersection(ranks)) >= len(most.waiting):
        verdict.undecided.append(
            Open(
                f"{rank_list(ranks)} wait for each other's calls, first in {operation_name(standing, few)}",
                "their calls have different orders, and as many take one as the other",
                tuple(ranks),
            )
        )
        return
    for rank in few.waiting:
        reason = (
            f"wrong order: waits in {operation_name(standing, few)}, while {rank_list(most.waiting)} wait for it in "
            f"{operation_name(standing, most)}"
        )
        named[rank] = Culprit(rank, mismatch.ORDER, reason, shape_of(standing, few).line, shape_of(standing, most).line)
