"""The GPUs of a run worth looking at, from Prometheus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tachograph.catalog import index as c
from tachograph.diagnosis import POWER_BRAKE, POWER_CAP, THERMAL
from tachograph.servers.prometheus_api import Prometheus, TimeSeries
from tachograph.top import queries
from tachograph.top.overview import FiringAlert, GpuRow, RankRow, fault

SLOWDOWNS = {
    "node:gpu_thermal_slowdown:ratio": THERMAL,
    "node:gpu_power_braked:ratio": POWER_BRAKE,
    "node:gpu_power_capped:ratio": POWER_CAP,
}


def run_gpus(
    prometheus: Prometheus, run: str, most: int, ranks: Iterable[RankRow], alerts: Sequence[FiringAlert]
) -> tuple[GpuRow, ...]:
    """Return the GPUs that alerts name, that are slowed down, under the worst ranks, and the idlest; worst first."""
    holders: dict[str, set[int]] = defaultdict(set)
    chosen: dict[str, None] = {alert.uuid: None for alert in alerts if alert.uuid}
    idle = []
    for one in prometheus.instant(queries.worst_gpus(run, most)):
        uuid = one.labels["uuid"]
        holders[uuid].add(int(one.labels["rank"]))
        if one.labels["mark"] == "idle":
            idle.append(uuid)
        else:
            chosen[uuid] = None
    for rank in ranks:
        if rank.uuid:
            chosen[rank.uuid] = None
            holders[rank.uuid].add(rank.rank)
    uuids = list(dict.fromkeys([*chosen, *idle]))[:most]
    if not uuids:
        return ()
    found: dict[tuple[str, str], list[TimeSeries]] = defaultdict(list)
    for one in prometheus.instant(queries.of_gpus(uuids)):
        found[one.labels["instance"], one.labels["uuid"]].append(one)
    gpus = [_gpu(node, uuid, series, holders[uuid], alerts) for (node, uuid), series in found.items()]
    return tuple(sorted(gpus, key=lambda gpu: gpu.badness, reverse=True))


def _gpu(node: str, uuid: str, found: list[TimeSeries], ranks: Iterable[int], alerts: Iterable[FiringAlert]) -> GpuRow:
    values = {one.labels["__name__"]: one.value for one in found if one.labels.get("sensor", "gpu") == "gpu"}
    faults = (fault(one.labels["__name__"], one.labels, one.value) for one in found)
    return GpuRow(
        node=node,
        gpu=next((one.labels["gpu"] for one in found if "gpu" in one.labels), ""),
        uuid=uuid,
        name=next((one.labels.get("name", "") for one in found if one.labels["__name__"] == c.GPU_INFO.name), ""),
        ranks=tuple(sorted(ranks)),
        sm_active=values.get("node:gpu_sm_active:ratio"),
        tensor_active=values.get("node:gpu_tensor_active:ratio"),
        utilization=values.get(c.GPU_UTILIZATION.name),
        temperature_celsius=values.get(c.GPU_TEMPERATURE.name),
        power_watts=values.get("node:gpu_power:watts"),
        power_limit_watts=values.get(c.GPU_POWER_LIMIT.name),
        memory_used_bytes=values.get(c.GPU_MEMORY_USED.name),
        memory_total_bytes=values.get(c.GPU_MEMORY_TOTAL.name),
        throttling={what: min(1.0, values[name]) for name, what in SLOWDOWNS.items() if name in values},
        trouble=tuple(dict.fromkeys(each for each in faults if each)),
        alerts=tuple(alert.name for alert in alerts if alert.uuid == uuid),
    )
