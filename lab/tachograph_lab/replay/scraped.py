"""A scraped page as Prometheus stores it: series, and their value at each scrape.

As in Prometheus, a series that has vanished from its page, or whose scrape fails, is marked stale at that scrape and is
absent afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tachograph.node.histograms import BOUNDS, HistogramSample

if TYPE_CHECKING:
    from tachograph.node.samples import Sample

Values: TypeAlias = NDArray[np.float64]
Row: TypeAlias = tuple[str, Mapping[str, str], float]
"""A sample of another exporter: name, labels, value."""

MISSING, STALE = np.array([0x7FF8000000000101, 0x7FF8000000000102], np.uint64).view(np.float64).tolist()
"""Two NaNs that no sample has: no value at this scrape, and the marker of a series' end. Compare with `is_a`."""

_EDGES = (*map(repr, BOUNDS), "+Inf")


def is_a(mark: float, values: Values) -> NDArray[np.bool_]:
    """Return where `values` are MISSING or STALE, bit for bit."""
    equal: NDArray[np.bool_] = values.view(np.uint64) == np.float64(mark).view(np.uint64)
    return equal


class ScrapedSeries(NamedTuple):
    """A name, its labels, and a value for each scrape; `first` is the grid step of the first one."""

    name: str
    labels: Mapping[str, str]
    values: Values
    first: int = 0


class Target:
    """One scraped page: its series with the target's labels; metrics whose name is not in `kept` are dropped.

    `first` is the grid step of its first scrape.
    """

    def __init__(self, job: str, instance: str, kept: Collection[str], first: int = 0) -> None:
        self.first = first
        self._labels = {"job": job, "instance": instance}
        self._kept = kept
        self._up: list[float] = []
        self._rows: list[Values] = []
        self._columns: dict[object, int] = {}
        self._names: list[tuple[str, dict[str, str]]] = []

    def scrape_exporter(self, samples: Iterable[Sample | HistogramSample] | None) -> None:
        """Add a page of our exporter; None is a failed scrape."""
        row = self._row(samples is not None)
        columns = self._columns
        for sample in samples or ():
            metric, labels = sample.metric, sample.labels
            if isinstance(sample, HistogramSample):
                self._histogram(sample, row)
                continue
            key = (metric.name, labels)
            column = columns.get(key)
            if column is None:
                column = self._column(key, metric.name, dict(zip(metric.labels, labels, strict=True)), row)
            if column >= 0:
                row[column] = sample.value
        self._close(row)

    def scrape(self, rows: Iterable[Row] | None) -> None:
        """Add a page of another exporter; None is a failed scrape."""
        row = self._row(rows is not None)
        for name, labels, value in rows or ():
            self._put((name, *sorted(labels.items())), name, labels, value, row)
        self._close(row)

    def leave(self) -> None:
        """Note that the page is no target at this moment: its series end, `up` included, and no scrape is missed."""
        was_target = bool(self._up) and not (is_a(MISSING, last := np.array(self._up[-1:])) | is_a(STALE, last))[0]
        row = self._row(False)
        self._up[-1] = STALE if was_target else MISSING
        self._close(row)

    def series(self) -> Iterator[ScrapedSeries]:
        """Yield `up` and every kept series."""
        yield ScrapedSeries("up", self._labels, np.array(self._up), self.first)
        if self._names:
            table = np.full((len(self._names), len(self._rows)), MISSING)
            for i, row in enumerate(self._rows):
                table[: len(row), i] = row
            for (name, labels), values in zip(self._names, table, strict=True):
                yield ScrapedSeries(name, {**labels, **self._labels}, values, self.first)

    def _row(self, up: bool) -> list[float]:
        self._up.append(float(up))
        return [MISSING] * len(self._names)

    def _histogram(self, sample: HistogramSample, row: list[float]) -> None:
        name = sample.metric.name
        labels = dict(zip(sample.metric.labels, sample.labels, strict=True))
        for edge, count in zip(_EDGES, sample.cumulative, strict=True):
            self._put((name, sample.labels, edge), f"{name}_bucket", labels | {"le": edge}, count, row)
        self._put((name, sample.labels, "sum"), f"{name}_sum", labels, sample.sum, row)
        self._put((name, sample.labels, "count"), f"{name}_count", labels, sample.cumulative[-1], row)

    def _put(self, key: object, name: str, labels: Mapping[str, str], value: float, row: list[float]) -> None:
        column = self._columns.get(key)
        if column is None:
            column = self._column(key, name, labels, row)
        if column >= 0:
            row[column] = value

    def _column(self, key: object, name: str, labels: Mapping[str, str], row: list[float]) -> int:
        """Return the column of a new series, -1 if it is not kept."""
        column = -1
        if name in self._kept:
            column = len(self._names)
            self._names.append((name, {label: value for label, value in labels.items() if value}))
            row.append(MISSING)
        self._columns[key] = column
        return column

    def _close(self, row: list[float]) -> None:
        values = np.array(row, np.float64)
        if self._rows:
            before = self._rows[-1]
            ended = is_a(MISSING, values[: len(before)]) & ~is_a(MISSING, before) & ~is_a(STALE, before)
            values[: len(before)][ended] = STALE
        self._rows.append(values)
