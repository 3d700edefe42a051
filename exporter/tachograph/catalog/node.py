"""Every metric of a node as a whole: what its kernel reports."""

from __future__ import annotations

from tachograph.catalog.metric import COUNTER, GAUGE, Rows

KERNEL_EVENT_KINDS = (
    "oom_kill", "segfault", "hung_task", "lockup", "nfs", "lustre", "filesystem", "disk", "memory_failure", "gpu_init",
    "nvswitch", "mlx5",
)  # fmt: skip
"""Kinds of events in the kernel's log, Xids aside; docs/kernel.md has what each means and what to do."""

ROWS = Rows()
_row = ROWS.add

NODE_KERNEL_EVENTS = _row(
    "node_kernel_events_total", COUNTER, "", ("kind",),
    "Kernel messages, other than Xids, of a kind that can stop a rank.",
    KERNEL_EVENT_KINDS,
)  # fmt: skip
NODE_UNRECORDED_GPUS = _row(
    "node_unrecorded_gpus", GAUGE, "", (),
    "GPUs on which only unrecorded processes have been computing for ten minutes; absent while the driver lists no "
    "process at all.",
)  # fmt: skip
NODE_KERNEL_MESSAGE = _row(
    "node_kernel_message_age_seconds", GAUGE, "seconds", ("kind", "text"),
    "Age of a kernel message, shown for two minutes; at most 8 messages, 2 of a kind.",
)  # fmt: skip
PORT = ("device", "port")
"""Of InfiniBand and RoCE; an Ethernet device has an empty port."""
PORT_ERROR_KINDS = ("symbol", "receive", "link_recovery", "integrity", "frame")

NODE_UNUSED_PORTS = _row(
    "node_unused_ports", GAUGE, "", (),
    "RDMA ports that are down and were not up within six hours, as far as the exporter knows; absent without any port.",
)  # fmt: skip
PORT_DOWN = _row(
    "node_port_down_seconds",
    GAUGE,
    "seconds",
    PORT,
    "Time since the failure of a network port that was in use within six hours.",
)
PORT_NEVER_UP = _row(
    "node_port_never_up_seconds", GAUGE, "seconds", PORT,
    "Time for which an RDMA port that has not been up since the exporter started has been down.",
)  # fmt: skip
PORT_SPEED = _row(
    "node_port_speed_ratio", GAUGE, "ratio", PORT,
    "Port speed as a share of its highest within a day, or of that of identical adapters in the node; absent at 1.",
)  # fmt: skip
PORT_ERRORS = _row(
    "node_port_recent_errors", GAUGE, "", (*PORT, "error"), "Errors on a network port in the last hour; absent at 0.",
    vocabulary=PORT_ERROR_KINDS,
)  # fmt: skip
PORT_ERROR_RATE = _row(
    "node_port_errors_per_second", GAUGE, "", PORT,
    "Packets per second that a port has corrupted over 2 minutes; absent below a thousand an hour.",
)  # fmt: skip
