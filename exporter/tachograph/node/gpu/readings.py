"""The samples a collection of GPUs gives, which of them are shown unasked, and when readings are due again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from tachograph.catalog import index as catalog
from tachograph.node.gpu.reading_table import ACTIVITIES, CALLS, FIELDS, Value
from tachograph.node.peaks import DTYPES
from tachograph.node.samples import Sample

SLOW_SECONDS = 15.0
"""How often what seldom changes is read; the rest is read at each collection."""

RETRY_SECONDS = 600.0
"""How long a reading the part does not have is left alone: a driver update or a MIG switch can bring it."""


def _values() -> Iterator[Value]:
    for call in CALLS:
        yield from call.values
    yield from (field.value for field in FIELDS)
    yield from (activity.value for activity in ACTIVITIES)


Series: TypeAlias = tuple[str, tuple[str, ...]]
"""What a GPU has one series of: metric name and label values after gpu and uuid."""

DETAIL: frozenset[Series] = frozenset(
    {(value.metric.name, value.labels) for value in _values() if value.detail}
    | {(catalog.GPU_ACHIEVABLE_FLOPS.name, (dtype,)) for dtype in DTYPES if dtype != "bf16"}
    | {
        (metric.name, ())  # one series for each of up to 18 links
        for metric in (
            catalog.GPU_NVLINK_LINK_ACTIVE,
            catalog.GPU_NVLINK_LINK_BYTES,
            catalog.GPU_NVLINK_LINK_ERRORS,
        )
    }
)
"""What is hidden unless the user asks for detail; without label values, the whole family."""

_HELD = catalog.GPU_CLOCK_EVENT_SECONDS.name
STAND_INS: Mapping[Series, tuple[Series, ...]] = {
    (catalog.GPU_SM_ACTIVE.name, ()): ((catalog.GPU_SM_ACTIVE_CYCLES.name, ()),),
    (catalog.GPU_TENSOR_ACTIVE.name, ()): ((catalog.GPU_TENSOR_ACTIVE_CYCLES.name, ()),),
    (_HELD, ("thermal",)): ((_HELD, ("sw_thermal_slowdown",)), (_HELD, ("hw_thermal_slowdown",))),
}
"""What is shown only for a GPU that has none of the better series on the right."""


def is_detail(sample: Sample) -> bool:
    """Return whether a sample is hidden unless the user asks for detail."""
    name = sample.metric.name
    return (name, sample.labels[2:]) in DETAIL or (name, ()) in DETAIL


def shown(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Yield what a user who asked for no detail sees: no detail, and no stand-in beside what it stands in for."""
    better = {series for listed in STAND_INS.values() for series in listed}
    had = {
        (series, sample.labels[:2])
        for sample in samples
        if (series := (sample.metric.name, sample.labels[2:])) in better
    }
    for sample in samples:
        listed = STAND_INS.get((sample.metric.name, sample.labels[2:]), ())
        if not is_detail(sample) and not any((series, sample.labels[:2]) in had for series in listed):
            yield sample


class Unwrapped:
    """A counter that the driver keeps in 32 bits, carried on beyond them.

    A fall from the upper half of its range to the lower one is a wrap. Any other fall is a reset, as by a reload of
    the driver, and is passed on as one, for Prometheus knows what to do with it.
    """

    __slots__ = ("_carry", "_last")
    RANGE = 2**32

    def __init__(self) -> None:
        self._last = 0.0
        self._carry = 0

    def take(self, number: float) -> float:
        """Return the whole count, given what the driver's 32 bits hold now."""
        if number < self._last:
            wrapped = self._last >= self.RANGE / 2 > number
            self._carry = self._carry + self.RANGE if wrapped else 0
        self._last = number
        return self._carry + number
