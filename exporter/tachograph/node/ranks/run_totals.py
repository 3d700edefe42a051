"""What all ranks of a run counted on this node, where nobody asks for each rank alone: merged families.

tachograph_train_productive_seconds_total{run="llama-7b"} 28800
tachograph_train_lost_seconds_total{run="llama-7b",cause="data"} 412.5
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tachograph.catalog.rank import TRAIN_METRICS
from tachograph.node.samples import Sample


class CounterDelta(NamedTuple):
    """What a rank counted between two of its states: wire key, value of its own label ("" without one), number."""

    key: str
    label: str
    number: float


class RunTotals:
    """Sums over the ranks of a run; they only grow, also when a rank leaves or its successor counts from nothing."""

    def __init__(self, totals: Mapping[str, Mapping[str, float]] = MappingProxyType({})) -> None:
        self._totals = {
            key: {label: number for label, number in values.items() if label in (row.values or ("",))}
            for key, values in totals.items()
            if (row := TRAIN_METRICS.get(key)) is not None and row.merged
        }

    def add(self, deltas: Iterable[CounterDelta]) -> None:
        """Add what a rank counted; what would take a sum beyond the range of a double is left out."""
        for key, label, number in deltas:
            totals = self._totals.get(key)
            if totals is None:
                # A counter born at 1 has increase() == 0, so fixed label values start at 0.
                totals = self._totals[key] = dict.fromkeys(TRAIN_METRICS[key].values, 0.0)
            total = totals.get(label, 0.0) + number
            if math.isfinite(total):
                totals[label] = total

    def copy(self) -> dict[str, dict[str, float]]:
        """Return the sums by wire key and label value."""
        return {key: dict(values) for key, values in self._totals.items()}

    def samples(self, run: str) -> Iterator[Sample]:
        """Yield the sums as they are exposed."""
        for key, totals in self._totals.items():
            metric = TRAIN_METRICS[key]
            for label, total in totals.items():
                yield Sample(metric, (run,) if metric.own_label is None else (run, label), total)
