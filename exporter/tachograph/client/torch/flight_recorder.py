"""Durations of NCCL collectives from PyTorch's own Flight Recorder: FSDP, TP and PP without patching anything.

The recorder keeps the last collectives of the process in a ring (`TORCH_FR_BUFFER_SIZE`, 2,000 by default) and, with
`TORCH_NCCL_ENABLE_TIMING=1`, their length on the GPU. The sender thread reads it at most every 15 s, and only where
that is on. To dump and read 2,000 entries holds Python's lock for 18 ms, so it is done seldom enough to cost less than
0.1 % of the time. What fell out of the ring between two looks counts as the average of what is left.

The format is detected from the keys, not from a version: pickle has None for a time that JSON has 0 for, and
numbers where JSON has text. Tested on gloo's dumps, which have no lengths, on made-up ones of NCCL in the same
format, and by `make test-gpu`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic, perf_counter
from typing import Any

from tachograph.client.signals.wait_by_lengths import Length, WaitByLengths
from tachograph.client.torch.bus_factor import bus_factor
from tachograph.client.torch.loaded_torch import in_use, loaded_torch

INTERVAL = 15.0
"""Seconds between two looks, at least."""

COST_LIMIT = 0.001
"""Share of the time that looking may take; a costly dump makes looks rarer."""

ATTEMPTS = 5
"""Looks that may fail in a row before no more are tried."""

PATIENCE = 4
"""Looks for which an entry may stay without an end before it is left alone: a coalesced part never gets one."""

_TIMING = ("TORCH_NCCL_ENABLE_TIMING", "TORCH_NCCL_DESYNC_DEBUG")  # either makes NCCL's process group time its work
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


class FlightRecorderPoll:
    """Adds up the recorder's entries in `families`, by wire key and operation; used by `Collectives` alone.

    Counts and payloads are added only for what nobody else counts; lengths and bus bytes for every entry that has one.
    `waits` is given the lengths of all that each dump holds.
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
        self._next = 0
        self._open: dict[int, int] = {}

    def poll(self, counted_elsewhere: Callable[[str, str], bool]) -> None:
        """Look if it is time to; `counted_elsewhere(operation, group)` tells what a hook or a mark counts already."""
        if self._failures >= ATTEMPTS or (now := self._clock()) < self._due:
            return
        self._due = now + INTERVAL
        if not _times_nccl():
            return
        began = perf_counter()
        try:
            if not _spares_captures():
                self._failures = ATTEMPTS
                return
            self.read(_dump(), counted_elsewhere)
        except Exception:  # noqa: BLE001 - a private API: absent, renamed or changed, each costs these counters only
            self._failures += 1
            return
        self._failures = 0
        self._due = now + max(INTERVAL, (perf_counter() - began) / COST_LIMIT)

    def read(self, dump: Mapping[str, Any], counted_elsewhere: Callable[[str, str], bool]) -> None:
        """Add what a dump holds and no earlier one did."""
        entries = dump.get("entries") or []
        if entries and entries[-1]["record_id"] < self._next - 1:  # the recorder began again
            self._next, self._open = 0, {}
        # What was overwritten between two looks is counted as what is left, all of which came meanwhile then.
        missed = max(entries[0]["record_id"] - self._next, 0) if entries and self._next else 0
        weight = 1 + missed / max(len(entries), 1)
        groups = _group_sizes(dump.get("pg_config") or {})
        still_open: dict[int, int] = {}
        for entry in entries:
            number = entry["record_id"]
            looks = self._open.get(number, 0)
            if number < self._next and not looks:
                continue
            group = str(entry["process_group"][0])
            operation, given, moved = _payload(entry)
            if not looks and not counted_elsewhere(operation, group):
                self._add("collectives_total", operation, weight)
                self._add("collective_bytes_total", operation, weight * given)
            if (milliseconds := entry.get("duration_ms")) is not None:
                factor = bus_factor(operation, groups.get(group) or _ranks_of(entry))
                if factor is not None and moved:
                    self._add("collective_seconds_total", operation, weight * milliseconds / 1000)
                    self._add("collective_bus_bytes_total", operation, weight * moved * factor)
            elif not entry.get("retired") and looks + 1 < PATIENCE:
                still_open[number] = looks + 1
        if entries:
            self._next = entries[-1]["record_id"] + 1
        self._open = still_open
        self._waits.read(lengths(entries) if self._waits.chosen else ())

    def _add(self, key: str, operation: str, amount: float) -> None:
        values = self.families[key]
        values[operation] = values.get(operation, 0) + amount


def lengths(entries: Iterable[Entry]) -> list[Length]:
    """Return when each collective was enqueued, and its length.

    A coalesced batch is one: its parts, which never get a length, share the sequence numbers of an entry that does.
    There is no time of a start: what the recorder calls one is when a watchdog noticed it, up to 100 ms later.
    """
    found: dict[tuple[Any, ...], Length] = {}
    for entry in entries:
        launch = entry["process_group"][0], entry["collective_seq_id"], entry["p2p_seq_id"]
        before = found.get(launch)
        enqueued = before.enqueued if before else entry["time_created_ns"] / 1e9
        seconds = before.seconds if before else None
        if (milliseconds := entry.get("duration_ms")) is not None:
            seconds = (seconds or 0.0) + milliseconds / 1000
        found[launch] = Length(enqueued, seconds)
    return list(found.values())


def enable_timing() -> bool:
    """Have NCCL time its collectives; return False where a process group exists, which has read its settings."""
    if not _timing_is_on():
        if in_use("distributed") is not None:
            return False
        os.environ[_TIMING[0]] = "1"
    return True


def _timing_is_on() -> bool:
    return any(os.environ.get(name, "").lower() in _TRUE for name in _TIMING)


def _times_nccl() -> bool:
    """Return whether NCCL is there, in use, and configured to time its collectives."""
    return _timing_is_on() and in_use("distributed") is not None and hasattr(_native(), "_dump_nccl_trace")


def _native() -> Any:  # noqa: ANN401 - a private module of PyTorch
    return getattr(getattr(loaded_torch(), "_C", None), "_distributed_c10d", None)


def _spares_captures() -> bool:
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


def _dump() -> Mapping[str, Any]:
    """Return the recorder's state without stacks, which would take most of a second."""
    native = _native()
    try:
        return parse_pickle(native._dump_nccl_trace(includeCollectives=True, includeStackTraces=False))
    except TypeError:  # another PyTorch takes other arguments; JSON takes twice the time
        dump: Mapping[str, Any] = json.loads(native._dump_nccl_trace_json(includeCollectives=True))
        return dump


def parse_pickle(data: bytes) -> Mapping[str, Any]:
    """Read a dump in pickle's format, which holds plain values only: nothing in it can name a class or a function."""
    import io
    import pickle

    class Plain(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
            raise pickle.UnpicklingError(f"{module}.{name} in a dump")

    dump: Mapping[str, Any] = Plain(io.BytesIO(data)).load()
    return dump


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
