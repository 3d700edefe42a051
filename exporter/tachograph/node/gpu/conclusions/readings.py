"""The readings of one GPU that conclusions rest on, at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tachograph.catalog.metric import Metric

Finding: TypeAlias = tuple[Metric, tuple[str, ...], float]
"""A metric, its label values after gpu and uuid, and a number."""


@dataclass(frozen=True)
class Readings:
    """By metric, and label values after gpu and uuid; `now` by the monotonic clock."""

    now: float
    values: Mapping[str, Mapping[tuple[str, ...], float]]

    def value(self, metric: Metric) -> float | None:
        """Return a reading without labels of its own; None if there is none."""
        return self.values.get(metric.name, {}).get(())

    def each(self, metric: Metric) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield a family's readings with their label values."""
        yield from self.values.get(metric.name, {}).items()
