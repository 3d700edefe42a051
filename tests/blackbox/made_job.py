"""A job of many ranks, played in one process: collectives that block as NCCL's and gloo's do, and then dumps."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START = 1_790_000_000 * 10**9
MILLISECOND = 10**6


@dataclass(frozen=True)
class Call:
    """One operation in a rank's program; `peer` makes it a send or a receive."""

    group: str
    name: str = "all_reduce"
    size: int = 4
    dtype: str = "Float"
    line: int = 10
    blocks: bool = True
    peer: int | None = None


@dataclass(frozen=True)
class Stuck:
    """The rank's host goes no further, or its GPU finishes nothing from here on."""

    gpu: bool = False


@dataclass
class _Entry:
    call: Call
    sequence: int
    p2p_sequence: int
    created: int
    done: bool = False
    waits: bool = False


@dataclass
class Job:
    """Groups with their members, and each rank's program."""

    groups: Mapping[str, Sequence[int]]
    programs: Mapping[int, Sequence[Call | Stuck]]
    backend: str = "nccl"
    broken: frozenset[str] = frozenset()
    """Groups whose network is down: what all have called never ends."""
    entries: dict[int, list[_Entry]] = field(default_factory=dict)

    def play(self) -> Job:
        """Run until nothing moves."""
        at = dict.fromkeys(self.programs, 0)
        gpu_stuck: set[int] = set()
        self.entries = {rank: [] for rank in self.programs}
        now = START
        moved = True
        while moved:
            moved = False
            now += 10 * MILLISECOND
            for rank, program in self.programs.items():
                while at[rank] < len(program) and not any(one.waits and not one.done for one in self.entries[rank]):
                    step = program[at[rank]]
                    if isinstance(step, Stuck) and not step.gpu:
                        break
                    at[rank] += 1
                    moved = True
                    if isinstance(step, Stuck):
                        gpu_stuck.add(rank)
                        continue
                    now += MILLISECOND // 10
                    self.entries[rank].append(self._entry(rank, step, now))
            moved |= self._finish(gpu_stuck)
        return self

    def _entry(self, rank: int, call: Call, now: int) -> _Entry:
        mine = [one for one in self.entries[rank] if one.call.group == call.group]
        collectives = sum(one.call.peer is None for one in mine)
        is_p2p = call.peer is not None
        return _Entry(call, collectives + (not is_p2p), len(mine) - collectives + is_p2p, now, waits=call.blocks)

    def _finish(self, gpu_stuck: set[int]) -> bool:
        moved = False
        for name, members in self.groups.items():
            if name in self.broken:
                continue
            called: defaultdict[int, dict[int, _Entry]] = defaultdict(dict)
            for rank in members:
                for one in self.entries.get(rank, ()):
                    if one.call.group == name and one.call.peer is None:
                        called[one.sequence][rank] = one
            for ones in called.values():
                agreed = {(one.call.name, one.call.size, one.call.dtype) for one in ones.values()}
                if len(ones) == len(members) and len(agreed) == 1:
                    moved |= self._done(ones, gpu_stuck)
            moved |= self._meet(name, members, gpu_stuck)
        return moved

    def _done(self, ones: Mapping[int, _Entry], gpu_stuck: set[int]) -> bool:
        before = {rank: self._first_open(rank) for rank in ones}
        ready = all(
            before[rank] is one or one.done or (before[rank] and before[rank].call.group != one.call.group)
            for rank, one in ones.items()
        )
        moved = False
        for rank, one in ones.items():
            if ready and not one.done and rank not in gpu_stuck:
                one.done = moved = True
        return moved

    def _first_open(self, rank: int) -> Any:
        return next((one for one in self.entries[rank] if not one.done), None)

    def _meet(self, name: str, members: Sequence[int], gpu_stuck: set[int]) -> bool:
        moved = False
        for rank in members:
            for one in self.entries.get(rank, ()):
                if one.call.group != name or one.call.name != "send" or one.done or one.call.peer is None:
                    continue
                for other in self.entries.get(one.call.peer, ()):
                    meets = other.call.group == name and other.call.name == "recv" and other.call.peer == rank
                    if meets and not other.done and not gpu_stuck & {rank, one.call.peer}:
                        one.done = other.done = moved = True
                        break
        return moved

    def dump(
        self, rank: int, *, only_active: bool = False, frames: bool = True, ring: int = 2000, version: str = "2.9"
    ) -> dict[str, Any]:
        """Return what the rank's recorder holds, as a pickle has it."""
        own = [name for name, members in self.groups.items() if rank in members]
        number = {name: 2 * index + rank % 2 for index, name in enumerate(own)}  # its own, with gaps
        kept = [(index, one) for index, one in enumerate(self.entries[rank]) if not (only_active and one.done)]
        config = {name: {"name": name, "desc": f"G{name}", "ranks": str(list(self.groups[name]))} for name in own}
        status = {}
        for name in own:
            mine = [one for one in self.entries[rank] if one.call.group == name]
            open_ones = [one for one in mine if not one.done]
            last = max((one.p2p_sequence if one.call.peer is not None else one.sequence for one in mine), default=-1)
            done = last if not open_ones else open_ones[0].sequence - 1
            status[str(number[name])] = {
                "last_enqueued_collective": last,
                "last_started_collective": -1,
                "last_completed_collective": done,
            }
        gloo = self.backend == "gloo"
        made: dict[str, Any] = {
            "version": version,
            "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}} if gloo else config,
            "nccl_version": "2.27.3",
            "pg_status": status,
            "entries": [self._as_entry(rank, index, one, number, frames) for index, one in kept[-ring:]],
        }
        if version == "2.4":
            del made["pg_status"]
        return made

    def _as_entry(self, rank: int, index: int, one: _Entry, number: Mapping[str, int], frames: bool) -> dict[str, Any]:
        call = one.call
        name = call.name
        if call.peer is not None:
            members = list(self.groups[call.group])
            arrow = "->" if name == "send" else "<-"
            name = f"{name} {members.index(rank)}{arrow}{members.index(call.peer)}"
        made: dict[str, Any] = {
            "record_id": index,
            "pg_id": number[call.group],
            "process_group": (call.group, "default_pg" if call.group == "0" else f"G{call.group}"),
            "collective_seq_id": one.sequence,
            "p2p_seq_id": one.p2p_sequence,
            "op_id": index + 1,
            "profiling_name": f"{self.backend}:{name}",
            "time_created_ns": one.created,
            "input_sizes": [[call.size]],
            "input_dtypes": [call.dtype],
            "output_sizes": [[call.size]],
            "output_dtypes": [call.dtype],
            "state": "completed" if one.done and self.backend != "gloo" else "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": one.done,
            "timeout_ms": 600000,
            "is_p2p": call.peer is not None,
            "thread_id": "1",
            "thread_name": "python3",
        }
        if frames:
            made["frames"] = [
                {"name": call.name, "filename": "/v/lib/python3.11/site-packages/torch/distributed/c.py", "line": 7},
                {"name": "step", "filename": "/home/u/train.py", "line": call.line},
                {"name": "<module>", "filename": "/home/u/train.py", "line": 99},
            ]
        return made

    def write(self, folder: Path, *, names: str = "_dump_{}", but: Sequence[int] = (), **options: Any) -> Path:
        """Write a pickle for each rank but some; return the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in self.programs:
            if rank not in but:
                made = self.dump(rank, **options)
                data = pickle.dumps(made, protocol=2) if not names.endswith(".json") else as_json(made)
                (folder / names.format(rank)).write_bytes(data)
        return folder


def as_json(made: Mapping[str, Any]) -> bytes:
    """Return a dump as PyTorch writes it as JSON: no stacks, counters as texts, 0 for a time that is missing."""
    entries = []
    for entry in made["entries"]:
        one = {key: value for key, value in entry.items() if key != "frames"}
        one["time_discovered_started_ns"] = one["time_discovered_started_ns"] or 0
        one["time_discovered_completed_ns"] = one["time_discovered_completed_ns"] or 0
        entries.append(one)
    status = {
        number: {key: str(value) for key, value in counts.items()}
        for number, counts in made.get("pg_status", {}).items()
    }
    return json.dumps({**made, "entries": entries, "pg_status": status}, sort_keys=True).encode()
