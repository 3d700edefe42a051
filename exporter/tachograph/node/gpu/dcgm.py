"""Living beside dcgm-exporter: our readings by its names, and the rules that record its readings by ours.

Both are made from the catalog's DCGM column, so that a number cannot mean one thing here and another there:

    DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-2f1e",pci_bus_id="00000000:3B:00.0",device="nvidia0",modelName="NVIDIA H100",
      Hostname="node-27",DCGM_FI_DRIVER_VERSION="580.95.05"} 57
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from tachograph.catalog import index as catalog
from tachograph.catalog.index import gpu_metrics
from tachograph.catalog.metric import GAUGE, Dcgm, Metric
from tachograph.node.node_name import node_name
from tachograph.node.samples import Sample

LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION")
"""The labels that dcgm-exporter puts on each series of a GPU.

`Hostname` is what it was called until May 2026, and so in the dashboards and alerts that these names are kept for.
"""

XID = Metric(
    "DCGM_FI_DEV_XID_ERRORS", GAUGE, "", (*LABELS, "err_code", "err_msg"),
    "Number of the last Xid error, 0 while there was none. tachograph_gpu_xid_errors_total counts them.",
)  # fmt: skip

_UNITS = {100.0: "percent", 1e-6: "MHz", 2.0**-20: "MiB", 1e3: "mJ", 1e9: "ns"}
"""Unit of a DCGM field, by how many of it are one of ours."""


def twins() -> Iterator[tuple[Metric, Dcgm]]:
    """Yield each of our families with each DCGM field that means the same."""
    return ((metric, twin) for metric in gpu_metrics() for twin in metric.dcgm)


@cache
def _shown() -> Mapping[tuple[str, tuple[str, ...]], tuple[Metric, float]]:
    """Our metric and own label values -> its family by DCGM's name, and the scale."""
    return {
        (metric.name, twin.labels): (Metric(twin.field, metric.kind, "", LABELS, _help(metric, twin)), twin.scale)
        for metric, twin in twins()
        if twin.default
    }


def _help(metric: Metric, twin: Dcgm) -> str:
    name = metric.name + "".join(f"{{{twin.labels[0]}}}" for _ in twin.labels[:1])
    unit = f" in {_UNITS[twin.scale]}" if twin.scale != 1 else ""
    return f"{metric.help} It is {name}{unit}, by the name that dcgm-exporter gives it."


def dcgm_samples(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield what dcgm-exporter's default set would show of the GPUs in these samples, detail included."""
    samples = tuple(samples)
    names = {sample.labels[:2]: _labels(sample) for sample in samples if sample.metric is catalog.GPU_INFO}
    for sample in samples:
        family = _shown().get((sample.metric.name, sample.labels[2:]))
        if family is not None and (labels := names.get(sample.labels[:2])) is not None:
            # Six digits are more than NVML has; without rounding, 57 % would be 56.99999999999999.
            yield Sample(family[0], labels, round(sample.value * family[1], 6))
    yield from _xids(samples, names)


def _labels(info: Sample) -> tuple[str, ...]:
    of = dict(zip(info.metric.labels, info.labels, strict=True))
    return (
        of["gpu"], of["uuid"], of["pci_bus_id"], f"nvidia{of['gpu']}", of["name"], node_name(),
        of["driver_version"],
    )  # fmt: skip


def _xids(samples: Iterable[Sample], names: Mapping[tuple[str, ...], tuple[str, ...]]) -> Iterator[Sample]:
    """Yield the last Xid of each GPU whose Xids are counted."""
    meanings = {sample.labels[:3]: sample.labels[-1] for sample in samples if sample.metric is catalog.GPU_XID_INFO}
    last: dict[tuple[str, ...], tuple[float, str]] = {}
    for sample in samples:
        if sample.metric is catalog.GPU_XID_ERRORS:
            last.setdefault(sample.labels[:2], (0.0, "0"))
        elif sample.metric is catalog.GPU_XID_TIMESTAMP:
            seen = sample.value, sample.labels[2]
            last[sample.labels[:2]] = max(seen, last.get(sample.labels[:2], seen))
    for gpu, (_, xid) in last.items():
        if gpu in names:
            yield Sample(XID, (*names[gpu], xid, meanings.get((*gpu, xid), "")), float(xid))
