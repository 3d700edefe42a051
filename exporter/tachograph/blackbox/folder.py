"""Reads a folder of dumps: which files are dumps, of which rank and of which attempt each is, and what is missing."""

from __future__ import annotations

import contextlib
import gc
import os
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

from tachograph.blackbox import cut_json, own_box, plain_pickle
from tachograph.blackbox.newest_entries import shortened
from tachograph.blackbox.recorder import (
    LARGEST_RANK,
    RankDump,
    Shape,
    Shapes,
    UserLines,
    add_recorder,
    whole,
)
from tachograph.files.plain_file import read_plain
from tachograph.processes.die_with_parent import begin_worker
from tachograph.processes.own_process import own_workers

LARGEST_FILE = 256 << 20
"""A dump of 20,000 entries with stacks has some 30 MB; no file that is larger is read."""

MOST_FILES = 100_000

MOST_ENTRIES = 256_000
"""Operations of all ranks that are looked at, shared among the files: ten seconds are not spent on old ones."""

LEAST_ENTRIES = 200
"""Newest operations of a rank that are looked at, however many ranks there are."""

WORTH_A_PROCESS = 32 << 20
"""Bytes of dumps for each process that reads some: a second's work, while its start takes a third of that."""

MOST_WORKERS = 16
PART_FILES = 16
"""Files that a process reads at a time."""

STALE = 60 * 10**9
"""Nanoseconds from the newest entry of a dump to the oldest of all others: it may be one of an earlier attempt."""

_EARLIER = re.compile(r"(rank-\d+)(\.asked)?(\.\d)?\.json")
"""A box of a rank: `rank-3.json`, or `rank-3.asked.json` if it was requested; before it there are `rank-3.1.json` and
`rank-3.asked.1.json`. What a standstill or a failure left counts, else what was requested, and the last one of each."""

_NUMBER_AT_END = re.compile(r"(\d+)$")
_RANK = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)
_SUFFIXES = re.compile(r"(\.(json|pkl|pickle|pt|bin|dump|trace|txt))+$", re.IGNORECASE)
_ATTEMPT = re.compile(r"(?:attempt|restart|cycle)[-_.]?(\d+)", re.IGNORECASE)


@dataclass
class Folder:
    """The dumps of the attempt that is analyzed, by rank, and the files that were left out."""

    ranks: dict[int, RankDump] = field(default_factory=dict)
    shapes: Shapes = field(default_factory=Shapes)
    damaged: dict[str, str] = field(default_factory=dict)
    """What is wrong with a file, by its name; where it was cut short, what stands before the cut is used."""
    unreadable: set[int] = field(default_factory=set)
    """Ranks whose file is there and says nothing."""
    other_attempts: list[str] = field(default_factory=list)
    stale: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Content:
    """The content of a file, and when that was written; or why it cannot be read."""

    name: str
    data: bytes = b""
    written: float = 0.0
    fault: str = ""


@dataclass
class _Read:
    """One file, read."""

    name: str
    dump: RankDump
    series: tuple[int, bool, str]


@dataclass
class _Part:
    """Some of the files, read, with the shapes that they number."""

    found: list[_Read]
    shapes: list[Shape]
    damaged: dict[str, str]
    unreadable: set[int]


def read(directory: Path) -> Folder:
    """Read the dumps of a folder and of the folders in it; raises OSError where it cannot be listed."""
    files = _files(directory)
    most, workers = _most(len(files)), _workers(files)
    if workers < 2:
        return _chosen([_part(directory, files, most)])
    parts = [files[start : start + PART_FILES] for start in range(0, len(files), PART_FILES)]
    try:
        with ProcessPoolExecutor(workers, own_workers(), begin_worker, (os.getpid(),)) as pool:
            return _chosen(pool.map(_part, repeat(directory), parts, repeat(most)))
    except BrokenProcessPool:  # one was killed, as for memory: one at a time needs least
        return _chosen([_part(directory, files, most)])


def read_boxes(boxes: Iterable[tuple[str, bytes]], count: int) -> Folder:
    """Read dumps that lie in memory, about so many, each with the name that its file would have."""
    return _chosen([_read((_Content(name, data, 0.0) for name, data in boxes), _most(count))])


def _most(files: int) -> int:
    return max(LEAST_ENTRIES, MOST_ENTRIES // max(1, files))


def _workers(files: Sequence[Path]) -> int:
    """Return how many processes read the files: one where starting others takes longer than that."""
    size = 0
    for path in files:
        with contextlib.suppress(OSError):
            size += path.stat().st_size
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS, size // WORTH_A_PROCESS)


def _part(directory: Path, files: Sequence[Path], most: int) -> _Part:
    return _read((_content(path, path.relative_to(directory).as_posix()) for path in files), most)


def _read(contents: Iterable[_Content], most: int) -> _Part:
    folder, lines, found = Folder(), UserLines(), []
    enabled = gc.isenabled()
    gc.disable()  # millions of small objects without a cycle: looking for one takes longer than all the rest
    try:
        for content in contents:
            one = _read_one(content, folder, lines, most)
            if one is not None:
                found.append(one)
    finally:
        if enabled:
            gc.enable()
    return _Part(found, folder.shapes.known, folder.damaged, folder.unreadable)


def _chosen(parts: Iterable[_Part]) -> Folder:
    """Return the folder that was read in parts, each of which has numbered the shapes by itself."""
    folder, found = Folder(), []
    for part in parts:
        number = folder.shapes.numbers_of(part.shapes)
        for one in part.found:
            for calls in one.dump.calls.values():
                calls.shapes = array("l", [number[shape] for shape in calls.shapes])
            for pending in one.dump.pending:
                pending.shape = number[pending.shape] if pending.shape >= 0 else pending.shape
        found += part.found
        folder.damaged.update(part.damaged)
        folder.unreadable |= part.unreadable
    _choose(folder, found)
    return folder


def _files(directory: Path) -> list[Path]:
    found: list[Path] = []
    for path in sorted(directory.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            found.append(path)
        elif path.is_dir() and not path.is_symlink():
            found += [one for one in sorted(path.rglob("*")) if one.is_file() and not one.name.startswith(".")]
        if len(found) > MOST_FILES:
            break
    present = set(found)
    return [path for path in found if not _is_earlier(path, present)][:MOST_FILES]


def _is_earlier(path: Path, present: set[Path]) -> bool:
    found = _EARLIER.fullmatch(path.name)
    if found is None:
        return False
    names = [f"{found[1]}.json"] if found[2] or found[3] else []
    names += [f"{found[1]}.asked.json"] if found[2] and found[3] else []
    return any(path.with_name(name) in present for name in names)


def _content(path: Path, name: str) -> _Content:
    try:
        return _Content(name, read_plain(path, LARGEST_FILE), path.stat().st_mtime)
    except OSError as error:
        return _Content(name, fault=error.strerror or type(error).__name__)


def _read_one(content: _Content, folder: Folder, lines: UserLines, most: int) -> _Read | None:
    name, data, written = content.name, content.data, content.written
    rank = rank_of_name(name.rpartition("/")[2])
    if content.fault:
        folder.damaged[name] = content.fault
        if rank is not None:
            folder.unreadable.add(rank)
        return None
    value, fault = parse(data, most)
    recorders = list(_recorders(value))
    if not recorders and not own_box.is_one(value):
        if rank is not None and (fault or not data):
            folder.damaged[name] = fault or "empty"
            folder.unreadable.add(rank)
        return None
    if fault:
        folder.damaged[name] = f"{fault}: what stands before the cut is used"
    box: Mapping[object, object] = value if isinstance(value, dict) else {}
    dump = RankDump(-1, [name], written=written, cut=fault is not None)
    for recorder in recorders:
        if dump.cut:
            _drop_cut_entry(recorder)
        add_recorder(dump, recorder, folder.shapes, lines, most)
    own_box.add(dump, box)
    own = whole(box.get("rank"))
    rank = own if own is not None else rank
    if rank is None or not _may_be(rank, dump):
        candidate = _only_candidate(dump)
        rank = rank if candidate is None else candidate
    if rank is None or not 0 <= rank < LARGEST_RANK:
        folder.damaged[name] = "neither its name nor its content says of which rank it is"
        return None
    dump.rank = rank
    return _Read(name, dump, _series(name, box))


def parse(data: bytes, most: int = 1 << 30) -> tuple[object, str | None]:
    """Return what a file holds, and what is wrong with it; of a long ring so many of its newest entries at least."""
    if not data.strip(b"\0 \r\n\t"):
        return None, "empty"
    as_json = data.lstrip()[:1] in (b"{", b"[")
    reader = cut_json if as_json else plain_pickle
    if not as_json and (short := shortened(data, most)) is not data:
        with contextlib.suppress(ValueError):  # it does not fit together: read whole
            return plain_pickle.load(short), None
    try:
        return reader.load(data), None
    except plain_pickle.NotPlainError as error:
        return None, f"refused: {error}"
    except ValueError:
        value = reader.salvage(data)
        return value, "damaged or cut short"


def rank_of_name(name: str) -> int | None:
    """Return the rank of `_dump_3`, `nccl_trace_rank_3`, `comm_lib_trace_rank_3.json` or `rank-3.json`."""
    stem = _ATTEMPT.sub("", _SUFFIXES.sub("", name)).rstrip("-_.")
    found = _RANK.search(stem) or _NUMBER_AT_END.search(stem)
    if found is None or len(found[1]) > 7:
        return None
    return int(found[1])


def _recorders(value: object, depth: int = 0) -> Iterable[dict[object, object]]:
    """Yield the recorders in a value: it is one, or holds one for each backend."""
    if isinstance(value, dict):
        if isinstance(value.get("entries"), list) or isinstance(value.get("pg_status"), dict):
            yield value
        elif depth < 4:
            for one in value.values():
                if isinstance(one, (dict, list)):
                    yield from _recorders(one, depth + 1)
    elif isinstance(value, list) and depth < 4:
        for one in value[:64]:
            yield from _recorders(one, depth + 1)


def _drop_cut_entry(recorder: Mapping[object, object]) -> None:
    """Drop the last entry if the cut went through it."""
    entries = recorder.get("entries")
    if (
        isinstance(entries, list)
        and len(entries) > 1
        and isinstance(entries[0], dict)
        and isinstance(entries[-1], dict)
    ):
        if entries[0].keys() - entries[-1].keys():
            entries.pop()
    elif isinstance(entries, list):
        entries.clear()


def _may_be(rank: int, dump: RankDump) -> bool:
    return all(rank in members for members in dump.members.values())


def _only_candidate(dump: RankDump) -> int | None:
    """Return the only rank that is in every group of a dump."""
    sets = [frozenset(members) for members in dump.members.values()]
    common = frozenset.intersection(*sets) if sets else frozenset()
    return next(iter(common)) if len(common) == 1 else None


def _series(name: str, box: Mapping[object, object]) -> tuple[int, bool, str]:
    """Return the attempt that a file gives, whether it says so in words, and its name without the rank."""
    told = whole(box.get("attempt"))
    found = _ATTEMPT.findall(name)
    parent, _, own = name.rpartition("/")
    last = parent.rpartition("/")[2]
    number = told if told is not None else int(found[-1][:9]) if found else int(last) if last.isdigit() else 0
    return min(number, LARGEST_RANK), told is not None or bool(found), parent + "/" + re.sub(r"\d+", "", own)


def _choose(folder: Folder, found: Iterable[_Read]) -> None:
    """Keep the newest attempt.

    Files whose names differ by the rank alone belong together. Of those that have ranks in common the attempt with the
    highest number is kept, else the one with the newest entry; those that have none in common are one attempt's.
    """
    series: defaultdict[tuple[int, bool, str], list[_Read]] = defaultdict(list)
    for one in found:
        series[one.series].append(one)
    highest = max((number for number, by_word, _ in series if by_word), default=0)
    newest = {key: max(_when(one.dump) for one in ones) for key, ones in series.items()}
    kept_age: dict[int, float] = {}
    for key in sorted(series, key=lambda key: (key[0], newest[key]), reverse=True):
        ones = series[key]
        shared = [kept_age[one.dump.rank] for one in ones if _in_place_of(folder.ranks.get(one.dump.rank), one)]
        older = bool(shared) and (max(shared) - newest[key]) * 1e9 > STALE
        if (key[1] and key[0] < highest) or older or (shared and key[0] < highest):
            folder.other_attempts += [one.name for one in ones]
            continue
        for one in ones:
            kept_age.setdefault(one.dump.rank, newest[key])
            _add(folder, one.dump)
    _leave_out_stale(folder)
    folder.unreadable -= folder.ranks.keys()


def _in_place_of(present: RankDump | None, one: _Read) -> bool:
    """Return whether a rank's dump is there already; a rank has one for each backend."""
    if present is None:
        return False
    return not present.backends or not one.dump.backends or bool(present.backends & one.dump.backends)


def _add(folder: Folder, dump: RankDump) -> None:
    present = folder.ranks.get(dump.rank)
    if present is None or (present.backends & dump.backends and _worth(dump) > _worth(present)):
        folder.ranks[dump.rank] = dump
    elif present.backends and dump.backends and not present.backends & dump.backends:
        _merge(present, dump)


def _when(dump: RankDump) -> float:
    return dump.newest / 1e9


def _worth(dump: RankDump) -> tuple[bool, bool, int]:
    return not dump.cut, dump.last_line is not None, len(dump.progress)


def _merge(into: RankDump, other: RankDump) -> None:
    into.files += other.files
    into.backends |= other.backends
    into.versions |= other.versions
    into.members.update(other.members)
    into.described.update(other.described)
    for name, progress in other.progress.items():
        into.progress.setdefault(name, progress)
    for name, calls in other.calls.items():
        into.calls.setdefault(name, calls)
    into.pending += other.pending
    into.point_to_point |= other.point_to_point
    for key, times in other.messages.items():
        into.messages.setdefault(key, times)
    if other.newest > into.newest:
        into.last_line = other.last_line or into.last_line
    into.newest = max(into.newest, other.newest)
    into.oldest = min(into.oldest or other.oldest, other.oldest or into.oldest)
    into.where = into.where or other.where
    into.failed_in_collective |= other.failed_in_collective
    into.raised = into.raised or other.raised
    into.world_size = into.world_size or other.world_size
    into.written = max(into.written, other.written)
    into.cut = into.cut or other.cut
    into.unnamed_status |= other.unnamed_status
    into.has_status |= other.has_status
    into.has_done |= other.has_done
    into.overran |= other.overran


def _leave_out_stale(folder: Folder) -> None:
    """Leave out dumps of an earlier attempt: they end more than a minute before most others begin, and elsewhere."""
    timed = sorted((dump for dump in folder.ranks.values() if dump.newest), key=lambda dump: dump.newest)
    for index, dump in enumerate(timed[: len(timed) // 2]):
        early, late = timed[: index + 1], timed[index + 1 :]
        if min(other.oldest for other in late) - dump.newest > STALE and all(_elsewhere(one, late) for one in early):
            for old in early:
                folder.stale[old.rank] = old.files[0]
                del folder.ranks[old.rank]
            return


def _elsewhere(dump: RankDump, others: Sequence[RankDump]) -> bool:
    """Return whether a rank is further from all others, in some group, than what their rings hold: clocks differ."""
    for group, calls in dump.calls.items():
        shared = [one.calls[group].sequences for one in others if group in one.calls and one.calls[group].sequences]
        if calls.sequences and shared:
            reach = len(calls.sequences) + max(map(len, shared))
            if min(abs(one[-1] - calls.sequences[-1]) for one in shared) > reach:
                return True
    return False
