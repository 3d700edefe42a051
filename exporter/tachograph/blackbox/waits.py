"""Who waits for whom: from the operations that are pending to the ranks that hold them up.

An operation that is pending waits for the members that have not called it; where all have, for the members at which it
is not done either. Whoever is waited for and waits for nobody holds up the rest: a single rank that way is stuck on its
own, a ring of ranks that have all called the same operation is held up by something between them. In a ring in which
some calls are missing, the ranks that miss no other's are stuck: what is pending at them the others have called.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tachograph.blackbox.recorder import Pending
from tachograph.blackbox.standing import Standing

NO_SHAPE = -1
"""Of an operation that only counts tell of."""


@dataclass
class Blocked:
    """One operation that is not done: the first pending one of its group at some of its members."""

    group: str
    sequence: int
    example: Pending
    waiting: list[int] = field(default_factory=list)
    missing: frozenset[int] = frozenset()
    """Members that have not called it."""
    unknown: frozenset[int] = frozenset()
    """Members of which nothing says whether they have."""
    not_started: frozenset[int] = frozenset()
    """Members whose GPU has not begun it while others' have."""
    since: int | None = None
    peer: tuple[str, int] | None = None

    @property
    def is_counted(self) -> bool:
        """Return whether only the counts of its group tell of it."""
        return self.example.shape == NO_SHAPE

    @property
    def all_called(self) -> bool:
        """Return whether every member is known to have called it."""
        return not self.missing and not self.unknown


def blocked(standing: Standing) -> list[Blocked]:
    """Return the operations that hold ranks up, the oldest first."""
    started: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    found = _pending(standing, started)
    raised = _raised(standing)
    for last in raised:
        if (operation := found.setdefault((last.group, last.sequence), last)) is not last:
            operation.waiting += last.waiting
    recorded = {name for name, _ in found}
    found |= {(one.group, one.sequence): one for one in _by_counts(standing) if one.group not in recorded}
    for key, operation in found.items():
        _complete(standing, operation, started[key])
    for last in raised:  # where all have called it, it is not what the rank was waiting for
        if last.all_called and found[last.group, last.sequence] is last:
            del found[last.group, last.sequence]
    alone = _point_to_point(standing)
    return sorted((*found.values(), *alone), key=lambda one: (one.since is None, one.since or 0, one.group))


def _pending(standing: Standing, started: defaultdict[tuple[str, int], set[int]]) -> dict[tuple[str, int], Blocked]:
    """Return the first operation pending of each group at each rank; add whose GPU has begun it to `started`."""
    found: dict[tuple[str, int], Blocked] = {}
    for rank, dump in standing.dumps.items():
        first: dict[str, Pending] = {}
        for one in dump.pending:
            if one.peer is None and (one.group not in first or one.sequence < first[one.group].sequence):
                first[one.group] = one
        for name, progress in dump.progress.items():
            if name in first or standing.groups[name].point_to_point or dump.has_done or dump.calls:
                continue
            if progress.counted and progress.completed is not None and (progress.enqueued or 0) > progress.completed:
                first[name] = Pending(name, progress.completed + 1, NO_SHAPE, None, False)
        for one in first.values():
            operation = found.setdefault((one.group, one.sequence), Blocked(one.group, one.sequence, one))
            if operation.example.shape < 0 <= one.shape:
                operation.example = one
            operation.waiting.append(rank)
            if one.created and (operation.since is None or one.created < operation.since):
                operation.since = one.created
            if one.started:
                started[one.group, one.sequence].add(rank)
    return found


def _raised(standing: Standing) -> list[Blocked]:
    """Return the last calls of ranks in which a collective raised, and nothing is pending: gloo counts it as done."""
    found: dict[tuple[str, int], Blocked] = {}
    for rank, dump in standing.dumps.items():
        if not dump.failed_in_collective or dump.pending:
            continue
        last = max(((calls.created[-1], name) for name, calls in dump.calls.items() if calls.created), default=None)
        if last is None:
            continue
        created, name = last
        calls = dump.calls[name]
        one = Pending(name, calls.sequences[-1], calls.shapes[-1], created or None, False)
        operation = found.setdefault((name, one.sequence), Blocked(name, one.sequence, one, since=one.created))
        operation.waiting.append(rank)
    return list(found.values())


def _by_counts(standing: Standing) -> list[Blocked]:
    """Return operations of groups of which no recorder holds an entry, and the boxes how many calls each rank has made.

    Who has made the most and stands still waits in the last one, if another has not made it or has left no box.
    """
    found = []
    for name, group in standing.groups.items():
        dumps = [standing.dumps[rank] for rank in group.members if rank in standing.dumps]
        counts = {dump.rank: one for dump in dumps if (one := dump.progress.get(name)) is not None}
        if any(name in dump.calls for dump in dumps) or any(one.completed is not None for one in counts.values()):
            continue
        most = max((one.enqueued or 0 for one in counts.values() if one.counted), default=0)
        ahead = [rank for rank, one in counts.items() if one.enqueued == most]
        waiting = [rank for rank in ahead if standing.dumps[rank].is_held_up]
        if most and waiting and (len(ahead) < len(counts) or group.members & standing.absent):
            found.append(Blocked(name, most, Pending(name, most, NO_SHAPE, None, False), waiting))
    return found


def _complete(standing: Standing, operation: Blocked, started: set[int]) -> None:
    members = standing.groups[operation.group].members
    calls = {rank: standing.enqueued(rank, operation.group) for rank in members}
    operation.missing = frozenset(
        rank for rank, last in calls.items() if last is not None and last < operation.sequence
    )
    operation.unknown = frozenset(
        rank for rank, last in calls.items() if last is None and rank not in operation.waiting
    )
    if operation.all_called and len(operation.waiting) <= 2 * len(started):
        operation.not_started = frozenset(set(operation.waiting) - started)


def _point_to_point(standing: Standing) -> list[Blocked]:
    """Return sends and receives that the peer has not met: more on one side than on the other."""
    order = {name: sorted(group.members) for name, group in standing.groups.items() if group.point_to_point}
    ends: dict[tuple[str, int, int, str], list[Pending]] = defaultdict(list)
    for rank, dump in standing.dumps.items():
        for one in dump.pending:
            ranks = order.get(one.group, [])
            if one.peer is None or not 0 <= one.peer[1] < len(ranks):
                continue
            direction, peer = one.peer[0], ranks[one.peer[1]]
            sender, receiver = (rank, peer) if direction == "send" else (peer, rank)
            ends[one.group, sender, receiver, direction].append(one)
    found = []
    for (group, sender, receiver, direction), ones in ends.items():
        other = ends.get((group, sender, receiver, "recv" if direction == "send" else "send"), [])
        rank, peer = (sender, receiver) if direction == "send" else (receiver, sender)
        example = ones[min(len(other), len(ones) - 1)]
        operation = Blocked(group, example.sequence, example, [rank], since=example.created, peer=(direction, peer))
        if peer not in standing.dumps or standing.dumps[peer].cut:
            operation.unknown = frozenset((peer,))
        elif len(ones) > len(other):
            operation.missing = frozenset((peer,))
        found.append(operation)
    return found


@dataclass
class Roots:
    """Where the chain of waits ends."""

    stuck: dict[int, list[Blocked]] = field(default_factory=dict)
    """Ranks that hold up others and wait for no call of another, with what they are missed in."""
    absent: dict[int, list[Blocked]] = field(default_factory=dict)
    """Ranks without a dump that are waited for."""
    explained: set[int] = field(default_factory=set)
    """Ranks whose waiting ends at a rank that is stuck or whose GPU is behind."""
    rings: list[tuple[frozenset[int], list[Blocked]]] = field(default_factory=list)
    """Ranks that wait for each other, with the operations between them."""


def roots(standing: Standing, operations: Iterable[Blocked], behind: Mapping[int, object]) -> Roots:
    """Return where the chain of waits ends; ranks whose GPU is behind wait for nobody but themselves."""
    operations = list(operations)
    of_rank: defaultdict[int, list[int]] = defaultdict(list)
    for index, operation in enumerate(operations):
        for rank in operation.waiting:
            if rank not in behind and rank not in operation.not_started:
                of_rank[rank].append(index)
    held = [_held_up_by(standing, operation) for operation in operations]
    component = _components(len(operations), of_rank, held)
    result = Roots()
    missed: defaultdict[int, list[Blocked]] = defaultdict(list)
    for operation in operations:
        for rank in operation.missing | operation.not_started:
            missed[rank].append(operation)
    for rank, ones in missed.items():
        if rank not in of_rank and rank in standing.dumps:
            result.stuck[rank] = ones
    _absent(operations, standing.absent, result)
    for indexes in component:
        if all(other in indexes for index in indexes for rank in held[index] for other in of_rank.get(rank, ())):
            ones = [operations[index] for index in sorted(indexes)]
            outside = {rank for index in indexes for rank in held[index] if rank not in of_rank}
            if not outside and not any(one.unknown for one in ones):
                _add_ring(standing, ones, missed, result)
    for indexes in component:
        _add_beside(operations, indexes, of_rank, result, missed)
    result.explained = _reaching(result.stuck.keys() | behind.keys(), operations, held)
    return result


def _add_ring(standing: Standing, ones: list[Blocked], missed: Mapping[int, list[Blocked]], result: Roots) -> None:
    """Add ranks that wait for each other; of these, the ones that others miss and that miss nobody are stuck."""
    missing = frozenset[int]().union(*(one.missing for one in ones))
    missing_others = {rank for one in ones if one.missing for rank in one.waiting}
    if stuck := (missing & standing.dumps.keys()) - missing_others:
        result.stuck.update({rank: missed[rank] for rank in stuck})
    else:
        result.rings.append((frozenset(rank for one in ones for rank in one.waiting), ones))


def _add_beside(
    operations: list[Blocked],
    indexes: frozenset[int],
    of_rank: Mapping[int, list[int]],
    result: Roots,
    missed: Mapping[int, list[Blocked]],
) -> None:
    """Add ranks that are missed together with a stuck one, miss nobody, and wait for what waits for them alone."""
    ones = [operations[index] for index in indexes]
    together = [one for one in ones if one.missing & result.stuck.keys()]
    for rank in frozenset[int]().union(*(one.missing for one in together)) - result.stuck.keys():
        own = of_rank.get(rank, ())
        if own and indexes.issuperset(own) and not any(operations[index].missing for index in own):
            result.stuck[rank] = missed[rank]


def _held_up_by(standing: Standing, operation: Blocked) -> frozenset[int]:
    if operation.missing:
        return operation.missing
    if operation.unknown:
        return frozenset()
    if operation.not_started:
        return operation.not_started
    if operation.peer is not None:
        return frozenset((operation.peer[1],))
    late = set()
    for rank in standing.groups[operation.group].members:
        done = standing.completed(rank, operation.group)
        if rank in operation.waiting or (done is not None and done < operation.sequence):
            late.add(rank)
    return frozenset(late)


def _reaching(ends: Iterable[int], operations: list[Blocked], held: list[frozenset[int]]) -> set[int]:
    """Return the ranks whose chain of waits ends at one of these."""
    by_holder: defaultdict[int, list[int]] = defaultdict(list)
    for index, ranks in enumerate(held):
        for rank in ranks:
            by_holder[rank].append(index)
    found = set(ends)
    todo = list(found)
    seen: set[int] = set()
    while todo:
        for index in by_holder.get(todo.pop(), ()):
            if index not in seen:
                seen.add(index)
                new = set(operations[index].waiting) - found
                found |= new
                todo += new
    return found


def _absent(operations: Iterable[Blocked], absent: frozenset[int], result: Roots) -> None:
    """Find the fewest ranks without a dump that explain what no other rank does."""
    open_ones = sorted((one for one in operations if not one.missing and one.unknown), key=lambda one: len(one.unknown))
    for one in open_ones:
        without = one.unknown & absent
        chosen = without & result.absent.keys() or without
        for rank in chosen:
            result.absent.setdefault(rank, []).append(one)


def _components(count: int, of_rank: Mapping[int, list[int]], held: list[frozenset[int]]) -> list[frozenset[int]]:
    """Return the strongly connected components of operations (Tarjan, without recursion).

    An operation leads to the operations in which the ranks that hold it up wait themselves. Ranks are nodes of their
    own, numbered after the operations, so that a thousand ranks that wait for a thousand others are no million edges.
    """
    number_of = {rank: count + position for position, rank in enumerate(sorted(of_rank))}
    edges: list[list[int]] = [[number_of[rank] for rank in ranks if rank in number_of] for ranks in held]
    edges += [of_rank[rank] for rank in sorted(of_rank)]
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    place: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    found: list[frozenset[int]] = []
    for start in range(count):
        if start in index:
            continue
        work = [(start, 0)]
        while work:
            node, at = work.pop()
            if at == 0:
                index[node] = low[node] = len(index)
                place[node] = len(stack)
                stack.append(node)
                on_stack.add(node)
            descend = False
            for position in range(at, len(edges[node])):
                target = edges[node][position]
                if target not in index:
                    work += [(node, position + 1), (target, 0)]
                    descend = True
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            if descend:
                continue
            if low[node] == index[node]:
                members = stack[place[node] :]
                del stack[place[node] :]
                on_stack.difference_update(members)
                found.append(frozenset(one for one in members if one < count))
            if work:
                parent = work[-1][0]
                low[parent] = min(low[parent], low[node])
    return [one for one in found if one]
