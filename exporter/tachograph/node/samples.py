"""The data that the exporter passes around: one exposed value, a GPU's identity, and one collection of all GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tachograph.catalog.metric import Metric


class Sample(NamedTuple):  # and not a dataclass: hundreds are made each second
    """One exposed value: a catalog row, all its label values in order, and a number in the row's unit."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True)
class GpuIdentity:
    """A GPU of this node; `uuid` and `name` are empty for one that could never be opened."""

    index: str
    uuid: str
    name: str


@dataclass(frozen=True)
class GpuSnapshot:
    """One collection over all GPUs of the node: seconds it took, time.monotonic() of its arrival, why it is not ok.

    `processes` are the pids that compute on each GPU, by its UUID.
    """

    samples: tuple[Sample, ...]
    duration: float
    monotonic: float
    ok: bool
    reason: str
    processes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


Series: TypeAlias = tuple[Metric, tuple[str, ...]]
"""A metric and all its label values."""

Row: TypeAlias = tuple[Series, float]
"""A series and its number, as the worker handles them: what does not change is made once."""


def unzipped(rows: Sequence[Row]) -> tuple[tuple[Series, ...], tuple[float, ...]]:
    """Return the series of these rows, and their numbers."""
    series, values = zip(*rows, strict=True) if rows else ((), ())
    return series, values
