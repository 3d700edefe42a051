"""A page of an exporter, parsed: the only place in `top` that knows prometheus_client."""

from __future__ import annotations

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tachograph.catalog.metric import PREFIX, Metric


class ExporterPage:
    """The samples of a page by name; what is not ours is left out."""

    def __init__(self, text: str) -> None:
        """Raise ValueError, or what UNREADABLE has, for what is not in the text format."""
        self._samples: dict[str, list[Sample]] = defaultdict(list)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(PREFIX):
                    self._samples[sample.name].append(sample)

    def of(self, metric: Metric) -> list[Sample]:
        """Return the samples of a family."""
        return self._samples.get(metric.name, [])
