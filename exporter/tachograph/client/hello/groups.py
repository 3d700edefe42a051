"""The progress of each process group: PyTorch's own sequence numbers, read even while the training thread is stuck.

A group is known by its members, since PyTorch's numbers of groups mean another group on another rank. How many
collectives a rank has entered, the group itself says: in half a microsecond, without a collective, and from a side
thread while the main thread hangs. How many it has completed is in the `pg_status` of the Flight Recorder that its
backend writes to; without entries a dump takes 0.05 ms. Builds without one or the other do not report it.

A recorder knows groups by number alone: the order in which those of its backend were made. So every group that is made
gets a number of each recorder it writes to; a gloo group has none of NCCL's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from tachograph.client.core.notice import notice
from tachograph.client.torch.loaded_torch import in_use
from tachograph.client.torch.recorders import GLOO, SELF_RECORDING, Dump, numbering, recorders_of, status

ATTEMPTS = 5
"""Reads of one kind that may fail in a row before no more are tried."""

GROUP_LIMIT = 32
"""The number of process groups that the exporter keeps per rank; the first ones, which hold all ranks, are kept."""

DESCRIBED_GROUPS = 256

WORLD = "0"
"""The label of the group of all ranks."""

LONGEST_DESCRIPTION = 24
LONGEST_SPAN = 24


class _Group:
    """A process group: its label, the recorders it writes to with its number in each, and how far a hook was ahead."""

    __slots__ = ("ahead", "label", "numbers", "since")

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.label = ""
        self.ahead = 0
        self.since = 0

    def completed_by_hook(self, entered: int, enqueued: int, completed: int) -> int | None:
        """Return how many collectives were completed, by the counts of a hook; None where they do not tell.

        A hook counts more than the group does: sends, receives, and what another backend of it carries out. Its lead
        is constant after the last of those, so what it counts from there on are collectives alone. That one itself may
        be called completed before what was entered earlier: a batch of sends is, as soon as it is enqueued.
        """
        if enqueued - entered != self.ahead:
            self.ahead, self.since = enqueued - entered, enqueued
        if completed <= 0:  # none yet, or a backend that never says
            return None
        return completed - self.ahead if self.ahead == 0 or completed > self.since else None


class GroupProgress:
    """Reads the sequence numbers until it has failed too often."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, str], _Group] = {}
        self._made: dict[str, int] = {}
        self._reported: list[_Group] = []
        self._entered = _Tried(self._read_entered)
        self._completed: dict[str, _Tried] = {}
        self._silent: dict[str, int] = {}

    def metrics(self) -> dict[str, dict[str, int]]:
        """Return `collective_enqueued` and `collective_completed` by group; empty where there is nothing to read."""
        distributed = in_use("distributed")
        if distributed is None:
            return {}
        entered = self._entered(distributed)
        found = {"collective_enqueued": entered, "collective_completed": self._all_completed(entered)}
        return {key: values for key, values in found.items() if values}

    def described(self) -> dict[str, dict[str, object]]:
        """Return each group by the name that PyTorch's recorders call it: ranks, label, backends, collectives."""
        distributed = in_use("distributed")
        if distributed is None:
            return {}
        counts = self.metrics()
        world = distributed.distributed_c10d._world
        configured = getattr(world, "pg_backend_config", {})
        found: dict[str, dict[str, object]] = {}
        for group, name in list(world.pg_names.items())[:DESCRIBED_GROUPS]:
            known = self._groups.get((id(group), name))
            label = known.label if known is not None else ""
            found[str(name)] = {
                "ranks": sorted(distributed.get_process_group_ranks(group)),
                "label": label,
                "desc": getattr(group, "group_desc", ""),
                "backends": str(configured.get(group, "")),
                **{key.rpartition("_")[2]: each[label] for key, each in counts.items() if label in each},
            }
        return found

    def _read_entered(self, distributed: Any) -> dict[str, int]:  # noqa: ANN401
        world = distributed.distributed_c10d._world
        named = list(world.pg_names.items())
        self._groups = {key: self._known(world, group, key) for group, key in ((g, (id(g), n)) for g, n in named)}
        self._reported = list(self._groups.values())[:GROUP_LIMIT]
        taken: set[str] = set()
        entered = {}
        for (group, _), known in zip(named, self._reported, strict=False):
            known.label = known.label or _unlike(taken, _label(distributed, group))
            taken.add(known.label)
            with suppress(RuntimeError):  # a backend that does not count
                entered[known.label] = group._get_sequence_number_for_group()
        return entered

    def _known(self, world: Any, group: Any, key: tuple[int, str]) -> _Group:  # noqa: ANN401
        """Return what is known of a group; one that is new gets the next number of each of its recorders.

        One that is only being made has no backends yet, and is looked at again.
        """
        if (known := self._groups.get(key)) is not None and known.numbers:
            return known
        recorders = recorders_of(group, str(getattr(world, "pg_backend_config", {}).get(group, "")))
        numbers: dict[str, int] = {}
        for kind in dict.fromkeys(map(numbering, recorders)):
            number = self._made.get(kind, 0)
            self._made[kind] = number + 1
            numbers |= {recorder: number for recorder in recorders if numbering(recorder) == kind}
        known = known or _Group()
        known.numbers = numbers
        return known

    def _all_completed(self, entered: dict[str, int]) -> dict[str, int]:
        if not entered:
            return {}
        completed: dict[str, int] = {}
        for recorder in dict.fromkeys(recorder for group in self._reported for recorder in group.numbers):
            read = self._completed.setdefault(recorder, _Tried(partial(self._read_completed, recorder)))
            for label, number in read(entered).items():
                completed.setdefault(label, number)
            if read.failures >= ATTEMPTS:
                _say(recorder, "PyTorch's Flight Recorder of it cannot be read")
        return completed

    def _read_completed(self, recorder: str, entered: Mapping[str, int]) -> dict[str, int]:
        """Return what a recorder says of the groups that write to it."""
        dump = status(recorder)
        if dump is None:
            if recorder != GLOO:  # which has none in older releases, and nobody waits for one
                _say(recorder, "this PyTorch has no Flight Recorder of it")
            return {}
        counts = dump.get("pg_status") or {}
        self._note_silence(recorder, counts, entered)
        by_hook = recorder not in SELF_RECORDING
        if by_hook and len(dump.get("pg_config") or {}) > self._made.get(numbering(recorder), 0):
            return {}  # it has seen groups that were gone before our first look, so its numbers are not ours
        completed = {}
        for group in self._reported:
            seen = counts.get(str(group.numbers.get(recorder)))
            if seen is None or (own := entered.get(group.label)) is None:
                continue
            enqueued, ended = int(seen["last_enqueued_collective"]), int(seen["last_completed_collective"])
            if by_hook:
                if (number := group.completed_by_hook(own, enqueued + 1, ended + 1)) is not None:
                    completed[group.label] = number
            elif enqueued == own:
                completed[group.label] = max(ended, 0)
        return completed

    def _note_silence(self, recorder: str, counts: Dump, entered: Mapping[str, int]) -> None:
        """Say so where a recorder stays empty although collectives that only it can have seen were entered."""
        if counts or not any(entered.get(each.label) and list(each.numbers) == [recorder] for each in self._reported):
            self._silent[recorder] = 0
            return
        self._silent[recorder] = self._silent.get(recorder, 0) + 1
        if self._silent[recorder] == ATTEMPTS:
            turn_on = "TORCH_FR_BUFFER_SIZE=2000 (TORCH_NCCL_TRACE_BUFFER_SIZE in older releases) turns it on"
            _say(recorder, f"PyTorch's Flight Recorder of it is off; {turn_on}")


def _say(recorder: str, why: str) -> None:
    notice(f"completed {recorder}", f"how many collectives on {recorder} were completed is not known: {why}")


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
