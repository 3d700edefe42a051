"""Durations of NCCL collectives from PyTorch's own Flight Recorders: FSDP, TP and PP without patching anything.

A recorder keeps the last collectives of the process in a ring (`TORCH_FR_BUFFER_SIZE`, 2,000 by default) and, with
`TORCH_NCCL_ENABLE_TIMING=1`, their length on the GPU. The sender thread reads those that NCCL's groups write to
(`recorders` tells which) at most every 15 s, and only where that is on. To dump and read 2,000 entries holds Python's
lock for 18 ms, so it is done seldom enough to cost less than 0.1 % of the time. What fell out of the ring between two
looks counts as the average of what is left.

The format is detected from the keys, not from a version: pickle has None for a time that JSON has 0 for, and
numbers where JSON has text. Tested on gloo's dumps, which have no lengths, on made-up ones of NCCL in the same
format, and by `make test-gpu` with the recorder of PyTorch 2.11.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic, perf_counter
from typing import Any

from tachograph.client.core.notice import notice
from tachograph.client.signals.wait_by_lengths import Length, WaitByLengths
from tachograph.client.torch.bus_factor import bus_factor
from tachograph.client.torch.loaded_torch import in_use
from tachograph.client.torch.recorders import LEGACY_NCCL, Dump, entries, recorders_in_use

INTERVAL = 15.0
"""Seconds between two looks, at least."""

COST_LIMIT = 0.001
"""Share of the time that looking may take; a costly dump makes looks rarer."""

ATTEMPTS = 5
"""Looks that may fail in a row before no more are tried."""

PATIENCE = 4
"""Looks for which an entry may stay without an end before it is left alone: a coalesced part never gets one."""

UNTIMED = 10
"""Collectives that must be over, none of which has a length, before the log says that NCCL does not time them."""

TIMING = "TORCH_NCCL_ENABLE_TIMING"
"""Makes NCCL's process groups time their work, since 2.15 as before (its `nccl2` asks for it when it is made)."""

_TIMES_LEGACY = (TIMING, "TORCH_NCCL_DESYNC_DEBUG")  # either, up to PyTorch 2.14
_TRUE = ("1", "y", "yes", "t", "true")

_OPERATIONS = (
    ("all_reduce_barrier", "barrier"),
    ("all_reduce", "all_reduce"),
    ("allreduce", "all_reduce"),
    ("all_gather", "all_gather"),
    ("allgather", "all_gather"),
    ("reduce_scatter", "reduce_scatter"),
    ("broadcast", "broadcast"),
    ("all_to_all", "all_to_all"),
    ("alltoall", "all_to_all"),
    ("send", "send_recv"),
    ("recv", "send_recv"),
    ("barrier", "barrier"),
)
"""Prefix of a profiling name, without its backend, and our operation; the first match counts, else `other`."""

_SIZES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "UInt16": 2, "Int": 4, "Float": 4,
    "UInt32": 4, "ComplexHalf": 4, "Long": 8, "Double": 8, "UInt64": 8, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
"""Bytes of one element, by the name that the recorder writes for its type."""

Entry = Mapping[str, Any]


class _Ring:
    """How far one recorder has been read: the number of the next entry, and the looks at entries without an end."""

    __slots__ = ("next", "open", "timed", "untimed")

    def __init__(self) -> None:
        self.next = 0
        self.open: dict[int, int] = {}
        self.timed = False
        self.untimed = 0


class FlightRecorderPoll:
    """Adds up the recorders' entries in `families`, by wire key and operation; used by `Collectives` alone.

    Counts and payloads are added only for what nobody else counts; lengths and bus bytes for every entry that has one.
    `waits` is given the lengths of all that each look finds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic, waits: WaitByLengths | None = None) -> None:
        self.families: dict[str, dict[str, float]] = {
            "collectives_total": {}, "collective_bytes_total": {}, "collective_seconds_total": {},
            "collective_bus_bytes_total": {},
        }  # fmt: skip
        self._clock = clock
        self._waits = waits or WaitByLengths(lambda: False)
        self._due = 0.0
        self._failures = 0
        self.rings: dict[str, _Ring] = {}

    def poll(self, counted_elsewhere: Callable[[str, str], bool]) -> None:
        """Look if it is time to; `counted_elsewhere(operation, group)` tells what a hook or a mark counts already."""
        if self._failures >= ATTEMPTS or (now := self._clock()) < self._due:
            return
        self._due = now + INTERVAL
        if not _timing_is_on():
            return
        began = perf_counter()
        try:
            chosen = _timed_recorders()
            if LEGACY_NCCL in chosen and not spares_captures():
                self._give_up("CUDA's driver cannot be told to spare the capture of a graph")
                return
            dumps = {recorder: entries(recorder) for recorder in chosen}
            for recorder in [recorder for recorder, dump in dumps.items() if dump is None]:
                _say(recorder, "this PyTorch has no Flight Recorder of it")
            self.read({recorder: dump for recorder, dump in dumps.items() if dump is not None}, counted_elsewhere)
        except Exception as error:  # noqa: BLE001 - a private API: absent, renamed or changed, costs these counters only
            self._failures += 1
            if self._failures >= ATTEMPTS:
                self._give_up("PyTorch's Flight Recorder cannot be read", error)
            return
        self._failures = 0
        self._due = now + max(INTERVAL, (perf_counter() - began) / COST_LIMIT)

    def read(self, dumps: Mapping[str, Dump], counted_elsewhere: Callable[[str, str], bool]) -> None:
        """Add what the dumps, by recorder, hold and no earlier ones did."""
        for recorder, dump in dumps.items():
            self._read_one(self.rings.setdefault(recorder, _Ring()), dump, counted_elsewhere)
            ring = self.rings[recorder]
            if not ring.timed and ring.untimed >= UNTIMED:
                _say(recorder, f"PyTorch does not time them: set {TIMING}=1 before init_process_group")
        if dumps:
            self._waits.read(_remembered(dumps.values()) if self._waits.chosen else ())

    def _read_one(self, ring: _Ring, dump: Dump, counted_elsewhere: Callable[[str, str], bool]) -> None:
        found = dump.get("entries") or []
        if found and found[-1]["record_id"] < ring.next - 1:  # the recorder began again
            ring.next, ring.open = 0, {}
        # What was overwritten between two looks is counted as what is left, all of which came meanwhile then.
        missed = max(found[0]["record_id"] - ring.next, 0) if found and ring.next else 0
        weight = 1 + missed / max(len(found), 1)
        groups = _group_sizes(dump.get("pg_config") or {})
        still_open: dict[int, int] = {}
        for entry in found:
            number = entry["record_id"]
            looks = ring.open.get(number, 0)
            if number < ring.next and not looks:
                continue
            group = str(entry["process_group"][0])
            operation, given, moved = _payload(entry)
            if not looks and not counted_elsewhere(operation, group):
                self._add("collectives_total", operation, weight)
                self._add("collective_bytes_total", operation, weight * given)
            if (milliseconds := entry.get("duration_ms")) is not None:
                ring.timed = True
                factor = bus_factor(operation, groups.get(group) or _ranks_of(entry))
                if factor is not None and moved:
                    self._add("collective_seconds_total", operation, weight * milliseconds / 1000)
                    self._add("collective_bus_bytes_total", operation, weight * moved * factor)
            elif entry.get("retired"):
                ring.untimed += 1
            elif looks + 1 < PATIENCE:
                still_open[number] = looks + 1
        if found:
            ring.next = found[-1]["record_id"] + 1
        ring.open = still_open

    def _give_up(self, why: str, error: Exception | None = None) -> None:
        self._failures = ATTEMPTS
        _say("NCCL", why, error)

    def _add(self, key: str, operation: str, amount: float) -> None:
        values = self.families[key]
        values[operation] = values.get(operation, 0) + amount


def lengths(found: Iterable[Entry]) -> list[Length]:
    """Return when each collective was enqueued, and its length.

    A coalesced batch is one: its parts, which never get a length, share the sequence numbers of an entry that does.
    There is no time of a start: what the recorder calls one is when a watchdog noticed it, up to 100 ms later.
    """
    launches: dict[tuple[Any, ...], Length] = {}
    for entry in found:
        launch = entry["process_group"][0], entry["collective_seq_id"], entry["p2p_seq_id"]
        before = launches.get(launch)
        enqueued = before.enqueued if before else entry["time_created_ns"] / 1e9
        seconds = before.seconds if before else None
        if (milliseconds := entry.get("duration_ms")) is not None:
            seconds = (seconds or 0.0) + milliseconds / 1000
        launches[launch] = Length(enqueued, seconds)
    return list(launches.values())


def _remembered(dumps: Collection[Dump]) -> list[Length]:
    """Return the lengths of all dumps from the moment on since which none of them has forgotten any."""
    rings = [found for dump in dumps if (found := dump.get("entries"))]
    if len(rings) < 2:
        return lengths(rings[0]) if rings else []
    since = max((found[0]["time_created_ns"] / 1e9 for found in rings if found[0]["record_id"]), default=0.0)
    return sorted(each for found in rings for each in lengths(found) if each.enqueued >= since)


def enable_timing() -> bool:
    """Have NCCL time its collectives; return False where a process group exists, which has read its settings."""
    if not _is_set(TIMING):
        if in_use("distributed") is not None:
            return _timing_is_on()
        os.environ[TIMING] = "1"
    return True


def _timing_is_on() -> bool:
    return any(map(_is_set, _TIMES_LEGACY))


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() in _TRUE


def _timed_recorders() -> tuple[str, ...]:
    """Return the recorders of the kinds of NCCL that are in use and configured to time their work."""
    return tuple(each for each in recorders_in_use() if each == LEGACY_NCCL or ("nccl" in each and _is_set(TIMING)))


def _say(recorder: str, why: str, error: Exception | None = None) -> None:
    notice(f"lengths {recorder}", f"the lengths of collectives on {recorder} are not measured: {why}", error)


def spares_captures() -> bool:
    """Make this thread's CUDA calls harmless to a CUDA graph that another thread captures; False where that fails.

    A dump asks the events of unfinished collectives. While a graph is captured in the default mode, such a question
    from another thread breaks the capture, unless the asking thread looks only at captures of its own: mode 1,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL. PyTorch's watchdog protects its own questions in the same way.
    """
    import ctypes

    try:
        driver = ctypes.CDLL("libcuda.so.1")
        return int(driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(1)))) == 0
    except (OSError, AttributeError):  # no such library, no such function
        return False


def _group_sizes(configuration: Mapping[str, Any]) -> dict[str, int]:
    """Return how many ranks each group has; gloo does not say, and NCCL writes its list as text."""
    return {str(group): _length(each.get("ranks") or ()) for group, each in configuration.items()}


def _length(ranks: str | Sequence[int]) -> int:
    if isinstance(ranks, str):  # counted, not read: in a large run this is the larger part of a dump
        inner = ranks.strip("[ ]")
        return inner.count(",") + 1 if inner else 0
    return len(ranks)


def _ranks_of(entry: Entry) -> int:
    """Return the world's size for an entry of the default group, 0 for any other."""
    distributed = in_use("distributed")
    default = "default_pg" in entry["process_group"]
    return int(distributed.get_world_size()) if default and distributed is not None else 0


def _payload(entry: Entry) -> tuple[str, int, int]:
    """Return our operation, the bytes this rank gave to it, and those that a bus factor applies to."""
    name = str(entry["profiling_name"]).rpartition(":")[2].lstrip("_")
    operation = next((ours for theirs, ours in _OPERATIONS if name.startswith(theirs)), "other")
    moved = _bytes(entry.get("input_sizes") or (), entry.get("input_dtypes") or ())
    return operation, 0 if name.startswith("recv") else moved, moved


def _bytes(shapes: Iterable[Iterable[int]], kinds: Iterable[str]) -> int:
    """Return the size of a list of tensors; those of an unknown type count nothing, so that they are not timed."""
    total = 0
    for shape, kind in zip(shapes, kinds, strict=False):
        elements = 1
        for length in shape:
            elements *= length
        total += elements * (1 if kind.startswith("Float8") else _SIZES.get(kind, 0))
    return total
