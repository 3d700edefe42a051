"""The rules that record our GPU metrics from dcgm-exporter's: `prometheus/rules/dcgm.yml`."""

from __future__ import annotations

from tachograph.catalog.metric import Dcgm, Metric
from tachograph.node.gpu.dcgm import XID, twins
from tachograph.node.gpu.reading_table import every_value

_PAGE = """\
# Our GPU metrics, recorded from a running dcgm-exporter, so that rules and dashboards work where the GPU Operator runs
# and this exporter leaves GPUs alone. Made by `make docs`: do not edit; docs/dcgm.md has the limits.
#
# Without dcgm-exporter nothing is recorded. What our own collector reads is not recorded either: `job` is empty on a
# recorded series only, so {{job!=""}} are our own. Nor is what cannot be, such as DCGM's blank values.
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
      # dcgm-exporter 4.5.3-4.8.2 shows none until there is one: a GPU that it has shown for a minute without is at 0.
      # An exporter that is started again shows an old one at once, or a scrape later.
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
        expr: |
          max by (instance, uuid) ({xid})
          or on (instance, uuid)
          0 * max by (instance, uuid) (node:dcgm_gpu:info offset 1m and on (instance, uuid) node:dcgm_gpu:info)
          unless on (instance, uuid) last_over_time(node:dcgm_gpu_last_xid:max[5m]) > 0
"""

_RULE = """\
      - record: {name}
{labels}        expr: |
          max by (instance, gpu, uuid) ({field}){convert}
          and on (instance, uuid) node:dcgm_gpu:info
"""


_LAST_XID = 99999
_BLANK = 0x7FFFFFF0  # DCGM_INT32_BLANK
_BLANKS = "".join(f" != {blank}" for blank in (2**32 - 1, *range(_BLANK, _BLANK + 4)))
"""All bits set, and DCGM's blank, not found, not supported and not permitted; its blanks of 64 bits are beyond all."""


def rules_page() -> str:
    """Return the text of `prometheus/rules/dcgm.yml`."""
    possible = {(value.metric.name, value.labels): value.possible for value in every_value()}
    rules = "\n".join(
        _RULE.format(
            name=metric.name,
            labels=_fixed(metric, twin),
            field=_field(twin.field, _believed(possible[metric.name, twin.labels].most * twin.scale)),
            convert=_convert(twin),
        )
        for metric, twin in twins()
    )
    xid = _field(XID.name, f" <= {_LAST_XID}")
    return _PAGE.format(seen=_field("DCGM_FI_DEV_GPU_TEMP", mig=True), rules=rules, xid=xid)


def _believed(most: float) -> str:
    """Return the comparison that a reading passes if it can be one; `most` is in DCGM's unit."""
    return f" <= {most:.15g}" + (_BLANKS if most > _BLANK else "")


def _field(name: str, believed: str = "", *, mig: bool = False) -> str:
    """Return the selector of a field, with our `uuid`; a MIG instance is not its GPU, but tells that it is there."""
    matcher = "" if mig else '{GPU_I_ID=""}'
    return f'label_replace({name}{matcher}{believed}, "uuid", "$1", "UUID", "(.*)")'


def _fixed(metric: Metric, twin: Dcgm) -> str:
    pairs = [f"{name}: {value}" for name, value in zip(metric.labels[2:], twin.labels, strict=False)]
    return f"        labels: {{{', '.join(pairs)}}}\n" if pairs else ""


def _convert(twin: Dcgm) -> str:
    factor = f" / {twin.scale:.0f}" if twin.scale > 1 else f" * {1 / twin.scale:.0f}"
    return "" if twin.scale == 1 else factor
