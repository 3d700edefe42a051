"""Totals over the ranks of a run on this node, for families without the label `rank` (merged families).

tachograph_train_productive_seconds_total{run="llama-7b"} 28800
tachograph_train_lost_seconds_total{run="llama-7b",cause="data"} 412.5
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tachograph.catalog.train import TRAIN_METRICS
from tachograph.node.samples import Sample


class CounterDelta(NamedTuple):
    """The increase of a counter between two states of a rank: wire key, value of its own label (or ""), number."""

    key: str
    label: str
    number: float


class RunTotals:
    """Sums over the ranks of a run; they never fall, even if a rank leaves or its successor starts at 0."""

    def __init__(self, totals: Mapping[str, Mapping[str, float]] = MappingProxyType({})) -> None:
        self._totals = {
            key: {label: number for label, number in values.items() if label in (row.values or ("",))}
            for key, values in totals.items()
            if (row := TRAIN_METRICS.get(key)) is not None and row.merged
        }

    def add(self, deltas: Iterable[CounterDelta]) -> None:
        """Add the increases of a rank, except where a sum would exceed the range of a double."""
        for key, label, number in deltas:
            totals = self._totals.get(key)
            if totals is None:
                # A counter that appears at 1 has increase() == 0, so known label values start at 0.
                totals = self._totals[key] = dict.fromkeys(TRAIN_METRICS[key].values, 0.0)
            total = totals.get(label, 0.0) + number
            if math.isfinite(total):
                totals[label] = total

    def copy(self) -> dict[str, dict[str, float]]:
        """Return the sums by wire key and label value."""
        return {key: dict(values) for key, values in self._totals.items()}

    def samples(self, run: str) -> Iterator[Sample]:
        """Yield the sums as samples."""
        for key, totals in self._totals.items():
            metric = TRAIN_METRICS[key]
            for label, total in totals.items():
                yield Sample(metric, (run,) if metric.own_label is None else (run, label), total)
