"""One rank's Flight Recorder: its groups, how far each has come, and the operations in it.

Read by which keys are there, not by version: PyTorch 2.4 to 2.15, pickles and JSON, of NCCL (`nccl`, `nccl2`) and gloo.
JSON writes counters as texts, and a time that is missing as 0.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tachograph.catalog.rank import PAUSES
from tachograph.wire import BOX_REQUESTS

SEPARATOR = "\0"
"""Between a group's name and its backend: a group of two has a count for each, and a recorder."""

UNDEFINED = frozenset(("", "undefined"))
"""Descriptions of a group that say nothing."""

COMMUNICATION = "collective"
"""The category of a failure that a rank has because another one is gone or stuck."""

FAILED = "failed: "
"""Beginning of the reason of a box of a failure; any other, but BOX_REQUESTS, is that the rank went no further."""

STILL_SECONDS = 60.0
"""In one phase: so long no step takes."""

OVERDUE_SECONDS, OVERDUE_STEPS = 10.0, 3
"""A step is overdue after so long and so many usual ones, as for a rank that makes a box by itself."""

P2P_NAME = ("send", "recv")
INPUTS, OUTPUTS = "inputs", "outputs"
OWN_SIZES = {
    "all_to_all": (), "alltoall": (), "all_to_all_base": (), "alltoall_base": (), "coalesced": (), "barrier": (),
    "all_gather": (OUTPUTS,), "allgather": (OUTPUTS,), "scatter": (OUTPUTS,),
    "reduce_scatter": (INPUTS,), "gather": (INPUTS,), "reduce": (INPUTS,),
}  # fmt: skip
"""Sizes that must be equal on all ranks, of the operations where each rank has a part of its own; else both must be."""

LARGEST_RANK = 1 << 20
_LARGEST = 1 << 62


class Shape(NamedTuple):
    """The sizes and types that members of a group must agree on, and the line of the user's code that called it."""

    name: str
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    line: str | None


class Named(NamedTuple):
    """The parts of an operation's name, as in `nccl:send 0->1`."""

    backend: str
    name: str
    point_to_point: bool
    peer: tuple[str, int] | None


_Key = tuple[str, tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...], tuple[str, ...]]


class Shapes:
    """Numbers the shapes of a folder's operations: each is kept once."""

    MOST_KEPT = 50_000

    def __init__(self) -> None:
        self._numbers: dict[Shape, int] = {}
        self._seen: dict[_Key, tuple[Named, Shape]] = {}
        self._with_line: dict[tuple[_Key, str | None], int] = {}
        self.known: list[Shape] = []

    def number(self, entry: Mapping[object, object], full_name: str, line: str | None) -> tuple[Named, int]:
        """Return what an entry's name says, and the number of its shape; equal entries are taken apart once."""
        inputs, outputs = _sizes(entry.get("input_sizes")), _sizes(entry.get("output_sizes"))
        dtypes = (*_texts(entry.get("input_dtypes")), *_texts(entry.get("output_dtypes")))
        key = full_name, inputs, outputs, dtypes
        found = self._seen.get(key)
        if found is None:
            named = _named(full_name)
            equal = () if "coalesced" in named.name else OWN_SIZES.get(named.name, (INPUTS, OUTPUTS))
            shape = Shape(
                named.name, inputs if INPUTS in equal else (), outputs if OUTPUTS in equal else (), dtypes, None
            )
            if len(self._seen) >= self.MOST_KEPT:
                self._seen.clear()
                self._with_line.clear()
            found = self._seen[key] = (named, shape)
        number = self._with_line.get((key, line))
        if number is None:
            number = self._with_line[key, line] = self._of(found[1]._replace(line=line))
        return found[0], number

    def numbers_of(self, others: Iterable[Shape]) -> list[int]:
        """Return the number here of each shape that another process has numbered."""
        return [self._of(shape) for shape in others]

    def _of(self, shape: Shape) -> int:
        number = self._numbers.get(shape)
        if number is None:
            number = self._numbers[shape] = len(self.known)
            self.known.append(shape)
        return number


@dataclass(slots=True)
class Pending:
    """An operation that a rank has called and that is not done."""

    group: str
    sequence: int
    shape: int
    created: int | None
    started: bool
    peer: tuple[str, int] | None = None
    """Of a point-to-point operation: send or recv, and the peer's number within the group."""


@dataclass(slots=True)
class Calls:
    """The collectives of one group in a rank's ring, in the order of their calls."""

    sequences: array[int] = field(default_factory=lambda: array("q"))
    shapes: array[int] = field(default_factory=lambda: array("l"))
    created: array[int] = field(default_factory=lambda: array("q"))
    waited: array[int] = field(default_factory=lambda: array("q"))
    """Nanoseconds from call to completion, by the rank's own clock; -1 where the recorder does not have it."""


@dataclass(slots=True)
class Progress:
    """How far a rank has come in one group; None where that is unknown."""

    enqueued: int | None = None
    completed: int | None = None
    counted: bool = False
    """Whether a status says so; else the entries of the ring alone."""


@dataclass
class RankDump:
    """All that is known of one rank of one attempt."""

    rank: int
    files: list[str] = field(default_factory=list)
    backends: set[str] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    described: dict[str, str] = field(default_factory=dict)
    progress: dict[str, Progress] = field(default_factory=dict)
    calls: dict[str, Calls] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)
    point_to_point: set[str] = field(default_factory=set)
    messages: dict[tuple[str, str, int], array[int]] = field(default_factory=dict)
    """When sends and receives were called, by group, direction and the peer's number within the group."""
    newest: int = 0
    oldest: int = 0
    last_line: str | None = None
    where: str | None = None
    """The line at which the rank's own code stands, where a stack was recorded with the dump."""
    failed_in_collective: bool = False
    """Whether its box says that a collective raised, as where a peer is gone: it was waiting for others."""
    raised: str = ""
    """The exception that its box has, by type and first line."""

    written: float = 0.0
    cut: bool = False
    world_size: int | None = None
    run: str = ""
    reason: str = ""
    """Why a box of ours was made, empty for a dump."""

    phase: str = ""
    phase_seconds: float | None = None
    idle_seconds: float | None = None
    """Since its last step, by its box."""

    usual_step: float = 0.0
    """Seconds of its last steps, the median."""

    configured: set[str] = field(default_factory=set)
    """Backends of its groups by its box, recorded or not."""

    unnamed_status: bool = False
    has_status: bool = False
    has_done: bool = False
    """Whether the ring holds operations that are done; a dump of the active ones alone does not."""
    overran: bool = False

    @property
    def failure(self) -> str:
        """Return the category of the failure of which a box was made, empty where it was made of something else."""
        return self.reason.removeprefix(FAILED) if self.reason.startswith(FAILED) else ""

    @property
    def stands_still(self) -> bool:
        """Return whether a box was made because the rank went no further, or says that of one that was asked."""
        if self.reason.startswith(BOX_REQUESTS):
            overdue = (self.idle_seconds or 0.0) >= OVERDUE_SECONDS + OVERDUE_STEPS * self.usual_step
            return (self.phase_seconds or 0.0) >= STILL_SECONDS or (overdue and self.phase not in PAUSES)
        return bool(self.reason) and not self.failure

    @property
    def is_held_up(self) -> bool:
        """Return whether its box says that it stands still, or that a collective raised in it."""
        return self.stands_still or self.failed_in_collective


def add_recorder(
    dump: RankDump, recorder: Mapping[object, object], shapes: Shapes, lines: UserLines, most: int = 1 << 30
) -> None:
    """Add what one recorder of a rank holds; of operations that are done, the newest only, at most so many."""
    version = recorder.get("version")
    if isinstance(version, str):
        dump.versions.add(version)
    names: dict[int, str] = {}
    entries = recorder.get("entries")
    if not isinstance(entries, list):
        entries = []
    first = entries[0] if entries else None
    old = len(entries) - most
    dump.overran |= old > 0 or (isinstance(first, dict) and bool(whole(first.get("record_id"))))
    for index, entry in enumerate(entries):
        if isinstance(entry, dict) and (index >= old or entry.get("retired") is not True):
            _add_entry(dump, entry, shapes, lines, names)
    _add_groups(dump, recorder.get("pg_config"))
    _add_status(dump, recorder.get("pg_status"), recorder.get("pg_config"), names)
    _complete_progress(dump)


def _add_entry(
    dump: RankDump, entry: Mapping[object, object], shapes: Shapes, lines: UserLines, names: dict[int, str]
) -> None:
    named = entry.get("process_group")
    full_name = entry.get("profiling_name")
    if not isinstance(named, (list, tuple)) or not named or not isinstance(full_name, str):
        return
    group = _name(named[0]) + SEPARATOR + full_name[:200].rpartition(":")[0]
    number = whole(entry.get("pg_id"))
    if number is not None:
        names[number] = group
    if len(named) > 1 and isinstance(named[1], str) and named[1] not in UNDEFINED:
        dump.described.setdefault(group.partition(SEPARATOR)[0], named[1])
    sequence = whole(entry.get("collective_seq_id"))
    if sequence is None:
        sequence = whole(entry.get("seq_id"))  # PyTorch before 2.4
    created = _time(entry.get("time_created_ns"))
    started = _time(entry.get("time_discovered_started_ns"))
    completed = _time(entry.get("time_discovered_completed_ns"))
    state = entry.get("state")
    done = entry.get("retired") is True or state == "completed" or completed is not None
    if created is not None:
        dump.newest = max(dump.newest, created, completed or 0)
        dump.oldest = min(dump.oldest or created, created)
    line = lines.line(entry.get("frames"))
    dump.last_line = line or dump.last_line
    dump.has_done |= done
    operation, shape = shapes.number(entry, full_name, line)
    if operation.backend:
        dump.backends.add(operation.backend)
    if entry.get("is_p2p") is True or operation.point_to_point:
        dump.point_to_point.add(group)
        if operation.peer is not None:
            dump.messages.setdefault((group, *operation.peer), array("q")).append(created or 0)
        if not done:
            one = Pending(group, sequence or 0, shape, created, started is not None, operation.peer)
            dump.pending.append(one)
    elif sequence is not None and not (operation.name == "coalesced" and whole(entry.get("p2p_seq_id"))):
        calls = dump.calls.setdefault(group, Calls())
        calls.sequences.append(sequence)
        calls.shapes.append(shape)
        calls.created.append(created or 0)
        calls.waited.append(_waited(entry, created, completed))
        if not done:
            dump.pending.append(Pending(group, sequence, shape, created, state == "started" or started is not None))
    if sequence is not None:
        progress = dump.progress.setdefault(group, Progress())
        progress.enqueued = max(progress.enqueued or 0, sequence)


def _add_groups(dump: RankDump, config: object) -> None:
    for key, group in config.items() if isinstance(config, dict) else ():
        if not isinstance(group, dict):
            continue
        name = _name(group.get("name", key))
        members = member_ranks(group.get("ranks"))
        if name and members:
            dump.members[name] = members
        description = group.get("desc")
        if name and isinstance(description, str) and description not in UNDEFINED:
            dump.described[name] = description


def _add_status(dump: RankDump, status: object, config: object, names: Mapping[int, str]) -> None:
    """Add how far each group has come. The status has the rank's own numbers of groups, the configuration names.

    Entries say which number is which name. For the other groups both are in the order of their creation: with as many
    numbers as names, and no entry that contradicts, the n-th number is the n-th name.
    """
    if not isinstance(status, dict) or not status:
        return
    dump.has_status = True
    counted = {number: one for key, one in status.items() if (number := whole(key)) is not None}
    configured = [whole(key) for key in config] if isinstance(config, dict) else []
    by_order: dict[int, str] = {}
    if configured and len(configured) == len(counted) and None not in configured:
        ordered = sorted(one for one in configured if one is not None)
        by_order = {number: f"{name}{SEPARATOR}" for number, name in zip(sorted(counted), ordered, strict=True)}
        if any(by_order.get(number) != name.partition(SEPARATOR)[0] + SEPARATOR for number, name in names.items()):
            by_order = {}
    for number, one in counted.items():
        name = names.get(number) or by_order.get(number)
        if name is None:
            dump.unnamed_status = True
            continue
        if not isinstance(one, dict):
            continue
        progress = dump.progress.setdefault(name, Progress())
        enqueued, completed = whole(one.get("last_enqueued_collective")), whole(one.get("last_completed_collective"))
        if name in dump.point_to_point:
            continue  # point-to-point operations count as well here, each rank its own
        if enqueued is not None and enqueued >= 0:
            progress.enqueued = max(progress.enqueued or 0, enqueued)
        if completed is not None:
            progress.completed = max(completed, 0)
        progress.counted = True


def _complete_progress(dump: RankDump) -> None:
    """Tell from the ring what is done where no status says it: all before the first that is pending."""
    first: dict[str, int] = {}
    for one in dump.pending:
        if one.peer is None:
            first[one.group] = min(first.get(one.group, one.sequence), one.sequence)
    for name, progress in dump.progress.items():
        if progress.completed is None and name not in dump.point_to_point:
            progress.completed = first[name] - 1 if name in first else progress.enqueued


class UserLines:
    """Finds the innermost line of the user's own code in a call stack of the recorder."""

    LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python3", "<frozen", "torch/distributed/", "torch/nn/")

    NOT_PYTHON = (".cpp", ".cc", ".c", ".cu", ".h", ".hpp", ".so", "??")

    def __init__(self) -> None:
        self._library: dict[str, bool] = {}

    def line(self, frames: object) -> str | None:
        """Return `train.py:88 step` with the file's whole path; None without frames."""
        if not isinstance(frames, (list, tuple)):
            return None
        for frame in frames[:200]:
            if not isinstance(frame, dict):
                continue
            file, number = frame.get("filename"), frame.get("line")
            if not isinstance(file, str) or not isinstance(number, int):
                continue
            library = self._library.get(file)
            if library is None:
                library = any(part in file for part in self.LIBRARIES) or file.endswith(self.NOT_PYTHON)
                self._library[file] = library
            if not library:
                function = frame.get("name")
                return f"{file[-300:]}:{number}" + (f" {function[:100]}" if isinstance(function, str) else "")
        return None


_members: dict[str, tuple[int, ...]] = {}


def member_ranks(text: object) -> tuple[int, ...]:
    """Return the ranks of a group: PyTorch writes the list as a text; empty where that is nothing of the kind."""
    if isinstance(text, (list, tuple)):
        return tuple(sorted({rank for one in text if (rank := whole(one)) is not None and 0 <= rank < LARGEST_RANK}))
    if not isinstance(text, str):
        return ()
    found = _members.get(text)
    if found is None:
        if len(_members) > 10_000:
            _members.clear()
        inner = text.strip().removeprefix("[").removesuffix("]")
        found = _members[text] = member_ranks([part.strip() for part in inner.split(",")])
    return found


def whole(value: object) -> int | None:
    """Return a whole number, which JSON may have as a text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if -_LARGEST < value < _LARGEST else None
    if isinstance(value, str) and len(value) < 20:
        try:
            return whole(int(value))
        except ValueError:
            return None
    return None


def _time(value: object) -> int | None:
    return value if isinstance(value, int) and 0 < value < _LARGEST else None


def _waited(entry: Mapping[object, object], created: int | None, completed: int | None) -> int:
    duration = entry.get("duration_ms")
    if isinstance(duration, (int, float)) and 0 <= duration < 1e9:
        return int(duration * 1e6)
    return completed - created if created is not None and completed is not None and completed >= created else -1


def _name(value: object) -> str:
    """Return the name of a group; empty for a value that is neither a text nor a number and may be of any size."""
    return str(value)[:200] if isinstance(value, (str, int)) else ""


def _named(full_name: str) -> Named:
    backend, _, name = full_name[:200].rpartition(":")
    first, _, arrow = name.partition(" ")
    first = first.lstrip("_")
    return Named(backend, first, first in P2P_NAME, _peer(first, [arrow]))


def _peer(name: str, words: Iterable[str]) -> tuple[str, int] | None:
    """Return the direction and the peer of `send 0->1` or `recv 1<-0`."""
    for word in words:
        numbers = word.replace("<-", "->").split("->")
        if len(numbers) == 2 and (peer := whole(numbers[1].strip())) is not None and name in P2P_NAME:
            return name, peer
    return None


def _sizes(value: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    sizes = tuple(tuple(one[:64]) for one in value[:64] if isinstance(one, (list, tuple)))
    return sizes if all(type(number) is int for one in sizes for number in one) else ()


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(dict.fromkeys(one for one in value[:64] if isinstance(one, str)))
