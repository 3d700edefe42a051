"""Every GPU that this node has had since the start, and its samples, also while nobody can read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tachograph.catalog.gpu import GPU_PEAK_FLOPS
from tachograph.node.gpu.worker_protocol import STARTING, GpuReading, NodeReading, samples_of
from tachograph.node.peaks import dtype_of
from tachograph.node.samples import GpuIdentity, Sample

_WORDS = {
    "": "unplugged",
    "no_gpu": "unplugged",
    "no_driver": "no_driver",
    "no_device_nodes": "no_driver",
    "no_permission": "no_driver",
    "driver_mismatch": "driver_mismatch",
    "hung": "hung",
    "error": "error",
}
"""Why a GPU that the worker does not mention is down, by the reason of the whole collection."""


class KnownGpus:
    """Takes the worker's collections and completes them: a GPU once seen is there until the exporter ends.

    It is not forgotten, not even when it was unplugged, because the alert on its loss must be able to name it. Nor are
    its Xids, which a worker that takes another's place does not know where the kernel's log cannot be read.
    """

    def __init__(self) -> None:
        self._named: dict[str, GpuReading] = {}  # by UUID, as last read or completed
        self._nameless: tuple[GpuReading, ...] = ()  # those in the last collection that nobody knows
        self._peaks: dict[str, dict[str, float]] = {}  # by UUID and dtype
        self._pids: dict[int, GpuIdentity | None] = {}
        self.processes: Mapping[str, tuple[int, ...]] = {}
        """The pids that the driver listed on each GPU in the last collection, by UUID."""
        self._xids: dict[tuple[str, tuple[str, ...]], Sample] = {}  # by family, and labels but the index
        self._kernel: list[Sample] = []

    @property
    def words(self) -> Mapping[str, str]:
        """Why each GPU that was down in the last collection was so, one of UNAVAILABLE_REASONS, by UUID."""
        return {uuid: gpu.word for uuid, gpu in self._named.items() if gpu.word}

    @property
    def identities(self) -> tuple[GpuIdentity, ...]:
        """Every GPU known since the start, by index, also those that cannot be read now."""
        return tuple(sorted((gpu.identity for gpu in self._all()), key=lambda gpu: int(gpu.index)))

    def peak_flops(self, uuid: str, precision: str) -> float | None:
        """Return a GPU's dense peak FLOP/s at a precision; None for an unknown device or precision and under MIG."""
        return self._peaks.get(uuid, {}).get(dtype_of(precision))

    def of_pid(self, pid: int) -> GpuIdentity | None:
        """Return the GPU that a process computes on; None if NVML lists it nowhere, or on more than one."""
        return self._pids.get(pid)

    def take(self, collection: NodeReading) -> None:
        """Take a collection."""
        listed = {gpu.identity.uuid: gpu for gpu in collection.gpus if gpu.identity.uuid}
        missing = {gpu.identity.index: gpu for uuid, gpu in self._named.items() if uuid not in listed}
        # A GPU that cannot be opened has no UUID; if one is missing at its index, it is that one.
        unnamed = {gpu.identity.index: gpu for gpu in collection.gpus if not gpu.identity.uuid}
        self._nameless = tuple(gpu for index, gpu in unnamed.items() if index not in missing)
        self._keep_peaks(listed)
        self._keep_pids(collection.gpus)
        word = _WORDS.get(collection.collectors["gpu"], "worker")
        for uuid, gpu in (self._named | listed).items():
            found = unnamed.get(gpu.identity.index) if missing.get(gpu.identity.index) is gpu else None
            if found is not None:
                self._named[uuid] = gpu.down((gpu.word or "worker") if found.word == STARTING else found.word)
            elif uuid not in listed or gpu.word == STARTING:
                self._named[uuid] = gpu.down(word)
            else:
                self._named[uuid] = gpu
        for each in samples_of(collection.xid_series, collection.xid_values):
            self._xids[each.metric.name, each.labels[1:]] = each
        self._kernel = samples_of(collection.kernel_series, collection.kernel_values)

    def samples(self) -> list[Sample]:
        """Return the last collection's samples, and those of the GPUs that it did not list."""
        return [*(each for gpu in self._all() for each in gpu.samples()), *self._xids.values(), *self._kernel]

    def down(self, word: str) -> list[Sample]:
        """Return what is shown while no line comes, `word` being the gpu collector's."""
        word = _WORDS.get(word, "worker")
        return [each for gpu in self._all() for each in gpu.down(word).samples()] + list(self._xids.values())

    def _all(self) -> tuple[GpuReading, ...]:
        return (*self._named.values(), *self._nameless)

    def _keep_peaks(self, listed: Mapping[str, GpuReading]) -> None:
        """Take the peaks of GPUs that were read; those of the others stand, or a lost GPU would move a run's MFU."""
        for uuid, gpu in listed.items():
            before = self._named.get(uuid)
            if gpu.series and (before is None or gpu.series is not before.series):
                read = zip(gpu.series, gpu.values, strict=True)
                self._peaks[uuid] = {labels[-1]: peak for (metric, labels), peak in read if metric is GPU_PEAK_FLOPS}

    def _keep_pids(self, gpus: Sequence[GpuReading]) -> None:
        self._pids = {}
        self.processes = {gpu.identity.uuid: gpu.pids for gpu in gpus if gpu.pids}
        for gpu in gpus:
            for pid in gpu.pids:
                self._pids[pid] = None if pid in self._pids else gpu.identity
