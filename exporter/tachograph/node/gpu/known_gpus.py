"""Every GPU this node had since the start, and what is shown of it, also while nobody can read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tachograph.catalog.gpu import GPU_INFO, GPU_PEAK_FLOPS, GPU_UNAVAILABLE, GPU_UP
from tachograph.catalog.index import BY_NAME
from tachograph.node.gpu.worker_line import WorkerLine
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
"""What it means for a GPU that the worker says nothing of, by the word that stands for the whole collection."""

_TOLD = frozenset(metric.name for metric in (GPU_UP, GPU_INFO, GPU_UNAVAILABLE, GPU_PEAK_FLOPS))
"""The few that say how a GPU is."""


class KnownGpus:
    """Takes the worker's lines and completes them: a GPU once seen is there until the exporter ends.

    It is not forgotten earlier, not even when it was unplugged, for the alert on its loss must be able to name it.
    """

    def __init__(self) -> None:
        self._named: dict[str, GpuIdentity] = {}  # by UUID
        self._nameless: tuple[GpuIdentity, ...] = ()  # those in the last line that nobody knows
        self._info: dict[str, Sample] = {}
        self._words: dict[str, str] = {}  # why each that is down was so in the last line
        self._peaks: dict[tuple[str, str], float] = {}
        self._pids: dict[int, GpuIdentity | None] = {}

    @property
    def words(self) -> Mapping[str, str]:
        """Why each GPU that was down in the last line was so, one of UNAVAILABLE_REASONS, by UUID."""
        return self._words

    @property
    def identities(self) -> tuple[GpuIdentity, ...]:
        """Every GPU known since the start, by index, also those that cannot be read now."""
        return tuple(sorted([*self._named.values(), *self._nameless], key=lambda gpu: int(gpu.index)))

    def peak_flops(self, uuid: str, precision: str) -> float | None:
        """Return a GPU's dense peak FLOP/s at a precision; None for an unknown device or precision and under MIG."""
        return self._peaks.get((uuid, dtype_of(precision)))

    def of_pid(self, pid: int) -> GpuIdentity | None:
        """Return the GPU that a process computes on; None if NVML lists it nowhere, or on more than one."""
        return self._pids.get(pid)

    def take(self, line: WorkerLine) -> tuple[Sample, ...]:
        """Return a line's samples, and those of the GPUs that it says nothing of."""
        listed = [GpuIdentity(*identity) for identity in line["gpus"]]
        self._named.update((gpu.uuid, gpu) for gpu in listed if gpu.uuid)
        present = {gpu.uuid for gpu in listed}
        missing = {gpu.index: gpu for gpu in self._named.values() if gpu.uuid not in present}
        # A GPU that cannot be opened tells no UUID; where one is missing at its index, that one it is.
        unnamed = {gpu.index: gpu for gpu in listed if not gpu.uuid}
        self._nameless = tuple(gpu for index, gpu in unnamed.items() if index not in missing)
        samples, told = [], []
        for name, given, value in line["samples"]:
            labels = tuple(given)
            if not labels[1] and labels[0] in missing:
                labels = (labels[0], missing[labels[0]].uuid, *labels[2:])
            sample = Sample(BY_NAME[name], labels, value)
            samples.append(sample)
            if name in _TOLD:
                told.append(sample)
        up = {sample.labels[1] for sample in told if sample.metric is GPU_UP}
        word = _WORDS.get(line["collectors"]["gpu"], "worker")
        for gpu in self._named.values():
            if gpu.uuid not in up:  # an index without a name and without a word is a GPU that is being opened
                down = _down(gpu, self._words.get(gpu.uuid, "worker") if gpu.index in unnamed else word)
                samples += down
                told += down
        self._words = {s.labels[1]: s.labels[2] for s in told if s.metric is GPU_UNAVAILABLE}
        self._keep_peaks(told)
        self._keep_pids(listed, line["processes"])
        return (*samples, *self._missing_info(told))

    def down(self, word: str) -> tuple[Sample, ...]:
        """Return what is shown while no line comes, `word` being the gpu collector's."""
        word = _WORDS.get(word, "worker")
        samples = [sample for gpu in self.identities for sample in _down(gpu, word)]
        return (*samples, *self._missing_info(samples))

    def _missing_info(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return who a GPU is, for those of which the samples do not say it."""
        told = {sample.labels[1]: sample for sample in samples if sample.metric is GPU_INFO}
        self._info.update(told)
        return [sample for uuid, sample in self._info.items() if uuid not in told]

    def _keep_peaks(self, samples: Sequence[Sample]) -> None:
        """Take the peaks of GPUs that were read; those of the others stand, or a lost GPU would move a run's MFU."""
        read = {sample.labels[1] for sample in samples if sample.metric is GPU_UP and sample.value}
        self._peaks = {key: peak for key, peak in self._peaks.items() if key[0] not in read}
        for sample in samples:
            if sample.metric is GPU_PEAK_FLOPS:
                _, uuid, dtype = sample.labels
                self._peaks[uuid, dtype] = sample.value

    def _keep_pids(self, listed: Sequence[GpuIdentity], processes: Mapping[str, Sequence[int]]) -> None:
        self._pids = {}
        for gpu in listed:
            for pid in processes.get(gpu.index, ()):
                self._pids[pid] = None if pid in self._pids else gpu


def _down(gpu: GpuIdentity, word: str) -> tuple[Sample, Sample]:
    labels = (gpu.index, gpu.uuid)
    return Sample(GPU_UP, labels, 0.0), Sample(GPU_UNAVAILABLE, (*labels, word), 1.0)
