"""On which GPUs the ranks of this node are, and which GPUs compute for nobody that records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from tachograph.catalog import index as catalog
from tachograph.node.clock import Clock
from tachograph.node.peaks import dtype_of, peaks_of
from tachograph.node.ranks.coverage import Coverage, UnrecordedProcesses, by_user
from tachograph.node.ranks.gpu_owners import GpuOwners
from tachograph.node.ranks.gpu_placement import GpuResolver
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import GpuIdentity, GpuSnapshot, Sample

_log = logging.getLogger(__name__)


class GpuFacts(Protocol):
    """The interface of the GPU side to the ranks."""

    def snapshot(self) -> GpuSnapshot | None:
        """Return the last collection, None before the first one."""
        ...

    def gpus(self) -> Sequence[GpuIdentity]:
        """Return the GPUs known on this node, also those that cannot be read now."""
        ...

    def gpu_of_pid(self, pid: int) -> GpuIdentity | None:
        """Return the GPU that a process of this node computes on, None if it is none or more than one."""
        ...

    def processes(self) -> Mapping[str, Sequence[int]]:
        """Return the pids that compute on each GPU, by its UUID."""
        ...

    def peak_flops(self, uuid: str, precision: str) -> float | None:
        """Return a GPU's dense peak FLOP/s, or None if the device is not in the table."""
        ...


class RankGpus:
    """Finds the GPU of each rank, and whose the others are."""

    def __init__(self, gpus: GpuFacts, clock: Clock) -> None:
        self._gpus = gpus
        self._clock = clock
        self._owners = GpuOwners()
        self._coverage = Coverage()
        self._without_peak: set[str] = set()

    def place(self, ranks: Iterable[Rank]) -> None:
        """Find the GPUs of living ranks again: NVML lists a process once it uses CUDA, and pids are reused."""
        processes = self._gpus.processes()
        self._owners.note(processes)
        self._coverage.note(processes, self._clock.monotonic())
        resolver = GpuResolver(self._gpus.gpus(), self._gpus.gpu_of_pid, self._mig_parents, processes)
        for rank in ranks:
            rank.placement.update(resolver, rank.hello, rank.peer.pid, rank.grant)
            self._owners.confirm(rank)
            self._warn_of_missing_peak(rank)

    def peak_flops_of(self, rank: Rank) -> float | None:
        """Return the peak FLOP/s of a rank's device, as it says itself or as known of its GPU."""
        gpu = rank.placement.gpu
        return rank.peak_flops or (None if gpu is None else self._gpus.peak_flops(gpu.uuid, rank.precision))

    def samples(self, ranks: Collection[Rank], dev: set[str]) -> Iterator[Sample]:
        """Yield the rank on each GPU, or one of each user; none that claims a GPU on which the driver lists others.

        Then how many GPUs have none. `dev` has the names of the runs of tier dev.
        """
        placed: dict[str, list[Rank]] = {}
        for rank in ranks:
            if (gpu := rank.placement.gpu) is not None and rank.named is not None:
                placed.setdefault(gpu.uuid, []).append(rank)
        now = self._clock.monotonic()
        for uuid, here in placed.items():
            named = self._owners.named(uuid, here, dev, now)
            for rank in named:
                name = rank.placement.gpu.name if rank.placement.gpu is not None else ""
                yield Sample(catalog.RANK_ON_GPU, (*rank.key, *rank.place, name), rank.ended is None)
                if len(named) > 1:
                    yield Sample(catalog.RANK_SHARES_GPU, (*rank.key, *rank.place), 1)
        if self._coverage.is_known:
            yield Sample(catalog.NODE_UNRECORDED_GPUS, (), len(self._unrecorded(ranks)))

    def unrecorded(self, ranks: Iterable[Rank], user_name: Callable[[int], str]) -> list[UnrecordedProcesses]:
        """Return the processes, by user, on GPUs on which nothing is recorded."""

        def user(pid: int) -> str:
            uid = self._owners.user_of(pid)
            return "" if uid is None else user_name(uid)

        return by_user(self._unrecorded(ranks), self._gpus.gpus(), user)

    def _unrecorded(self, ranks: Iterable[Rank]) -> dict[str, list[int]]:
        placed = (rank.placement for rank in ranks if rank.ended is None)
        recorded = {one.gpu.uuid for one in placed if one.gpu is not None and one.confirmed}
        return self._coverage.unrecorded(recorded, self._clock.monotonic())

    def _warn_of_missing_peak(self, rank: Rank) -> None:
        """Log, once for each device, that its peak is unknown where a rank has no MFU because of it."""
        gpu = rank.placement.gpu
        if gpu is None or not gpu.name or gpu.name in self._without_peak or rank.peak_flops is not None:
            return
        if dtype_of(rank.precision) not in peaks_of(gpu.name):
            self._without_peak.add(gpu.name)
            _log.warning(
                "no peak FLOP/s known, so no MFU: pass peak_flops= to Recorder, or facts.peak_flops in the hello",
                extra={"device": gpu.name, "precision": rank.precision, "run": rank.hello.run},
            )

    def _mig_parents(self) -> Mapping[str, str]:
        snapshot = self._gpus.snapshot()
        rows = [sample.labels for sample in snapshot.samples if sample.metric is catalog.MIG_INFO] if snapshot else []
        return {mig_uuid: uuid for _, uuid, _, mig_uuid, _ in rows}
