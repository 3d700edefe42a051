"""The GPUs of a node, from its exporter's page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tachograph.catalog import index as c
from tachograph.top.facts import Gpu, Rank
from tachograph.top.gpu_words import cause, trouble
from tachograph.top.pace import GpuCounters, Part, Past
from tachograph.top.page import Page


def counters(page: Page) -> Mapping[Part, GpuCounters]:
    """Return the counters of each GPU."""
    held: dict[Part, dict[str, float]] = defaultdict(dict)
    for sample in page.of(c.GPU_CLOCK_EVENT_SECONDS):
        held[_place(sample.labels)][sample.labels["reason"]] = sample.value
    cycles, active, tensor = (
        _values(page, each) for each in (c.GPU_SM_CYCLES, c.GPU_SM_ACTIVE_CYCLES, c.GPU_TENSOR_ACTIVE_CYCLES)
    )
    return {
        place: GpuCounters(cycles.get(place), active.get(place), tensor.get(place), held.get(place, {}))
        for place in _values(page, c.GPU_INFO)
    }


def gpus(page: Page, past: Past, ranks: Iterable[Rank]) -> tuple[Gpu, ...]:
    """Return the GPUs, the worst first."""
    names = {_place(s.labels): s.labels["name"] for s in page.of(c.GPU_INFO)}
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
    heat = {_place(s.labels): s.value for s in page.of(c.GPU_TEMPERATURE) if s.labels["sensor"] == "gpu"}
    troubles, throttling = _troubles(page), _throttling(page, past, names)
    found = []
    for place, name in names.items():
        rates = past.gpu(place)
        cycles = rates[1].sm_cycles if rates else None
        active, tensor_active = sm.get(place), tensor.get(place)
        if rates and cycles:
            active = active if rates[1].sm_active is None else rates[1].sm_active / cycles
            tensor_active = tensor_active if rates[1].tensor_active is None else rates[1].tensor_active / cycles
        found.append(
            Gpu(
                node="",
                gpu=place[0],
                uuid=place[1],
                name=name,
                ranks=tuple(sorted(holders.get(place[1], ()))),
                sm_active=active,
                tensor_active=tensor_active,
                utilization=utilization.get(place),
                temperature_celsius=heat.get(place),
                power_watts=power.get(place),
                power_limit_watts=limit.get(place),
                memory_used_bytes=used.get(place),
                memory_total_bytes=total.get(place),
                throttling=throttling[place],
                trouble=tuple(troubles.get(place, ())),
            )
        )
    return tuple(sorted(found, key=lambda gpu: gpu.badness, reverse=True))


def _throttling(page: Page, past: Past, places: Iterable[Part]) -> dict[Part, dict[str, float]]:
    """Return the share of time lost by cause: by the counters where there are any, else by the moment."""
    found: dict[Part, dict[str, float]] = {place: {} for place in places}
    for sample in page.of(c.GPU_CLOCK_EVENT):
        if sample.value == 1 and (what := cause(sample.labels["reason"])):
            found[_place(sample.labels)][what] = 1.0
    for place, shares in found.items():
        seconds, rose = past.gpu(place) or (0.0, None)
        if rose is None or not seconds:
            continue
        counted: dict[str, float] = defaultdict(float)
        for reason, held in rose.held.items():
            if what := cause(reason):
                counted[what] = max(counted[what], min(1.0, held / seconds))
        for what, share in counted.items():
            if share > 0.005:
                shares[what] = share
            else:
                shares.pop(what, None)
    return found


def _troubles(page: Page) -> dict[Part, list[str]]:
    found: dict[Part, list[str]] = defaultdict(list)
    for metric in (c.GPU_UNAVAILABLE, c.GPU_RECOVERY_ACTION, c.GPU_XID_INFO):
        for sample in page.of(metric):
            if words := trouble(metric.name, sample.labels, sample.value):
                found[_place(sample.labels)].append(words)
    return found


def _place(labels: Mapping[str, str]) -> Part:
    return labels["gpu"], labels["uuid"]


def _values(page: Page, metric: c.Metric) -> dict[Part, float]:
    return {_place(sample.labels): sample.value for sample in page.of(metric)}
