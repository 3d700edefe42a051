"""Living beside dcgm-exporter: our readings by its names, and the rules that record its readings by ours.

Both are made from the catalog's DCGM column, so that a number cannot mean one thing here and another there:

    DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-2f1e",pci_bus_id="00000000:3B:00.0",device="nvidia0",modelName="NVIDIA H100",
      Hostname="node-27",DCGM_FI_DRIVER_VERSION="580.95.05"} 57
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from tachograph import catalog
from tachograph.catalog import GAUGE, Dcgm, Metric, gpu_metrics
from tachograph.node.readings import Sample

LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION")
"""What dcgm-exporter puts on each series of a GPU.

`Hostname` is what it was called until May 2026, and so in the dashboards and alerts that these names are kept for.
"""

XID = Metric(
    "DCGM_FI_DEV_XID_ERRORS", GAUGE, "", (*LABELS, "err_code", "err_msg"),
    "Number of the last Xid error, 0 while there was none. tachograph_gpu_xid_errors_total counts them.",
)  # fmt: skip

_UNITS = {100.0: "percent", 1e-6: "MHz", 2.0**-20: "MiB", 1e3: "mJ", 1e9: "ns"}
"""Unit of a DCGM field, by how many of it are one of ours."""


def _twins() -> Iterator[tuple[Metric, Dcgm]]:
    return ((metric, twin) for metric in gpu_metrics() for twin in metric.dcgm)


@cache
def _shown() -> Mapping[tuple[str, tuple[str, ...]], tuple[Metric, float]]:
    """Our metric and own label values -> its family by DCGM's name, and the scale."""
    return {
        (metric.name, twin.labels): (Metric(twin.field, metric.kind, "", LABELS, _help(metric, twin)), twin.scale)
        for metric, twin in _twins()
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
        of["gpu"], of["uuid"], of["pci_bus_id"], f"nvidia{of['gpu']}", of["name"], socket.gethostname(),
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


_PAGE = """\
# Our GPU metrics, recorded from a running dcgm-exporter, so that rules and dashboards work where the GPU Operator runs
# and this exporter leaves GPUs alone. Made by `tachograph dcgm-rules`: do not edit; docs/dcgm.md has the limits.
#
# Without dcgm-exporter nothing is recorded. What our own collector reads is not recorded either: `job` is empty on a
# recorded series only, so {{job!=""}} are our own.
groups:
  - name: tachograph-dcgm
    # dcgm-exporter itself looks every 30 s.
    interval: 15s
    rules:
      # The GPUs that dcgm-exporter sees and we do not; max, because it has a GPU once for each job or pod on it. A
      # restart of our exporter is bridged.
      - record: node:dcgm_gpu:info
        expr: |
          group by (instance, gpu, uuid) ({seen})
          unless on (instance, uuid) last_over_time(tachograph_gpu_up{{job!=""}}[1m])

      # One that it saw a minute ago and no longer sees, while it sees others of the node, cannot be read: 0 until it is
      # back, or until dcgm-exporter was away for a minute, as in a reboot.
      - record: tachograph_gpu_up
        expr: |
          node:dcgm_gpu:info
          or on (instance, uuid)
          0 * last_over_time(tachograph_gpu_up{{job=""}}[1m])
          and on (instance) node:dcgm_gpu:info
          unless on (instance, uuid) last_over_time(tachograph_gpu_up{{job!=""}}[1m])

      # Why is not known. A minute long, for one empty look of dcgm-exporter is no lost GPU.
      - record: tachograph_gpu_unavailable_info
        labels: {{reason: error}}
        expr: |
          1 + (max_over_time(tachograph_gpu_up{{job=""}}[1m]) == 0)
          and on (instance, uuid) tachograph_gpu_up{{job=""}}

      - record: tachograph_gpu_info
        expr: |
          group by (instance, gpu, uuid, name, pci_bus_id, driver_version) (
            label_replace(label_replace({seen},
              "name", "$1", "modelName", "(.*)"), "driver_version", "$1", "DCGM_FI_DRIVER_VERSION", "(.*)")
          )
          and on (instance, uuid) node:dcgm_gpu:info
          or on (instance, uuid)
          last_over_time(tachograph_gpu_info{{job=""}}[1m])
          and on (instance, uuid) tachograph_gpu_up{{job=""}} == 0

{rules}
      - record: tachograph_gpu_memory_total_bytes
        expr: |
          tachograph_gpu_memory_used_bytes{{job=""}} + tachograph_gpu_memory_free_bytes{{job=""}}
          + (tachograph_gpu_memory_reserved_bytes{{job=""}} or 0 * tachograph_gpu_memory_used_bytes{{job=""}})

      # DCGM has the number of the last Xid and not its time: that is the time at which we see the number change. One
      # that is there when we look for the first time is as old as it may be and gets none, nor does the same again.
      - record: tachograph_gpu_xid_timestamp_seconds
        expr: |
          0 * count_values by (instance, gpu, uuid) ("xid",
            {xid} > 0
            and on (instance, uuid) tachograph_gpu_up{{job=""}}
            and on (instance, uuid) (
              max by (instance, uuid) ({xid})
              != on (instance, uuid) last_over_time(node:dcgm_gpu_last_xid:max[5m])
            )
          ) + time()
          or
          last_over_time(tachograph_gpu_xid_timestamp_seconds{{job=""}}[1m])
          and on (instance, uuid) tachograph_gpu_up{{job=""}}
      - record: node:dcgm_gpu_last_xid:max
        expr: max by (instance, uuid) ({xid})
"""

_RULE = """\
      - record: {name}
{labels}        expr: |
          max by (instance, gpu, uuid) ({field}){convert}
          and on (instance, uuid) node:dcgm_gpu:info
"""


def rules_page() -> str:
    """Return the text of `prometheus/rules/dcgm.yml`."""
    rules = "\n".join(
        _RULE.format(name=metric.name, labels=_fixed(metric, twin), field=_field(twin.field), convert=_convert(twin))
        for metric, twin in _twins()
    )
    return _PAGE.format(seen=_field("DCGM_FI_DEV_GPU_TEMP", mig=True), rules=rules, xid=_field(XID.name))


def _field(name: str, *, mig: bool = False) -> str:
    """Return the selector of a field, with our `uuid`; a MIG instance is not its GPU, but tells that it is there."""
    matcher = "" if mig else '{GPU_I_ID=""}'
    return f'label_replace({name}{matcher}, "uuid", "$1", "UUID", "(.*)")'


def _fixed(metric: Metric, twin: Dcgm) -> str:
    pairs = [f"{name}: {value}" for name, value in zip(metric.labels[2:], twin.labels, strict=False)]
    return f"        labels: {{{', '.join(pairs)}}}\n" if pairs else ""


def _convert(twin: Dcgm) -> str:
    factor = f" / {twin.scale:.0f}" if twin.scale > 1 else f" * {1 / twin.scale:.0f}"
    return "" if twin.scale == 1 else factor
