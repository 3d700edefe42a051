"""Which series of a rank are shown unasked: at most 45, so that a cluster's Prometheus can hold every rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tachograph.catalog import index as catalog
from tachograph.node.histograms import HistogramSample
from tachograph.node.samples import Sample


def shown(samples: Iterable[Sample | HistogramSample]) -> Iterator[Sample | HistogramSample]:
    """Yield the samples that are no detail; a phase that a rank never entered is not one of them."""
    for sample in samples:
        metric = sample.metric
        never = metric is catalog.TRAIN_PHASE_SECONDS and isinstance(sample, Sample) and sample.value == 0
        if not never and not metric.is_detail(sample.labels):
            yield sample
