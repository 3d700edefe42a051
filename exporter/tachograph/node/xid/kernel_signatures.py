"""The messages of the kernel that can explain why a rank died or stands still: a row for each kind, Xids aside.

What they mean and what to do is in the table of signatures, as for all that is printed. Here is which of them an
exporter trusts: texts of the kernel's sources, each anchored at the start of a message, for a process may call itself
whatever it likes and the kernel prints process names.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Signature(NamedTuple):
    """One kind of message: its name (of KERNEL_EVENT_KINDS), rows of the table that explain it, and how it begins."""

    kind: str
    rows: tuple[str, ...]
    pattern: re.Pattern[str]


def _row(kind: str, rows: tuple[str, ...], pattern: str) -> Signature:
    return Signature(kind, rows, re.compile(pattern.replace(" ", _GAP)))


_GAP = r"(?:(?:\s|\\x09)+)"
"""What a blank in a pattern stands for: spacing never decides, and the kernel writes a tab as \\x09."""


_NAME = r"(?:\\x[0-9a-f]{2}|[^\\]){1,15}?"  # of a process: 15 bytes at most, each as it is or escaped as \x0a

SIGNATURES = (
    _row(
        "oom_kill",
        ("oom_kill_kernel",),
        # mm/oom_kill.c, before Linux 5.3 `Kill process`
        r"(?:Memory cgroup out of memory|Out of memory(?: \(\w+\))?): Kill(?:ed)? process \d+ \(",
    ),
    _row(
        "segfault",
        ("native_crash_kernel",),
        # arch/x86/mm/fault.c, arch/x86/kernel/traps.c, arch/arm64/kernel/traps.c
        rf"{_NAME}\[\d+\]: (?:segfault at |unhandled exception: [^,]{{1,80}}, ESR 0x)"
        rf"|traps: {_NAME}\[\d+\] (?:general protection|trap (?:\w{{1,16}} ){{1,4}}ip:)",
    ),
    _row(
        "hung_task",
        ("task_blocked",),
        rf"INFO: task {_NAME}:\d+ blocked(?: in I/O wait)? for more than \d+ seconds",  # kernel/hung_task.c
    ),
    _row(
        "lockup",
        ("kernel_panic",),
        # kernel/watchdog.c, kernel/watchdog_perf.c, kernel/rcu/tree_stall.h
        r"(?:NMI )?watchdog: (?:BUG: soft lockup - CPU#\d+ |(?:CPU\d+: )?Watchdog detected hard LOCKUP on cpu )"
        r"|rcu: INFO: \w+ (?:self-)?detected (?:expedited )?stalls? on CPU",
    ),
    _row(
        "nfs",
        ("nfs_lustre",),
        r"(?:nfs|lockd): server \S{1,255} not responding, ",  # net/sunrpc/clnt.c
    ),
    _row(
        "lustre",
        ("nfs_lustre",),
        # lustre/ptlrpc/import.c
        r"Lustre: \S{1,255}: Connection to \S{1,255} \(at \S{1,255}\) was lost"
        r"|LustreError: [\d-]{1,16}: \S{1,255}: This client was evicted by ",
    ),
    _row(
        "filesystem",
        ("filesystem_damaged",),
        # fs/ext4/super.c, fs/jbd2/journal.c, fs/xfs, fs/btrfs
        r"EXT4-fs (?:error \(device |\(\S{1,64}\): Remounting filesystem read-only)"
        r"|Aborting journal on device "
        r"|BTRFS:? (?:error|critical) \(device |BTRFS info \(device [^)]{1,80}\): forced readonly"
        r"|BTRFS warning \(device [^)]{1,80}\): csum failed "
        r"|XFS \(\S{1,64}\): (?i:.{0,80}(?:corruption|I/O error|internal error|shutdown|shutting down))",
    ),
    _row(
        "disk",
        ("disk_failed",),
        # block/blk-core.c, fs/buffer.c, drivers/nvme/host/pci.c, drivers/md
        r"(?:blk_update_request: |print_req_error: )?"
        r"(?:critical \w+|I/O|recoverable transport|protection|timeout) error, dev \S+, sector "
        r"|Buffer I/O error on dev|md/raid\d{0,2}:\S{1,64}: Disk failure on "
        r"|nvme nvme\d+: (?:I/O .{1,80}timeout, |controller is down; will reset|Removing after probe failure"
        r"|Device not ready; aborting)",
    ),
    _row(
        "memory_failure",
        ("machine_check", "edac_uncorrected"),
        # mm/memory-failure.c, drivers/edac/edac_mc.c, arch/x86/kernel/cpu/mce/core.c
        r"Memory failure: 0x[0-9a-f]+: (?:Sending SIGBUS to|Killing) "
        r"|EDAC MC\d{1,4}: \d{1,9} UE |mce: Uncorrected hardware memory error "
        r"|mce: \[Hardware Error\]: CPU \d{1,5}: Machine Check Exception: ",
    ),
    _row(
        "gpu_init",
        ("gpu_lost",),
        r"NVRM: (?:GPU \S+ )?(?:RmInitAdapter|rm_init_adapter) failed",
    ),
    _row(
        "nvswitch",
        (
            "sxid_fatal",
            "sxid",
        ),
        r"nvidia-nvswitch\d+: SXid \(PCI:[^)]{1,32}\): \d+ ?, ?(?i:non-?fatal|fatal)\b",
    ),
    _row(
        "mlx5",
        (
            "card_failed",
            "network_link",
        ),
        # drivers/net/ethernet/mellanox/mlx5: events.c, health.c, cmd.c, en_main.c, en/reporter_tx.c
        r"mlx5_core [0-9a-f:.]{7,20} .{0,120}?(?:Port module event(?:\[error\]|: module \d+, Cable (?:unplugged|error))"
        r"|[Hh]ealth (?:compromised|issue observed)|timeout\. Will cause a leak|TX timeout detected|Error cqe on cqn"
        r"|Link down)",
    ),
)


def kind_of(text: str) -> str:
    """Return the kind of a message of the kernel, "" if it is of none."""
    return next((row.kind for row in SIGNATURES if row.pattern.match(text)), "")
