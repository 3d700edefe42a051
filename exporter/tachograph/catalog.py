"""Every metric Tachograph exposes, once: name, kind, unit, labels, help, DCGM twin.

Exposition, the wire protocol, `docs/metrics.md`, rule and dashboard contract tests all read these rows. A metric of a
rank stands in `training_catalog.py` (and is one call in the client), one of a GPU in `gpu_catalog.py` (and is one row
in `node/reading_table.py`), the exporter's own here. Everybody but the client imports from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from tachograph import gpu_catalog, training_catalog
from tachograph.gpu_catalog import *
from tachograph.metric import *
from tachograph.training_catalog import *

REJECT_REASONS = (
    "malformed", "version", "oversized", "type", "invalid", "no_hello", "owner", "conflict", "rank_limit", "rate",
)  # fmt: skip
"""Why a whole frame is refused."""

DROP_REASONS = (
    "unknown_metric", "wrong_type", "bad_label", "label_limit", "series_limit", "counter_decrease", "unknown_phase",
    "bad_histogram",
)  # fmt: skip
"""Why one series of an accepted frame is left out."""

COLLECTORS = ("gpu", "gpm", "xid", "ranks")

COLLECTOR_REASONS = (
    "starting", "no_driver", "driver_mismatch", "no_gpu", "no_device_nodes", "not_supported", "no_permission", "hung",
    "worker", "error",
)  # fmt: skip
"""Why a collector has nothing to show; the log has the same in a sentence."""

WORKER_END_CAUSES = ("crashed", "killed", "driver")

ROWS = Rows()
_row = ROWS.add

EXPORTER_INFO = _row("exporter_info", INFO, "", ("version", "python"), "The exporter that serves this page: always 1.")
COLLECTOR_SUCCESS = _row(
    "exporter_collector_success", GAUGE, "", ("collector",),
    "1 if the collector's last collection succeeded, 0 if it failed or there is nothing it could read. gpu: NVML; gpm: "
    "activity of SMs and tensor cores; xid: driver errors; ranks: training processes.",
    COLLECTORS,
)  # fmt: skip
COLLECTOR_UNAVAILABLE = _row(
    "exporter_collector_unavailable_info", INFO, "", ("collector", "reason"),
    "Why a collector does not succeed: always 1, present only while it does not. Reasons: "
    + ", ".join(COLLECTOR_REASONS) + ".",
)  # fmt: skip
COLLECTOR_DURATION = _row(
    "exporter_collector_duration_seconds", GAUGE, "seconds", ("collector",), "Time the last collection took."
)
COLLECTOR_AGE = _row(
    "exporter_collector_age_seconds", GAUGE, "seconds", ("collector",), "Age of the snapshot that this page shows."
)
WORKER_ENDS = _row(
    "exporter_gpu_worker_ends_total", COUNTER, "", ("cause",),
    "Ends of the process that reads GPUs: it crashed, was killed because no driver call returned, or made way for one "
    "that can load another driver.", WORKER_END_CAUSES,
)  # fmt: skip
FRAMES = _row("exporter_frames_total", COUNTER, "", (), "Frames accepted from ranks.")
FRAMES_REJECTED = _row(
    "exporter_frames_rejected_total", COUNTER, "", ("reason",), "Frames refused, by reason.", REJECT_REASONS
)
SERIES_DROPPED = _row(
    "exporter_series_dropped_total", COUNTER, "", ("reason",),
    "Series left out of accepted frames, by reason.", DROP_REASONS,
)  # fmt: skip
CLIENT_DROPPED = _row(
    "exporter_client_dropped_total", COUNTER, "", RANK,
    "What the rank's own client had to drop: unknown names, values it could not read, events beyond its memory.",
)  # fmt: skip
LOOP_LAG = _row(
    "exporter_loop_lag_seconds", GAUGE, "seconds", (),
    "Largest delay of the exporter's event loop within the last minute.",
)  # fmt: skip
FRAME_COST = _row(
    "exporter_frame_cost_seconds", GAUGE, "seconds", (),
    "Largest time that a single frame of a rank took the exporter within the last minute.",
)  # fmt: skip
THROTTLED = _row(
    "exporter_throttled_seconds_total", COUNTER, "seconds", (),
    "Seconds in which users of this node were not read because they used more than their share of the exporter.",
)  # fmt: skip
SERIES_WITHHELD = _row(
    "exporter_series_withheld", GAUGE, "", (),
    "Series of ranks left out of this page because the node's budget of series is spent.",
)  # fmt: skip
CONNECTIONS_REFUSED = _row(
    "exporter_connections_refused_total", COUNTER, "", ("kind", "reason"),
    "Connections refused or closed, by kind and reason.",
)  # fmt: skip

METRICS: tuple[Metric, ...] = (*training_catalog.ROWS, *gpu_catalog.ROWS, *ROWS)
BY_NAME: Mapping[str, Metric] = MappingProxyType({row.name: row for row in METRICS})


def gpu_metrics() -> Iterator[Metric]:
    """Yield the families that describe a GPU."""
    return (row for row in METRICS if row.labels[:2] == GPU)
