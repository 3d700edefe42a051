"""Closed rows of "Node and GPU" for those who tune a model or share a GPU: what a GPU spends its cycles on, and MIG."""

from __future__ import annotations

from culprits import ROWS
from hosts import of_gpus
from panels import UNITS, Json, bar_cells, lines, override, query, table
from tachograph.catalog import index as c

NOT_ALL = "not collected: the exporter runs without --gpu.series=all, or the part does not count it"
NO_MIG = "No chosen GPU is divided into MIG instances."
WHOLE = 1.0


def tuning() -> list[Json]:
    """Return what the chosen GPUs' cycles and memory cycles go into, on average."""
    return [
        lines("Pipes and occupancy", UNITS["ratio"], "Share of cycles in which each arithmetic pipe works, warps on an "
              "SM out of those it can hold, and time in which the engine is busy; averages of the chosen GPUs. High "
              "pipes are good. A busy engine with idle pipes waits for memory.",
              [query(f"avg by (pipe) ({of_gpus(c.GPU_PIPE_ACTIVE)})", "{{pipe}}"),
               query(f"avg({of_gpus(c.GPU_SM_OCCUPANCY)})", "occupancy"),
               query(f"avg({of_gpus(c.GPU_ENGINE_ACTIVE)})", "engine busy")], NOT_ALL, min=0, max=1, w=12),
        lines("Memory bandwidth", UNITS["ratio"], "Share of the device memory's peak bandwidth in use, and share of "
              "time in which it was read or written at all; averages of the chosen GPUs. A share near 1 with idle "
              "pipes: memory limits the model; fuse kernels, or use smaller types.",
              [query(f"avg({of_gpus(c.GPU_DRAM_ACTIVE)})", "of its peak"),
               query(f"avg({of_gpus(c.GPU_MEMORY_UTILIZATION)})", "busy")], NOT_ALL, min=0, max=1, w=12),
    ]  # fmt: skip


def mig() -> Json:
    """Return the idlest MIG instances of the chosen GPUs."""
    one = "by (instance, gpu, uuid, mig)"
    active = f"max {one} ({of_gpus(c.MIG_SM_ACTIVE)})"
    chosen = f"bottomk({ROWS}, {active} or 0 * max {one} ({of_gpus(c.MIG_INFO)}))"
    asked = (
        f"{of_gpus(c.MIG_INFO)} and on (instance, gpu, uuid, mig) {chosen}",
        f"{active} and {chosen}",
        *(
            f"max {one} ({of_gpus(metric)}) and {chosen}"
            for metric in (c.MIG_TENSOR_ACTIVE, c.MIG_DRAM_ACTIVE, c.MIG_MEMORY_USED, c.MIG_MEMORY_TOTAL)
        ),
    )
    shares = {"Value #B": "SM activity", "Value #C": "Tensor activity", "Value #D": "Memory bandwidth"}
    sizes = {"Value #E": "Memory used", "Value #F": "Memory"}
    columns = {"instance": "Node", "gpu": "GPU", "mig": "Instance", "profile": "Profile", **shares, **sizes}
    made = table(
        "MIG instances, idlest first",
        f"The {ROWS} idlest instances of the chosen GPUs: how busy the instance's own part is, and its memory. All "
        "alike is good if they do the same work. One idle: nobody uses it, or its program waits.",
        [query(expression, table=True) for expression in asked],
        NO_MIG,
        columns,
        overrides=[
            override("GPU", custom__width=55),
            *(bar_cells(name, WHOLE, unit=UNITS["ratio"], decimals=0) for name in shares.values()),
            *(override(name, unit=UNITS["bytes"], custom__width=110) for name in sizes.values()),
        ],
        sort=[{"displayName": "SM activity", "desc": False}],
        w=24,
        h=10,
    )
    made["transformations"][:0] = [{"id": "merge", "options": {}}]
    return made
