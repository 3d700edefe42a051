"""The data that the exporter passes around: one exposed value, a GPU's identity, one collection of all GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tachograph.catalog.metric import COUNTER, Metric


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
    """One collection over all GPUs of the node: seconds it took, time.monotonic() of its arrival, why it is not ok."""

    samples: tuple[Sample, ...]
    duration: float
    monotonic: float
    ok: bool
    reason: str


Row: TypeAlias = tuple[str, tuple[str, ...], float]
"""A sample as the worker writes it: metric name, all label values, number."""


def believable(metric: Metric, number: float) -> bool:
    """Return whether a number can be what a metric counts: finite, and, for what only grows, not below zero."""
    return math.isfinite(number) and (number >= 0 or metric.kind != COUNTER)
