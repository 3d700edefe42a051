"""Every metric of the exporter itself: what it accepted, rejected and dropped, and the state of its collectors."""

from __future__ import annotations

from tachograph.catalog.metric import COUNTER, GAUGE, INFO, RANK, Rows

REJECT_REASONS = (
    "malformed", "version", "oversized", "type", "invalid", "no_hello", "owner", "conflict", "rank_limit", "rate",
)  # fmt: skip
"""Reasons for rejecting a whole frame."""

DROP_REASONS = (
    "unknown_metric", "wrong_type", "bad_label", "label_limit", "series_limit", "counter_decrease", "unknown_phase",
    "bad_histogram", "bad_limit", "box",
)  # fmt: skip
"""Reasons for dropping a series of an accepted frame; `bad_limit`: a limit of the run that is unknown or out of range;
`box`: a whole box, because of its age or to make room."""

COLLECTORS = ("gpu", "gpm", "xid", "nic", "ranks", "socket")

COLLECTOR_REASONS = (
    "starting", "no_driver", "driver_mismatch", "no_gpu", "no_device_nodes", "not_supported", "no_permission", "hung",
    "worker", "error",
)  # fmt: skip
"""Reasons why a collector has nothing to show; the log has the same in a sentence."""

WORKER_END_CAUSES = ("crashed", "killed", "driver")

CONNECTION_KINDS = ("rank", "http")

CONNECTION_REFUSALS = ("user_limit", "node_limit", "work_limit", "descriptors", "slow", "tls", "auth")
"""Reasons for refusing or closing a connection; `auth` counts requests."""

SHARED = (
    "analyses", "boxes", "captures", "connections", "cpu", "exits", "frames", "names", "owner_lookups", "ranks",
    "series",
)  # fmt: skip
"""What each user has a share of; `names` are new series, `exits` processes whose exit is awaited."""

OTHER_USERS = "other"
"""Stands for all users beyond those that are counted separately."""

ROWS = Rows()
_row = ROWS.add

EXPORTER_INFO = _row("exporter_info", INFO, "", ("version", "python"), "The exporter that serves this page.")
EXPORTER_TIME = _row(
    "exporter_time_seconds", GAUGE, "seconds", (),
    "Unix time at which this page was made, by the node's clock.",
)  # fmt: skip
COLLECTOR_SUCCESS = _row(
    "exporter_collector_success", GAUGE, "", ("collector",),
    "1 if the last collection succeeded, otherwise 0. gpu: NVML; gpm: SM and tensor activity; xid: driver "
    "errors; nic: network ports; ranks: processes; socket: whether ranks can connect.",
    COLLECTORS,
)  # fmt: skip
COLLECTOR_UNAVAILABLE = _row(
    "exporter_collector_unavailable_info", INFO, "", ("collector", "reason"),
    "Why a collector fails.", vocabulary=COLLECTOR_REASONS,
)  # fmt: skip
COLLECTOR_DURATION = _row(
    "exporter_collector_duration_seconds",
    GAUGE,
    "seconds",
    ("collector",),
    "Time the last collection took.",
    unread="to look at beside its age; a slow collector shows up as old",
)
COLLECTOR_AGE = _row(
    "exporter_collector_age_seconds", GAUGE, "seconds", ("collector",), "Age of the snapshot that this page shows."
)
WORKER_ENDS = _row(
    "exporter_gpu_worker_ends_total", COUNTER, "", ("cause",),
    "Exits of the process that reads GPUs; killed: by a signal, or by the exporter when no driver call returned.",
    WORKER_END_CAUSES,
)  # fmt: skip
FRAMES = _row("exporter_frames_total", COUNTER, "", (), "Frames accepted from ranks.")
FRAMES_REJECTED = _row("exporter_frames_rejected_total", COUNTER, "", ("reason",), "Frames rejected.", REJECT_REASONS)
SERIES_DROPPED = _row(
    "exporter_series_dropped_total", COUNTER, "", ("reason",),
    "Series dropped from accepted frames; with reason box, boxes dropped because of their age or to make room.",
    DROP_REASONS,
)  # fmt: skip
CLIENT_DROPPED = _row(
    "exporter_client_dropped_total", COUNTER, "", RANK,
    "Data dropped by the rank's client: unknown names, unreadable values, too many events.",
    rare=True,
)  # fmt: skip
LOOP_LAG = _row(
    "exporter_loop_lag_seconds", GAUGE, "seconds", (),
    "Longest delay of the exporter's event loop in the last two minutes.",
)  # fmt: skip
FRAME_COST = _row(
    "exporter_frame_cost_seconds", GAUGE, "seconds", (),
    "Most CPU time spent on one frame in the last two minutes.",
)  # fmt: skip
THROTTLED = _row(
    "exporter_throttled_seconds_total", COUNTER, "seconds", (),
    "Time by which frames were delayed because their users had used up their share of CPU time.",
)  # fmt: skip
SERIES_WITHHELD = _row(
    "exporter_series_withheld", GAUGE, "", (),
    "Rank series left out of this page because they exceed limits.series.",
)  # fmt: skip
USER_OVER_SHARE = _row(
    "exporter_user_over_share_total", COUNTER, "", ("user", "resource"),
    "How often a user (a uid) wanted more than a user's share; for CPU time, seconds for which frames waited.",
    vocabulary=SHARED,
)  # fmt: skip
CONNECTIONS = _row(
    "exporter_connections", GAUGE, "", ("kind",),
    "Open connections from ranks (on the Unix socket) and from HTTP clients.", CONNECTION_KINDS,
)  # fmt: skip
CONNECTIONS_REFUSED = _row(
    "exporter_connections_refused_total", COUNTER, "", ("kind", "reason"),
    "Connections refused, or closed to make room; with reason auth, requests refused.",
    vocabulary=CONNECTION_REFUSALS,
)  # fmt: skip
