"""The progress of each process group: PyTorch's own sequence numbers, read even while the training thread is stuck.

A group is known by its members, since PyTorch's numbers of groups mean another group on another rank. How many
collectives a rank has entered, the group itself says: in half a microsecond, without a collective, and from a side
thread while the main thread hangs. How many it has completed is in the Flight Recorder's JSON dump under `pg_status`;
without entries a dump takes 0.05 ms. Builds without one or the other do not report it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tachograph.client.torch.loaded_torch import in_use, loaded_torch

ATTEMPTS = 5
"""Reads of one kind that may fail in a row before no more are tried."""

GROUP_LIMIT = 32
"""The number of process groups that the exporter keeps per rank; the first ones, which hold all ranks, are kept."""

WORLD = "0"
"""The label of the group of all ranks."""

_DUMPS = {"nccl": "_dump_nccl_trace_json", "gloo": "_dump_fr_trace_json"}
"""Backend -> what dumps its recorder; the first is there in CUDA builds alone."""

LONGEST_DESCRIPTION = 24
LONGEST_SPAN = 24


class GroupProgress:
    """Reads the sequence numbers until it has failed too often."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}
        self._backends: dict[str, str] = {}
        self._entered, self._completed = _Tried(self._read_entered), _Tried(self._read_completed)

    def metrics(self) -> dict[str, dict[str, int]]:
        """Return `collective_enqueued` and `collective_completed` by group; empty where there is nothing to read."""
        distributed = in_use("distributed")
        if distributed is None:
            return {}
        entered = self._entered(distributed)
        found = {"collective_enqueued": entered, "collective_completed": self._completed(entered) if entered else {}}
        return {key: values for key, values in found.items() if values}

    def _read_entered(self, distributed: Any) -> dict[str, int]:  # noqa: ANN401
        named = list(distributed.distributed_c10d._world.pg_names.items())[:GROUP_LIMIT]
        configurations = getattr(distributed.distributed_c10d._world, "pg_backend_config", {})
        self._backends = {name: str(configurations.get(group, "")) for group, name in named}
        labels: dict[str, str] = {}
        entered = {}
        for group, name in named:
            labels[name] = self._labels.get(name) or _unlike(set(labels.values()), _label(distributed, group))
            with suppress(RuntimeError):  # a backend that does not count
                entered[labels[name]] = group._get_sequence_number_for_group()
        self._labels = labels
        return entered

    def _read_completed(self, entered: Mapping[str, int]) -> dict[str, int]:
        """Return what the recorders say of groups, where they have seen as many collectives as the group has."""
        distributed_c10d = loaded_torch()._C._distributed_c10d
        dumps = {backend: getattr(distributed_c10d, dump, None) for backend, dump in _DUMPS.items()}
        if not any(dumps.values()):
            raise AttributeError("this build of PyTorch has no flight recorder")
        completed: dict[str, int] = {}
        for backend, dump in dumps.items():
            if dump is None:
                continue
            recorded = json.loads(dump(includeCollectives=False))
            status = recorded.get("pg_status") or {}
            names = sorted((recorded.get("pg_config") or {}).keys() & self._labels.keys(), key=int) or [
                name for name, backends in self._backends.items() if not backends or backend in backends
            ]
            for number, name in zip(sorted(status, key=int), names, strict=False):
                label = self._labels[name]
                if int(status[number]["last_enqueued_collective"]) == entered.get(label):
                    completed[label] = max(int(status[number]["last_completed_collective"]), 0)
        return completed


class _Tried:
    """A private API, absent, renamed or changed some day: asked until it has failed too often."""

    def __init__(self, read: Callable[[Any], dict[str, int]]) -> None:
        self._read = read
        self.failures = 0

    def __call__(self, given: object) -> dict[str, int]:
        if self.failures >= ATTEMPTS:
            return {}
        try:
            found = self._read(given)
        except Exception:  # noqa: BLE001 - costs this gauge only
            self.failures += 1
            return {}
        self.failures = 0
        return found


def _label(distributed: Any, group: Any) -> str:  # noqa: ANN401
    """Return a group's description and members, as `tp 4-7`: the same on every rank in it, another for every other."""
    if group is distributed.group.WORLD:
        return WORLD
    span = _span(sorted(distributed.get_process_group_ranks(group)))
    described = getattr(group, "group_desc", "").removeprefix("mesh_")[:LONGEST_DESCRIPTION]
    return span if described in ("", "undefined") else f"{described} {span}"


def _span(ranks: Sequence[int]) -> str:
    """Return ranks as `3`, `0,8`, `0-7`, `0-56/8` (every eighth), or the first and last with a hash of all."""
    first, last, listed = ranks[0], ranks[-1], ",".join(map(str, ranks))
    stride = ranks[1] - first if len(ranks) > 1 else 1
    if len(ranks) > 2 and list(ranks) == list(range(first, last + 1, stride)):
        return f"{first}-{last}" + (f"/{stride}" if stride > 1 else "")
    if len(listed) <= LONGEST_SPAN:
        return listed
    from zlib import crc32  # late: few jobs have such groups

    return f"{first}-{last}#{crc32(listed.encode()):08x}"


def _unlike(taken: set[str], label: str) -> str:
    """Return a label that no other group has: those of the same members are made in the same order on all of them."""
    return next(each for each in (label, *(f"{label} ({n})" for n in range(2, GROUP_LIMIT + 2))) if each not in taken)
