"""Which series of a rank are shown unasked: at most 45, so that a cluster's Prometheus can hold every rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tachograph.catalog import index as catalog
from tachograph.node.histograms import HistogramSample
from tachograph.node.samples import Sample

DETAIL: frozenset[tuple[str, tuple[str, ...]]] = frozenset(
    (metric.name, ())
    for metric in (
        catalog.TRAIN_PHASE_DEVICE_SECONDS,  # a series for each phase
        catalog.TRAIN_COLLECTIVES,
        catalog.TRAIN_COLLECTIVE_BYTES,  # the bus bytes tell bandwidth
        catalog.TRAIN_COLLECTIVE_COMPLETED,  # the enqueued one names the culprit
        catalog.TRAIN_DATA_WORKER_RESTARTS,
        catalog.TRAIN_LOSS_TRAILING_ZSCORE,
        catalog.TRAIN_LOSS_LOG_ZSCORE,
        catalog.TRAIN_CHECKPOINTS,  # the time and step of the last one tell more
        catalog.TRAIN_CHECKPOINT_SECONDS,  # train_phase_seconds_total has the same
        catalog.TRAIN_CHECKPOINT_BYTES,
        catalog.TRAIN_MEMORY_ALLOCATED,  # the peak says whether it fits, the reserved one what the GPU has left
    )
)
"""Families hidden unless the user asks for detail, in the form of readings.DETAIL: no own labels, so all of each."""

_HIDDEN = frozenset(name for name, _ in DETAIL)


def shown(samples: Iterable[Sample | HistogramSample]) -> Iterator[Sample | HistogramSample]:
    """Yield the samples that are no detail; a phase that a rank never entered is not one of them."""
    for sample in samples:
        metric = sample.metric
        never = metric is catalog.TRAIN_PHASE_SECONDS and isinstance(sample, Sample) and sample.value == 0
        if not never and metric.name not in _HIDDEN:
            yield sample
