"""The samples shown for GPUs: readings without detail, jobs, DCGM's names, and the health of their collectors."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import ALL, FEW, GPU
from tachograph.node.clock import Clock
from tachograph.node.config import Config
from tachograph.node.gpu.conclusions.gpu_conclusions import GpuConclusions
from tachograph.node.gpu.dcgm import dcgm_samples
from tachograph.node.gpu.job_mapping import JobMapping
from tachograph.node.ranks.rank_gpus import GpuFacts
from tachograph.node.samples import GpuIdentity, GpuSnapshot, Sample

_WORDS = {"": "reading", "not_supported": "not on these GPUs"}
"""A collector's state in words, where its reason does not say it."""

_Own: TypeAlias = tuple[str, tuple[str, ...]]
"""A metric name and the label values after gpu and uuid."""

_HELD = catalog.GPU_CLOCK_EVENT_SECONDS.name
_HELD_NOW = catalog.GPU_CLOCK_EVENT.name
_STAND_INS: Mapping[_Own, tuple[_Own, ...]] = {
    (catalog.GPU_SM_ACTIVE.name, ()): ((catalog.GPU_SM_ACTIVE_CYCLES.name, ()),),
    (catalog.GPU_TENSOR_ACTIVE.name, ()): ((catalog.GPU_TENSOR_ACTIVE_CYCLES.name, ()),),
    (catalog.GPU_TEMPERATURE_THRESHOLD.name, ("slowdown",)): ((catalog.GPU_TEMPERATURE_MARGIN.name, ()),),
    (_HELD, ("thermal",)): ((_HELD, ("sw_thermal_slowdown",)), (_HELD, ("hw_thermal_slowdown",))),
}
"""Series that are shown only for a GPU that has none of the better ones on the right."""

_BETTER = {_HELD, *(name for listed in _STAND_INS.values() for name, _ in listed)}
_STANDING_IN = {name for name, _ in _STAND_INS}

_log = logging.getLogger(__name__)


EXPLAINING: Mapping[str, tuple[str, ...]] = {
    catalog.GPU_NVLINKS_DOWN.name: (catalog.GPU_NVLINK_LINKS.name,),
    catalog.GPU_PCIE_SPEED.name: (
        catalog.GPU_PCIE_WIDTH.name, catalog.GPU_PCIE_WIDTH_MAX.name, catalog.GPU_PCIE_GENERATION.name,
        catalog.GPU_PCIE_GENERATION_MAX.name,
    ),
}  # fmt: skip
"""What an alert's text reads of a GPU of which this is concluded: with the fewest series it is shown only then."""


def fewest(samples: Sequence[Sample]) -> list[Sample]:
    """Return what alerts and their texts need: nothing that says that all is well, no power where energy is counted."""
    kept = [sample for sample in samples if sample.metric.labels[:2] != GPU]  # of the node
    samples = [sample for sample in samples if sample.metric.labels[:2] == GPU]
    counted = {labels[1] for metric, labels, _ in samples if metric is catalog.GPU_ENERGY}
    explaining = {(name, labels[1]) for metric, labels, _ in samples for name in EXPLAINING.get(metric.name, ())}
    for sample in samples:
        metric, labels, value = sample
        if not metric.few and (metric.name, labels[1]) not in explaining:
            continue
        if metric.normal in {value, labels[-1]} or (metric is catalog.GPU_POWER and labels[1] in counted):
            continue
        kept.append(sample)
    return kept


def shown(samples: Sequence[Sample]) -> list[Sample]:
    """Return what a user who asked for no detail sees: no detail, and no stand-in beside what it stands in for.

    Of a reason whose seconds are counted, gpu_clock_event_active is shown only while it holds clocks down.
    """
    had = {(metric.name, labels) for metric, labels, _ in samples if metric.name in _BETTER}
    found = []
    for sample in samples:  # no calls here: this is most of a scrape
        metric, labels, value = sample
        detail = metric.detail
        if detail is True or (detail and labels[-1] in detail):
            continue
        if metric.name in _STANDING_IN:
            better = _STAND_INS.get((metric.name, labels[2:]), ())
            if any((name, (*labels[:2], *own)) in had for name, own in better):
                continue
        if not value and metric.name == _HELD_NOW and (_HELD, labels) in had:
            continue
        found.append(sample)
    return found


class GpuReader(GpuFacts, Protocol):
    """The GPU side as the exporter sees it: `GpuSource`, or NoGpus."""

    async def run(self) -> None:
        """Keep readings coming until cancelled."""
        ...

    def collectors(self) -> Mapping[str, str]:
        """Return, for each collector, "" if it succeeds, else one of COLLECTOR_REASONS."""
        ...

    def worker_ends(self) -> Mapping[str, int]:
        """Return how often the worker process exited, by cause."""
        ...


class NoGpus:
    """The GPU side of an exporter with gpu.enabled: false: it has no collector and no GPU."""

    async def run(self) -> None:
        """Return at once: there is nothing to read."""

    def snapshot(self) -> GpuSnapshot | None:
        """Return None."""
        return None

    def gpus(self) -> Sequence[GpuIdentity]:
        """Return no GPU."""
        return ()

    def gpu_of_pid(self, pid: int) -> GpuIdentity | None:
        """Return None."""
        return None

    def processes(self) -> Mapping[str, Sequence[int]]:
        """Return no process."""
        return {}

    def peak_flops(self, uuid: str, precision: str) -> float | None:
        """Return None."""
        return None

    def collectors(self) -> Mapping[str, str]:
        """Return no collector."""
        return {}

    def worker_ends(self) -> Mapping[str, int]:
        """Return no cause."""
        return {}


class ShownGpus:
    """The samples of a GPU side, filtered as configured."""

    def __init__(self, config: Config, source: GpuReader, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._level = config.gpu_series
        self._dcgm_names = config.gpu_dcgm_names
        folder = config.gpu_job_mapping_dir
        self._jobs = JobMapping(folder) if folder is not None else None
        self._jobs_failed = False
        self._conclusions = GpuConclusions()

    def look(self) -> None:
        """Note what conclusions rest on, if it is time to."""
        now = self._clock.monotonic()
        if self._conclusions.is_due(now) and (snapshot := self._source.snapshot()) is not None:
            self._conclusions.look(snapshot, now)

    def clocks(self, on_gpus: Iterable[Sample]) -> Iterable[Sample]:
        """Return at which clocks GPUs work for runs, given the samples of the ranks on GPUs."""
        return self._conclusions.clocks(on_gpus, self._clock.monotonic())

    def snapshot(self) -> GpuSnapshot | None:
        """Return the last collection, and what is concluded of it and of those before."""
        snapshot = self._source.snapshot()
        if snapshot is None:
            return None
        return replace(snapshot, samples=(*snapshot.samples, *self._conclusions.samples(self._clock.monotonic())))

    def samples(self) -> list[Sample]:
        """Return the current samples."""
        snapshot = self.snapshot()
        samples: list[Sample] = []
        if snapshot is not None:
            samples += self._of_level(snapshot.samples)
            if self._dcgm_names:
                samples += dcgm_samples(snapshot.samples)
        samples += self._job_samples()
        samples += self._health(snapshot)
        return samples

    def _of_level(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        if self._level == ALL:
            return samples
        return fewest(shown(samples)) if self._level == FEW else shown(samples)

    def _job_samples(self) -> Iterable[Sample]:
        if self._jobs is None:
            return ()
        try:
            samples = list(self._jobs.samples(self._source.gpus()))
        except Exception:  # noqa: BLE001 - a folder that others write must not take the GPUs off the page
            if not self._jobs_failed:
                _log.exception("job mapping cannot be shown")
            self._jobs_failed = True
            return ()
        self._jobs_failed = False
        return samples

    def _health(self, snapshot: GpuSnapshot | None) -> Iterator[Sample]:
        for collector, reason in self._source.collectors().items():
            yield Sample(catalog.COLLECTOR_SUCCESS, (collector,), not reason)
            if reason:
                yield Sample(catalog.COLLECTOR_UNAVAILABLE, (collector, reason), 1)
        for cause, count in self._source.worker_ends().items():
            yield Sample(catalog.WORKER_ENDS, (cause,), count)
        if snapshot is not None:
            yield Sample(catalog.COLLECTOR_DURATION, ("gpu",), snapshot.duration)
            yield Sample(catalog.COLLECTOR_AGE, ("gpu",), self._clock.monotonic() - snapshot.monotonic)

    def collectors_in_words(self) -> str:
        """Return the state of each collector in words; one that the device does not support is not a fault."""
        states = self._source.collectors().items()
        return ", ".join(f"{name}: {_WORDS.get(word, word.replace('_', ' '))}" for name, word in states) or "none"

    def state(self) -> str:
        """Return in a few words whether GPUs are read."""
        snapshot = self._source.snapshot()
        if not self._source.collectors():
            return "GPUs are left alone"
        if snapshot is None:
            return "no GPU readings yet"
        return "GPUs are read" if snapshot.ok else f"no GPU readings: {snapshot.reason}"
