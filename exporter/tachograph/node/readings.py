"""What is read from a GPU: the table of readings, and the samples a collection gives.

Adding an NVML metric is one row in `catalog.py` and one row here: in `FIELDS` if NVML has a field id for it (all
fields of a GPU cost one driver call), else in `CALLS`. Scales turn NVML's units into base units, here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tachograph import catalog
from tachograph.catalog import CLOCK_EVENT_REASONS, Metric
from tachograph.node.nvml import Gpu


@dataclass(frozen=True)
class Sample:
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


@dataclass(frozen=True)
class Value:
    """One number of a reading: its metric, the label values after gpu and uuid, and raw unit -> base unit."""

    metric: Metric
    labels: tuple[str, ...] = ()
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class Call:
    """A driver call and the numbers it gives, in order; None among them is a number this part does not have."""

    read: Callable[[Gpu], Sequence[float | None]]
    slow: bool
    values: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Field:
    """A number that NVML serves by id (nvml.h, NVML_FI_DEV_*)."""

    id: int
    value: Value


FAST, SLOW = False, True
SLOW_SECONDS = 15.0
"""How often what seldom changes is read; the rest is read at each collection."""

RETRY_SECONDS = 600.0
"""How long a reading the part does not have is left alone: a driver update or a MIG switch can bring it."""

PERCENT = 0.01
MILLI = 1e-3
MEGA = 1e6


def _clock_events(gpu: Gpu) -> Sequence[float]:
    bits = gpu.clock_events()
    return [bits >> position & 1 for position in range(len(CLOCK_EVENT_REASONS))]


CALLS: tuple[Call, ...] = (
    Call(
        Gpu.utilization,
        FAST,
        (Value(catalog.GPU_UTILIZATION, (), PERCENT), Value(catalog.GPU_MEMORY_UTILIZATION, (), PERCENT)),
    ),
    Call(
        Gpu.memory,
        FAST,
        (
            Value(catalog.GPU_MEMORY_TOTAL),
            Value(catalog.GPU_MEMORY_USED),
            Value(catalog.GPU_MEMORY_FREE),
            Value(catalog.GPU_MEMORY_RESERVED),
        ),
    ),
    Call(Gpu.temperature, FAST, (Value(catalog.GPU_TEMPERATURE, ("gpu",)),)),
    Call(Gpu.power, FAST, (Value(catalog.GPU_POWER, (), MILLI),)),
    Call(Gpu.clocks, FAST, (Value(catalog.GPU_CLOCK, ("sm",), MEGA), Value(catalog.GPU_CLOCK, ("memory",), MEGA))),
    Call(_clock_events, FAST, tuple(Value(catalog.GPU_CLOCK_EVENT, (reason,)) for reason in CLOCK_EVENT_REASONS)),
    Call(Gpu.power_limit, SLOW, (Value(catalog.GPU_POWER_LIMIT, (), MILLI),)),
    Call(
        Gpu.max_clocks,
        SLOW,
        (Value(catalog.GPU_CLOCK_MAX, ("sm",), MEGA), Value(catalog.GPU_CLOCK_MAX, ("memory",), MEGA)),
    ),
    Call(
        Gpu.temperature_thresholds,
        SLOW,
        (
            Value(catalog.GPU_TEMPERATURE_THRESHOLD, ("slowdown",)),
            Value(catalog.GPU_TEMPERATURE_THRESHOLD, ("shutdown",)),
        ),
    ),
)

FIELDS: tuple[Field, ...] = (
    Field(3, Value(catalog.GPU_ECC_ERRORS, ("corrected", "volatile"))),
    Field(4, Value(catalog.GPU_ECC_ERRORS, ("uncorrected", "volatile"))),
    Field(5, Value(catalog.GPU_ECC_ERRORS, ("corrected", "aggregate"))),
    Field(6, Value(catalog.GPU_ECC_ERRORS, ("uncorrected", "aggregate"))),
    Field(82, Value(catalog.GPU_TEMPERATURE, ("memory",))),
    Field(83, Value(catalog.GPU_ENERGY, (), MILLI)),
)
