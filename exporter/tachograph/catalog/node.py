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
