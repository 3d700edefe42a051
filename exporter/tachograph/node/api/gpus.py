"""The GPUs of `/api/node`, as docs/web.md describes them."""

from __future__ import annotations

from collections.abc import Mapping

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import Metric
from tachograph.node.gpu.conclusions.gpu_status import BROKEN, GpuStatus

HELD = catalog.GPU_CLOCK_EVENT_SECONDS.values
READINGS: Mapping[str, Metric] = {
    "sm_active": catalog.GPU_SM_ACTIVE,
    "tensor_active": catalog.GPU_TENSOR_ACTIVE,
    "utilization": catalog.GPU_UTILIZATION,
    "power_watts": catalog.GPU_POWER,
    "power_limit_watts": catalog.GPU_POWER_LIMIT,
    "memory_used_bytes": catalog.GPU_MEMORY_USED,
    "memory_total_bytes": catalog.GPU_MEMORY_TOTAL,
}


def gpu_answer(gpu: GpuStatus, wall: float) -> dict[str, object]:
    """Return it as `/api/node` has it at a time of the day.

    `held` and `held_seconds` are why and for how long clocks were held down.
    """
    seconds = ((reason, gpu.value(catalog.GPU_CLOCK_EVENT_SECONDS, reason)) for reason in HELD)
    return {
        "gpu": gpu.identity.index,
        "uuid": gpu.identity.uuid,
        "name": gpu.identity.name,
        **{name: gpu.value(metric) for name, metric in READINGS.items()},
        "temperature_celsius": gpu.value(catalog.GPU_TEMPERATURE, "gpu"),
        "held": gpu.held(),
        "held_seconds": {reason: value for reason, value in seconds if value is not None},
        "trouble": [*gpu.reasons(), *(text for kind, text in gpu.faults() if kind == BROKEN)],
        "broken": list(gpu.broken(wall)),
    }
