"""The GPUs of a node, from its exporter's page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tachograph.catalog import index as c
from tachograph.diagnosis import slowdown_cause
from tachograph.top.exporter_page import ExporterPage
from tachograph.top.overview import GpuRow, RankRow, fault
from tachograph.top.rates import CounterHistory, GpuCounters, GpuKey


def counters(page: ExporterPage) -> Mapping[GpuKey, GpuCounters]:
    """Return the counters of each GPU."""
    held: dict[GpuKey, dict[str, float]] = defaultdict(dict)
    for sample in page.of(c.GPU_CLOCK_EVENT_SECONDS):
        held[_key(sample.labels)][sample.labels["reason"]] = sample.value
    cycles, active, tensor = (
        _values(page, each) for each in (c.GPU_SM_CYCLES, c.GPU_SM_ACTIVE_CYCLES, c.GPU_TENSOR_ACTIVE_CYCLES)
    )
    return {
        key: GpuCounters(cycles.get(key), active.get(key), tensor.get(key), held.get(key, {}))
        for key in _values(page, c.GPU_INFO)
    }


def gpus(page: ExporterPage, history: CounterHistory, ranks: Iterable[RankRow]) -> tuple[GpuRow, ...]:
    """Return the GPUs, the worst first."""
    names = {_key(s.labels): s.labels["name"] for s in page.of(c.GPU_INFO)}
    holders: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        if rank.uuid and rank.state in {"running", "frozen"}:
            holders[rank.uuid].append(rank.rank)
    sm, tensor, utilization, power, limit, used, total = (
        _values(page, each)
        for each in (
            c.GPU_SM_ACTIVE, c.GPU_TENSOR_ACTIVE, c.GPU_UTILIZATION, c.GPU_POWER, c.GPU_POWER_LIMIT, c.GPU_MEMORY_USED,
            c.GPU_MEMORY_TOTAL,
        )
    )  # fmt: skip
    heat = {_key(s.labels): s.value for s in page.of(c.GPU_TEMPERATURE) if s.labels["sensor"] == "gpu"}
    faults, throttling = _faults(page), _throttling(page, history, names)
    found = []
    for key, name in names.items():
        rates = history.gpu(key)
        cycles = rates[1].sm_cycles if rates else None
        active, tensor_active = sm.get(key), tensor.get(key)
        if rates and cycles:
            active = active if rates[1].sm_active is None else rates[1].sm_active / cycles
            tensor_active = tensor_active if rates[1].tensor_active is None else rates[1].tensor_active / cycles
        found.append(
            GpuRow(
                node="",
                gpu=key[0],
                uuid=key[1],
                name=name,
                ranks=tuple(sorted(holders.get(key[1], ()))),
                sm_active=active,
                tensor_active=tensor_active,
                utilization=utilization.get(key),
                temperature_celsius=heat.get(key),
                power_watts=power.get(key),
                power_limit_watts=limit.get(key),
                memory_used_bytes=used.get(key),
                memory_total_bytes=total.get(key),
                throttling=throttling[key],
                trouble=tuple(faults.get(key, ())),
            )
        )
    return tuple(sorted(found, key=lambda gpu: gpu.badness, reverse=True))


def _throttling(page: ExporterPage, history: CounterHistory, keys: Iterable[GpuKey]) -> dict[GpuKey, dict[str, float]]:
    """Return the share of time lost by cause: from the counters where there are any, else from the last reading."""
    found: dict[GpuKey, dict[str, float]] = {key: {} for key in keys}
    for sample in page.of(c.GPU_CLOCK_EVENT):
        if sample.value == 1 and (what := slowdown_cause(sample.labels["reason"])):
            found[_key(sample.labels)][what] = 1.0
    for key, shares in found.items():
        seconds, rose = history.gpu(key) or (0.0, None)
        if rose is None or not seconds:
            continue
        counted: dict[str, float] = defaultdict(float)
        for reason, held in rose.held.items():
            if what := slowdown_cause(reason):
                counted[what] = max(counted[what], min(1.0, held / seconds))
        for what, share in counted.items():
            if share > 0.005:
                shares[what] = share
            else:
                shares.pop(what, None)
    return found


def _faults(page: ExporterPage) -> dict[GpuKey, list[str]]:
    found: dict[GpuKey, list[str]] = defaultdict(list)
    for metric in (c.GPU_UNAVAILABLE, c.GPU_RECOVERY_ACTION, c.GPU_XID_INFO):
        for sample in page.of(metric):
            if words := fault(metric.name, sample.labels, sample.value):
                found[_key(sample.labels)].append(words)
    return found


def _key(labels: Mapping[str, str]) -> GpuKey:
    return labels["gpu"], labels["uuid"]


def _values(page: ExporterPage, metric: c.Metric) -> dict[GpuKey, float]:
    return {_key(sample.labels): sample.value for sample in page.of(metric)}
