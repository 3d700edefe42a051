"""Where every rank stands in every group, put together from the dumps of a folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tachograph.blackbox.recorder import LARGEST_RANK, SEPARATOR, Pending, Progress, RankDump, Shape

if TYPE_CHECKING:  # reading dumps takes 3 MB, which the exporter, who only shows verdicts, need not have
    from tachograph.blackbox.folder import Folder


class Known(NamedTuple):
    """The words that others than its dump say of a rank, and the line at which it stands if they know that."""

    words: str
    where: str | None


@dataclass
class Group:
    """A process group over all ranks: who is in it, and what it is for."""

    name: str
    description: str | None
    members: frozenset[int]
    exact: bool
    """Whether the dumps say who is in it; gloo's do not, and the ranks that used it are taken for its members."""
    point_to_point: bool

    @property
    def title(self) -> str:
        """Return the group as a person refers to it: `TENSOR_MODEL_PARALLEL_GROUP (37)`."""
        return f"{self.description} ({self.name})" if self.description else f"group {self.name}"


@dataclass
class Standing:
    """Ranks, their dumps and their groups."""

    dumps: Mapping[int, RankDump]
    world: frozenset[int]
    groups: Mapping[str, Group]
    shapes: list[Shape]
    known: Mapping[int, Known] = field(default_factory=dict)
    """What others than its dump say of a rank."""

    absent: frozenset[int] = field(init=False)
    """Ranks without a dump that says anything."""

    def __post_init__(self) -> None:
        self.absent = self.world - self.dumps.keys()

    def enqueued(self, rank: int, group: str) -> int | None:
        """Return the number of the last collective of a group that a rank has called; None where that is unknown."""
        dump = self.dumps.get(rank)
        if dump is None:
            return None
        progress = dump.progress.get(group)
        if progress is None or progress.enqueued is None:
            whole_ring = dump.has_done and not dump.overran
            counted = dump.has_status and not dump.unnamed_status
            known = (whole_ring or counted) and not dump.cut and not self.groups[group].point_to_point
            return 0 if known else None
        if not progress.counted:
            whole_tail = dump.has_done or group in dump.point_to_point or self._pends(dump, group)
            return progress.enqueued if whole_tail and not dump.cut else None
        if self.groups[group].point_to_point:  # the count holds point-to-point operations, the ring tells them apart
            calls = dump.calls.get(group)
            return max(calls.sequences) if calls and calls.sequences else None
        return progress.enqueued

    def _pends(self, dump: RankDump, group: str) -> bool:
        return any(one.group == group for one in dump.pending)

    def completed(self, rank: int, group: str) -> int | None:
        """Return the number of the last collective of a group that is done at a rank; None where that is unknown."""
        dump = self.dumps.get(rank)
        if dump is None or self.groups[group].point_to_point:
            return None
        progress = dump.progress.get(group)
        return None if progress is None else progress.completed

    def shape(self, one: Pending) -> Shape:
        """Return name, sizes and line of an operation."""
        return self.shapes[one.shape]


def stand(folder: Folder, world_size: int | None = None, known: Mapping[int, Known] | None = None) -> Standing:
    """Return where the ranks of a folder stand; `known` is what others say of them."""
    dumps = folder.ranks
    _settle_names(dumps.values())
    members: defaultdict[str, set[int]] = defaultdict(set)
    exact: set[str] = set()
    described: dict[str, str] = {}
    point_to_point: set[str] = set()
    for dump in dumps.values():
        for name, ranks in dump.members.items():
            members[name].update(ranks)
            exact.add(name)
        for name in (*dump.progress, *dump.calls):
            members[name].add(dump.rank)
        for one in dump.pending:
            members[one.group].add(dump.rank)
        described.update(dump.described)
        point_to_point |= dump.point_to_point
    world = _world(dumps, members, folder, world_size)
    groups = {}
    for name, present in members.items():
        is_default = name not in exact and (described.get(name) == "default_pg" or name.partition(",")[0] == "0")
        description = described.get(name)
        groups[name] = Group(
            name,
            description,
            world if is_default else frozenset(present),
            name in exact or is_default,
            name in point_to_point or bool(description and description.upper().startswith("PIPELINE")),
        )
    return Standing(dumps, world, groups, folder.shapes.known, known or {})


def _world(
    dumps: Mapping[int, RankDump], members: Mapping[str, set[int]], folder: Folder, world_size: int | None
) -> frozenset[int]:
    known = set(dumps) | folder.unreadable | folder.stale.keys()
    for ranks in members.values():
        known |= ranks
    sizes = [dump.world_size for dump in dumps.values() if dump.world_size]
    size = max([world_size or 0, *sizes, max(known, default=-1) + 1])
    return frozenset(range(min(size, LARGEST_RANK)))


def _settle_names(dumps: Iterable[RankDump]) -> None:
    """Give each group one name: with the backend where it has two, and with a rank where two groups have one name."""
    kept = list(dumps)
    backends: defaultdict[str, set[str]] = defaultdict(set)
    seen: defaultdict[str, set[tuple[int, ...]]] = defaultdict(set)
    for dump in kept:
        for key in (*dump.progress, *dump.calls, *(one.group for one in dump.pending)):
            name, _, backend = key.partition(SEPARATOR)
            if backend:
                backends[name].add(backend)
        for name, members in dump.members.items():
            seen[name].add(members)
    for dump in kept:
        _rename(dump, backends, {name for name in dump.members if len(seen[name]) > 1})


def _rename(dump: RankDump, backends: Mapping[str, set[str]], twice: set[str]) -> None:
    def new(key: str) -> str:
        name, _, backend = key.partition(SEPARATOR)
        own = f"{name} of rank {dump.members[name][0]}" if name in twice else name
        return f"{own}, {backend or 'unknown'}" if len(backends.get(name, ())) > 1 else own

    calls = {one.group for one in dump.pending} | dump.calls.keys() | dump.progress.keys() | dump.point_to_point
    names = {key: new(key) for key in sorted(calls | dump.members.keys())}
    described, members = {}, {}
    for key, name in names.items():
        base = key.partition(SEPARATOR)[0]
        if base in dump.described:
            described[name] = dump.described[base]
        if base in dump.members and (key in calls or name == base):
            members[name] = dump.members[base]
    progress: dict[str, Progress] = {}
    for key, one in dump.progress.items():
        into = progress.setdefault(names[key], one)
        if into is not one:
            _join(into, one)
    dump.described, dump.members, dump.progress = described, members, progress
    dump.calls = {names[key]: one for key, one in dump.calls.items()}
    dump.point_to_point = {names[key] for key in dump.point_to_point}
    dump.messages = {(names[key], way, peer): times for (key, way, peer), times in dump.messages.items()}
    for pending in dump.pending:
        pending.group = names[pending.group]


def _join(into: Progress, other: Progress) -> None:
    if other.enqueued is not None:
        into.enqueued = max(into.enqueued or 0, other.enqueued)
    if other.completed is not None and (other.counted or into.completed is None):
        into.completed = other.completed
    into.counted |= other.counted
