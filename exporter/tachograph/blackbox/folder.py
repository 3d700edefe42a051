"""Reads a folder of dumps: which files are dumps, of which rank and of which attempt each is, and what is missing."""

from __future__ import annotations

import gc
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tachograph.blackbox import cut_json, plain_pickle
from tachograph.blackbox.recorder import LARGEST_RANK, RankDump, Shapes, UserLines, add_recorder, member_ranks, whole

LARGEST_FILE = 256 << 20
"""A dump of 20,000 entries with stacks has some 30 MB; no file that is larger is read."""

MOST_FILES = 100_000

STALE = 60 * 10**9
"""Nanoseconds from the newest entry of a dump to the oldest of all others that make it one of an earlier attempt."""

_NUMBER_AT_END = re.compile(r"(\d+)$")
_RANK = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)
_SUFFIXES = re.compile(r"(\.(json|pkl|pickle|pt|bin|dump|trace|txt))+$", re.IGNORECASE)
_ATTEMPT = re.compile(r"(?:attempt|restart|cycle)[-_.]?(\d+)", re.IGNORECASE)


@dataclass
class Folder:
    """What a folder holds of the attempt that is analysed, and what was left out."""

    ranks: dict[int, RankDump] = field(default_factory=dict)
    shapes: Shapes = field(default_factory=Shapes)
    damaged: dict[str, str] = field(default_factory=dict)
    """What is wrong with a file, by its name; where it was cut short, what stands before the cut is used."""
    unreadable: set[int] = field(default_factory=set)
    """Ranks whose file is there and says nothing."""
    other_attempts: list[str] = field(default_factory=list)
    stale: dict[int, str] = field(default_factory=dict)


@dataclass
class _Read:
    """One file, read."""

    name: str
    dump: RankDump
    attempt: tuple[str, int]
    recorders: frozenset[str]


def read(directory: Path) -> Folder:
    """Read the dumps of a folder and of the folders in it; raises OSError where it cannot be listed."""
    folder, lines, found = Folder(), UserLines(), []
    enabled = gc.isenabled()
    gc.disable()  # millions of small objects without a cycle: looking for one takes longer than all the rest
    try:
        for path in _files(directory):
            one = _read_file(path, path.relative_to(directory).as_posix(), folder, lines)
            if one is not None:
                found.append(one)
    finally:
        if enabled:
            gc.enable()
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
    return found[:MOST_FILES]


def _read_file(path: Path, name: str, folder: Folder, lines: UserLines) -> _Read | None:
    rank = rank_of_name(path.name)
    try:
        if path.stat().st_size > LARGEST_FILE:
            folder.damaged[name] = f"larger than {LARGEST_FILE >> 20} MB"
            return None
        data, written = path.read_bytes(), path.stat().st_mtime
    except OSError as error:
        folder.damaged[name] = error.strerror or type(error).__name__
        if rank is not None:
            folder.unreadable.add(rank)
        return None
    value, fault = parse(data)
    recorders = list(_recorders(value))
    if not recorders:
        if rank is not None and (fault or not data):
            folder.damaged[name] = fault or "empty"
            folder.unreadable.add(rank)
        return None
    if fault:
        folder.damaged[name] = f"{fault}: what stands before the cut is used"
    box: Mapping[object, object] = value if isinstance(value, dict) else {}
    dump = RankDump(-1, [name], written=written, cut=fault is not None)
    for recorder in recorders:
        add_recorder(dump, recorder, folder.shapes, lines)
    _add_box(dump, box)
    own = whole(box.get("rank"))
    rank = own if own is not None else rank
    if rank is None or not _may_be(rank, dump):
        candidate = _only_candidate(dump)
        rank = rank if candidate is None else candidate
    if rank is None or not 0 <= rank < LARGEST_RANK:
        folder.damaged[name] = "of which rank it is stands neither in its name nor in it"
        return None
    dump.rank = rank
    return _Read(name, dump, _attempt(name, box), frozenset(dump.backends))


def parse(data: bytes) -> tuple[object, str | None]:
    """Return what a file holds, and what is wrong with it."""
    if not data.strip(b"\0 \r\n\t"):
        return None, "empty"
    as_json = data.lstrip()[:1] in (b"{", b"[")
    reader = cut_json if as_json else plain_pickle
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


def _add_box(dump: RankDump, box: Mapping[object, object]) -> None:
    """Add what a box of ours says beside the recorders: members of groups, the size of the world, the rank's place."""
    groups = box.get("groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        members = member_ranks(group.get("ranks", group.get("members")) if isinstance(group, dict) else group)
        if members:
            dump.members.setdefault(str(name)[:200], members)
    size = whole(box.get("world_size"))
    dump.world_size = size if size is not None and 0 < size <= LARGEST_RANK else None
    where = box.get("where")
    if isinstance(where, str) and where:
        dump.where = where[:500]


def _may_be(rank: int, dump: RankDump) -> bool:
    return all(rank in members for members in dump.members.values())


def _only_candidate(dump: RankDump) -> int | None:
    """Return the only rank that is in every group of a dump."""
    sets = [frozenset(members) for members in dump.members.values()]
    common = frozenset.intersection(*sets) if sets else frozenset()
    return next(iter(common)) if len(common) == 1 else None


def _attempt(name: str, box: Mapping[object, object]) -> tuple[str, int]:
    """Return the folder of a file and the number of the attempt that its path or it itself gives; 0 without one."""
    parent = name.rpartition("/")[0]
    told = whole(box.get("attempt"))
    found = _ATTEMPT.findall(name)
    number = told if told is not None else int(found[-1][:9]) if found else 0
    last = parent.rpartition("/")[2]
    if told is None and not found and last.isdigit() and len(last) < 9:
        number = int(last)
    return parent, number


def _choose(folder: Folder, found: Iterable[_Read]) -> None:
    """Keep the newest attempt: of two dumps of one rank and backend the later one, and none from before all others."""
    by_attempt: defaultdict[int, list[_Read]] = defaultdict(list)
    for one in found:
        by_attempt[one.attempt[1]].append(one)
    if len(by_attempt) > 1:
        last = max(by_attempt)
        for number, ones in by_attempt.items():
            if number != last:
                folder.other_attempts += [one.name for one in ones]
    kept = by_attempt[max(by_attempt)] if by_attempt else []
    for one in sorted(kept, key=lambda read: (_when(read.dump), read.dump.written)):
        present = folder.ranks.get(one.dump.rank)
        if present is None:
            folder.ranks[one.dump.rank] = one.dump
        elif present.backends and one.dump.backends and not present.backends & one.dump.backends:
            _merge(present, one.dump)
        elif abs(_when(one.dump) - _when(present)) * 1e9 > STALE:
            folder.other_attempts += present.files
            folder.ranks[one.dump.rank] = one.dump
        elif _worth(one.dump) >= _worth(present):  # the same dump in two formats
            folder.ranks[one.dump.rank] = one.dump
    _leave_out_stale(folder)
    folder.unreadable -= folder.ranks.keys()


def _when(dump: RankDump) -> float:
    return dump.newest / 1e9 if dump.newest else dump.written


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
    if other.newest > into.newest:
        into.last_line = other.last_line or into.last_line
    into.newest = max(into.newest, other.newest)
    into.oldest = min(into.oldest or other.oldest, other.oldest or into.oldest)
    into.where = into.where or other.where
    into.world_size = into.world_size or other.world_size
    into.written = max(into.written, other.written)
    into.cut = into.cut or other.cut
    into.unnamed_status |= other.unnamed_status
    into.has_status |= other.has_status
    into.has_done |= other.has_done
    into.overran |= other.overran


def _leave_out_stale(folder: Folder) -> None:
    """Leave out dumps that end more than a minute before most others begin: they are of an earlier attempt."""
    timed = sorted((dump for dump in folder.ranks.values() if dump.newest), key=lambda dump: dump.newest)
    for index, dump in enumerate(timed[: len(timed) // 2]):
        later = min(other.oldest for other in timed[index + 1 :])
        if later - dump.newest > STALE:
            for old in timed[: index + 1]:
                folder.stale[old.rank] = old.files[0]
                del folder.ranks[old.rank]
            return
