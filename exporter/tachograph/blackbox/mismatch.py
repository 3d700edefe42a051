"""Finds the first operation of a group in which its members do not agree, and what one of them did instead."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tachograph.blackbox.recorder import Calls, Shape
from tachograph.blackbox.standing import Standing

SKIPPED, ORDER, EXTRA, TYPE, SIZE, DTYPE = (
    "skipped_collective", "wrong_order", "extra_collective", "type_mismatch", "size_mismatch", "dtype_mismatch"
)  # fmt: skip

LEAST_SHIFTED = 2
"""Calls that must agree once shifted by one before lines of code alone say that one was skipped."""

LONGEST_ROUND = 500
"""Calls of a step, or a few, in which a repetition is looked for."""

CONTEXT = 8
"""Calls before one that must have come before the same one earlier; fewer where so many never did."""


@dataclass
class Mismatch:
    """One operation in which members disagree: what most called, and who called what else."""

    group: str
    sequence: int
    kind: str
    expected: Shape
    called: Shape
    ranks: list[int]
    others: list[int]
    decided: bool
    """Whether a majority, or groups of the same kind, say who is wrong."""
    blocks: bool = field(default=True)
    """Whether the group ends there; members that went on long after it did not hang of it."""


@dataclass
class _Class:
    """Members of a group with the same calls."""

    ranks: list[int]
    calls: dict[int, int]


def mismatches(standing: Standing) -> list[Mismatch]:
    """Return the first disagreement of each group in which there is one."""
    found = []
    classes = {name: _classes(standing, name) for name in standing.groups}
    for name, ones in classes.items():
        if len(ones) > 1 and (one := _first(standing, name, ones)) is not None:
            found.append(one)
    return [_settled(standing, one, classes) for one in found]


def _classes(standing: Standing, name: str) -> list[_Class]:
    by_content: dict[tuple[bytes, bytes], _Class] = {}
    for rank in sorted(standing.groups[name].members & standing.dumps.keys()):
        calls = standing.dumps[rank].calls.get(name)
        if calls is None:
            continue
        content = calls.sequences.tobytes(), calls.shapes.tobytes()
        if content in by_content:
            by_content[content].ranks.append(rank)
        else:
            by_content[content] = _Class([rank], _single(calls))
    return list(by_content.values())


def _single(calls: Calls) -> dict[int, int]:
    """Return shapes by number; a number that several entries share is a coalesced group, which is left out."""
    once = dict(zip(calls.sequences, calls.shapes, strict=True))
    if len(once) < len(calls.sequences):
        for number, times in Counter(calls.sequences).items():
            if times > 1:
                del once[number]
    return once


def _first(standing: Standing, name: str, classes: Sequence[_Class]) -> Mismatch | None:
    shapes = standing.shapes
    numbers = sorted(set[int]().union(*(one.calls for one in classes)))
    for number in numbers:
        votes: defaultdict[tuple[object, ...], list[_Class]] = defaultdict(list)
        lines: defaultdict[int, list[_Class]] = defaultdict(list)
        for one in classes:
            shape = one.calls.get(number)
            if shape is not None:
                votes[_agreed(shapes[shape])].append(one)
                lines[shape].append(one)
        by = votes if len(votes) > 1 else lines if len(lines) > 1 else None
        if by is None:
            continue
        camps = sorted(by.values(), key=lambda camp: -sum(len(one.ranks) for one in camp))
        size = [sum(len(one.ranks) for one in camp) for camp in camps]
        most, odd = camps[0][0], camps[-1][0]
        expected, called = shapes[most.calls[number]], shapes[odd.calls[number]]
        if len(votes) == 1:
            kind = SKIPPED if _shifted(odd.calls, most.calls, number) else None
        else:
            kind = _kind(shapes, odd.calls, most.calls, number)
        if kind is None:
            continue
        wrong = [rank for camp in camps[1:] for one in camp for rank in one.ranks]
        right = [rank for one in camps[0] for rank in one.ranks]
        return Mismatch(name, number, kind, expected, called, sorted(wrong), sorted(right), size[0] > sum(size[1:]))
    return None


def _agreed(shape: Shape) -> tuple[object, ...]:
    """Return what members must agree on; the number of elements counts, not how a tensor is shaped."""
    inputs, outputs = sum(map(math.prod, shape.inputs)), sum(map(math.prod, shape.outputs))
    return shape.name, () if shape.name == "barrier" else shape.dtypes[:1], inputs, outputs


def _kind(shapes: Sequence[Shape], odd: Mapping[int, int], most: Mapping[int, int], number: int) -> str:
    mine, theirs = _agreed(shapes[odd[number]]), _agreed(shapes[most[number]])

    def mine_at(offset: int) -> tuple[object, ...] | None:
        return _agreed(shapes[odd[number + offset]]) if number + offset in odd else None

    def theirs_at(offset: int) -> tuple[object, ...] | None:
        return _agreed(shapes[most[number + offset]]) if number + offset in most else None

    if mine == theirs_at(1):
        return ORDER if mine_at(1) == theirs else SKIPPED
    if mine_at(1) == theirs:
        return EXTRA
    if _followed_before(shapes, most, number, mine):
        return SKIPPED
    if mine[0] == theirs[0]:
        return DTYPE if mine[1] != theirs[1] else SIZE
    return TYPE


def _followed_before(shapes: Sequence[Shape], most: Mapping[int, int], number: int, mine: tuple[object, ...]) -> bool:
    """Return whether, in earlier rounds, what this rank calls came right after what the others call now."""
    return any(
        most[one] == most[number] and one + 1 in most and _agreed(shapes[most[one + 1]]) == mine
        for one in most
        if one < number
    )


def _shifted(odd: Mapping[int, int], most: Mapping[int, int], number: int) -> bool:
    """Return whether one rank's calls are the others', one later, from here to its end, line by line."""
    later = [one for one in odd if one >= number]
    same = sum(1 for one in later if odd[one] == most.get(one))
    shifted = [one for one in later if one + 1 in most]
    agree = sum(1 for one in shifted if odd[one] == most[one + 1])
    return len(shifted) >= LEAST_SHIFTED and agree == len(shifted) and same < agree


def _settled(standing: Standing, one: Mismatch, classes: Mapping[str, list[_Class]]) -> Mismatch:
    """Say who is wrong where half stands against half, and whether the group ended there."""
    last = max((standing.enqueued(rank, one.group) or 0 for rank in (*one.ranks, *one.others)), default=0)
    stopped = any(
        pending.group == one.group and pending.peer is None and pending.sequence <= max(one.sequence + 1, last)
        for rank in (*one.ranks, *one.others)
        for pending in standing.dumps[rank].pending
    )
    one.blocks = stopped or last <= one.sequence + 1
    if one.decided:
        return one
    group = standing.groups[one.group]
    votes: Counter[tuple[object, ...]] = Counter()
    for name, ones in classes.items():
        other = standing.groups[name]
        if name != one.group and group.description and other.description == group.description:
            votes.update(
                _agreed(standing.shapes[each.calls[one.sequence]]) for each in ones if one.sequence in each.calls
            )
    mine, theirs = votes[_agreed(one.called)], votes[_agreed(one.expected)]
    before = _single(standing.dumps[one.ranks[0]].calls[one.group])
    if mine == theirs and (usual := _usual(before, one.sequence)) is not None:
        shape = _agreed(standing.shapes[usual])
        mine, theirs = int(shape == _agreed(one.called)), int(shape == _agreed(one.expected))
    if mine > theirs:
        one.ranks, one.others = one.others, one.ranks
        one.expected, one.called = one.called, one.expected
        most = _single(standing.dumps[one.others[0]].calls[one.group])
        odd = _single(standing.dumps[one.ranks[0]].calls[one.group])
        one.kind = _kind(standing.shapes, odd, most, one.sequence)
    one.decided = mine != theirs
    return one


def is_from_elsewhere(standing: Standing, one: Mismatch) -> bool:
    """Return whether each that is wrong has made such a call before, and never from this line."""
    for rank in one.ranks:
        calls = _single(standing.dumps[rank].calls[one.group])
        before = [standing.shapes[shape] for number, shape in calls.items() if number < one.sequence]
        own = standing.shapes[calls[one.sequence]]
        alike = [shape.line for shape in before if shape._replace(line=own.line) == own]
        if own.line is None or not alike or own.line in alike:
            return False
    return True


def _usual(calls: Mapping[int, int], number: int) -> int | None:
    """Return the shape that came in earlier rounds after the same calls as now; None where nothing repeats."""
    before = [calls[one] for one in range(number - LONGEST_ROUND, number) if one in calls]
    for length in range(min(CONTEXT, len(before) - 1), 0, -1):
        context = before[-length:]
        for start in range(len(before) - length - 1, -1, -1):
            if before[start : start + length] == context:
                return before[start + length]
    return None
