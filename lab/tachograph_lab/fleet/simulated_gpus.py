"""Simulated GPUs in place of NVML: their readings follow from their ranks' work and the scenario's faults.

Utilization is 100 % while any kernel is running, even one that only waits for an all-reduce. Levels are those of SXM
boards in training: 660 W and 62 °C when computing, 380 W when waiting, 110 W when idle. The driver is one that counts
SM cycles (595 and newer).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import Metric
from tachograph.node.peaks import dtype_of, peaks_of
from tachograph.node.samples import GpuIdentity, GpuSnapshot, Sample
from tachograph.node.xid import xid_table
from tachograph_lab.scenario import Fleet, Scenario
from tachograph_lab.scenario.faults import Ecc, Fault, HungGpu, LoggedXid, LostGpu, RecoveryAction, ThrottledGpus

CLOCK = 1.755e9
SM_COUNT = 132
IDLE_WATTS, COMPUTE_WATTS, WAIT_WATTS, LIMIT_WATTS = 110.0, 660.0, 380.0, 700.0
THROTTLED_CELSIUS, SLOWDOWN_CELSIUS = 84.0, 87.0
COMPUTE_SM_ACTIVE, WAIT_SM_ACTIVE, TENSOR_ACTIVE = 0.93, 0.25, 0.48
"""Shares of the SMs; NCCL's kernels spin on a quarter of them."""

CONTEXT_BYTES = 1.6e9
"""Memory that CUDA and NCCL use beside PyTorch's allocator."""

_MEMORY_BYTES = (("H200", 150.1e9), ("B200", 192.0e9), ("80GB", 85.5e9), ("H100", 85.5e9), ("40GB", 42.9e9))
_EVENTS = ("sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
_HELD_BY = {"thermal": "sw_thermal_slowdown", "power": "sw_power_cap"}


_xids = cache(xid_table.load)


class GpuWork(NamedTuple):
    """The work of the GPUs by rank: what they do now, seconds since the start, bytes now."""

    now: float
    computing: Sequence[bool]
    waiting: Sequence[bool]
    computed: Sequence[float]
    waited: Sequence[float]
    reserved: Sequence[float]


def memory_of(name: str) -> float:
    """Return the memory of a board of this name in bytes; 80 GB if the name does not say."""
    return next((size for part, size in _MEMORY_BYTES if part in name), 85.5e9)


def uuid_of(fleet: Fleet, rank: int) -> str:
    """Return the UUID of a rank's GPU, derived from run and rank, and where the run does not begin at node 0, GPU 0."""
    begins = fleet.first_node, fleet.first_gpu
    run = fleet.run if begins == (0, 0) else f"{fleet.run} {begins}"
    number = sum(ord(letter) * 31**place for place, letter in enumerate(run)) * 100_003 + rank
    digits = f"{number * 0x9E3779B97F4A7C15 % 2**128:032x}"
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class SimulatedGpus:
    """The GPUs of one node, as the exporter's GPU side (`node.shown_gpus.GpuReader`).

    `work` returns the work of the whole fleet; `monotonic` stamps the readings and must be the exporter's own clock.
    """

    def __init__(
        self, scenario: Scenario, node: int, work: Callable[[], GpuWork], epoch: float, monotonic: Callable[[], float]
    ) -> None:
        fleet = scenario.fleet
        self.monotonic = monotonic
        self._epoch = epoch
        self._work = work
        self._node = node
        first = node * fleet.gpus_per_node
        self._ranks = range(first, first + fleet.gpus_per_node)
        self._identities = tuple(
            GpuIdentity(str(fleet.gpu_of(rank)), uuid_of(fleet, rank), fleet.gpu) for rank in self._ranks
        )
        spread = np.random.default_rng([scenario.seed, 3, node]).standard_normal((len(self._ranks), 3)).clip(-2, 2)
        self._spread = spread.tolist()
        self._uuids = {gpu.uuid for gpu in self._identities}
        self._by_index = {int(gpu.index): gpu for gpu in self._identities}
        self._peaks = peaks_of(fleet.gpu)
        self._memory = memory_of(fleet.gpu)
        self._faults = {
            rank: [each for each in scenario.faults if isinstance(each, _KINDS) and rank in _ranks(each)]
            for rank in self._ranks
        }
        self._xids = _xids()
        self._still = [tuple(self._constant(place)) for place in range(len(self._ranks))]
        self._snapshot: GpuSnapshot | None = None
        self._read_at = math.nan

    async def run(self) -> None:
        """Return at once: readings are computed on demand."""

    def snapshot(self) -> GpuSnapshot | None:
        """Return the readings now."""
        work = self._work()
        if self._snapshot is None or self._read_at != work.now:
            self._read_at = work.now
            samples = tuple(sample for place in range(len(self._ranks)) for sample in self._gpu(place, work))
            down = {self._down(rank, work.now) for rank in self._ranks}
            reason = "" if "" in down else "hung" if "hung" in down else "error"
            self._snapshot = GpuSnapshot(samples, 0.012, self.monotonic(), not reason, reason)
        return self._snapshot

    def gpus(self) -> Sequence[GpuIdentity]:
        """Return the GPUs of this node."""
        return self._identities

    def gpu_of_pid(self, pid: int) -> GpuIdentity | None:
        """Return the GPU of the rank with this pid, which ends with the GPU's index (`rank_processes`)."""
        return self._by_index.get(pid % 1000)

    def processes(self) -> Mapping[str, Sequence[int]]:
        """Return no process: which rank is where is what `gpu_of_pid` says."""
        return {}

    def peak_flops(self, uuid: str, precision: str) -> float | None:
        """Return the peak of a GPU of this node."""
        return self._peaks.get(dtype_of(precision)) if uuid in self._uuids else None

    def collectors(self) -> Mapping[str, str]:
        """Return the failure reason of each collector, empty if it works."""
        snapshot = self.snapshot()
        reason = snapshot.reason if snapshot is not None else "starting"
        return {"gpu": reason, "gpm": reason, "xid": ""}

    def worker_ends(self) -> Mapping[str, int]:
        """Return zero for every cause: there is no worker that could end."""
        return dict.fromkeys(catalog.WORKER_END_CAUSES, 0)

    def _down(self, rank: int, now: float) -> str:
        """Return why a rank's GPU cannot be read, empty if it can."""
        for fault in self._faults[rank]:
            if isinstance(fault, (LostGpu, HungGpu)) and fault.at <= now < fault.until:
                return "lost" if isinstance(fault, LostGpu) else "hung"
        return ""

    def _gpu(self, place: int, work: GpuWork) -> Iterator[Sample]:
        identity, rank = self._identities[place], self._ranks[place]
        gpu = (identity.index, identity.uuid)
        yield from self._xid_samples(gpu, rank, work.now)
        info = self._still[place][0]
        if reason := self._down(rank, work.now):
            yield Sample(catalog.GPU_UP, gpu, 0.0)
            yield Sample(catalog.GPU_UNAVAILABLE, (*gpu, reason), 1.0)
            yield info
            return
        yield Sample(catalog.GPU_UP, gpu, 1.0)
        yield Sample(catalog.GPU_READINGS_FAILED, gpu, 0.0)
        yield from self._still[place]
        for metric, labels, value in self._moving(place, rank, work):
            yield Sample(metric, (*gpu, *labels), value)

    def _moving(self, place: int, rank: int, work: GpuWork) -> Iterator[tuple[Metric, tuple[str, ...], float]]:
        computing, waiting = work.computing[rank], work.waiting[rank]
        computed, waited = work.computed[rank], work.waited[rank]
        busy = computing or waiting
        hot, fast, hungry = self._spread[place]
        held: dict[str, float] = dict.fromkeys(_EVENTS, 0.0)
        active: set[str] = set()
        factor = 1.0
        for fault in self._faults[rank]:
            if isinstance(fault, ThrottledGpus) and fault.at <= work.now:
                reason = _HELD_BY[fault.cause]
                held[reason] += min(work.now, fault.until) - fault.at
                if work.now < fault.until:
                    active.add(reason)
                    factor = fault.to
        clock = CLOCK * (1 + 0.003 * fast) * factor
        celsius = 62 + 2 * hot if computing else 55 + 2 * hot if waiting else 38 + 2 * hot
        if "sw_thermal_slowdown" in active:
            celsius = THROTTLED_CELSIUS
        watts = COMPUTE_WATTS if computing else WAIT_WATTS if waiting else IDLE_WATTS
        watts = min(LIMIT_WATTS, watts * (1 + 0.015 * hungry)) * (1 if factor == 1 else factor)
        joules = IDLE_WATTS * work.now + (COMPUTE_WATTS - IDLE_WATTS) * computed + (WAIT_WATTS - IDLE_WATTS) * waited
        cycles = CLOCK * SM_COUNT
        used = work.reserved[rank] + (CONTEXT_BYTES if work.reserved[rank] else 0.5e9)
        sent = 30e9 * (computed + waited)
        ecc = [fault for fault in self._faults[rank] if isinstance(fault, Ecc) and fault.at <= work.now]
        yield catalog.GPU_UTILIZATION, (), float(busy)
        yield catalog.GPU_MEMORY_USED, (), used
        yield catalog.GPU_TEMPERATURE, ("gpu",), float(round(celsius))
        yield catalog.GPU_TEMPERATURE_MARGIN, (), float(round(SLOWDOWN_CELSIUS - celsius))
        yield catalog.GPU_POWER, (), watts
        yield catalog.GPU_ENERGY, (), joules * (1 + 0.015 * hungry)
        yield catalog.GPU_CLOCK, ("sm",), clock
        for reason in _EVENTS:
            if reason in active:
                yield catalog.GPU_CLOCK_EVENT, (reason,), 1.0
            yield catalog.GPU_CLOCK_EVENT_SECONDS, (reason,), held[reason]
        yield catalog.GPU_SM_CYCLES, (), cycles * work.now
        yield catalog.GPU_SM_ACTIVE_CYCLES, (), cycles * (COMPUTE_SM_ACTIVE * computed + WAIT_SM_ACTIVE * waited)
        yield catalog.GPU_TENSOR_ACTIVE_CYCLES, (), cycles * TENSOR_ACTIVE * computed
        yield catalog.GPU_NVLINK_BYTES, ("transmit",), sent
        yield catalog.GPU_ECC_ERRORS, ("uncorrected", "volatile"), float(len(ecc))
        yield catalog.GPU_REMAPPED_ROWS, ("uncorrected",), 0.0
        yield catalog.GPU_ROW_REMAP_PENDING, (), float(bool(ecc))
        needed = [
            each.action
            for each in self._faults[rank]
            if isinstance(each, RecoveryAction) and each.at <= work.now < each.until
        ]
        yield catalog.GPU_RECOVERY_ACTION, (needed[0] if needed else "gpu_reset" if ecc else "none",), 1.0

    def _constant(self, place: int) -> Iterator[Sample]:
        """Yield the samples of a GPU that never change, GPU_INFO first."""
        identity = self._identities[place]
        gpu = (identity.index, identity.uuid)
        serial = f"16502230{self._ranks[place]:05d}"
        bus = f"00000000:{0x18 + 0x10 * place:02X}:00.0"
        labels = (*gpu, identity.name, bus, serial, "96.00.89.00.01", "595.45.04", "13.2")
        yield Sample(catalog.GPU_INFO, labels, 1.0)
        rows: list[tuple[Metric, tuple[str, ...], float]] = [
            (catalog.GPU_MEMORY_TOTAL, (), self._memory),
            (catalog.GPU_POWER_LIMIT, (), LIMIT_WATTS),
            (catalog.GPU_ECC_ERRORS, ("corrected", "volatile"), 0.0),
            (catalog.GPU_SRAM_THRESHOLD, (), 0.0),
            (catalog.GPU_ROW_REMAP_FAILED, (), 0.0),
            (catalog.GPU_PCIE_REPLAYS, (), 0.0),
            (catalog.GPU_PCIE_GENERATION, (), 5.0),
            (catalog.GPU_PCIE_GENERATION_MAX, (), 5.0),
            (catalog.GPU_PCIE_WIDTH, (), 16.0),
            (catalog.GPU_PCIE_WIDTH_MAX, (), 16.0),
            (catalog.GPU_NVLINK_LINKS, (), 18.0),
            (catalog.GPU_NVLINK_LINKS_ACTIVE, (), 18.0),
            (catalog.GPU_FABRIC_READY, (), 1.0),
            *((catalog.GPU_NVLINK_ERRORS, (error,), 0.0) for error in ("crc_flit", "replay", "recovery")),
        ]
        yield from (Sample(metric, (*gpu, *labels), value) for metric, labels, value in rows)

    def _xid_samples(self, gpu: tuple[str, str], rank: int, now: float) -> Iterator[Sample]:
        seen: dict[int, list[float]] = {}
        for fault in self._faults[rank]:
            if isinstance(fault, LoggedXid) and fault.at <= now:
                seen.setdefault(fault.number, []).append(fault.at)
        for number, times in sorted(seen.items()):
            labels, row = (*gpu, str(number)), self._xids.of(number)
            yield Sample(catalog.GPU_XID_ERRORS, labels, float(len(times)))
            yield Sample(catalog.GPU_XID_TIMESTAMP, labels, self._epoch + max(times))
            yield Sample(catalog.GPU_XID_INFO, (*labels, row.action, row.meaning), 1.0)


_KINDS = (ThrottledGpus, Ecc, LoggedXid, LostGpu, HungGpu, RecoveryAction)


def _ranks(fault: Fault) -> Sequence[int]:
    if isinstance(fault, ThrottledGpus):
        return fault.ranks
    return (fault.rank,) if isinstance(fault, (Ecc, LoggedXid, LostGpu, HungGpu, RecoveryAction)) else ()
