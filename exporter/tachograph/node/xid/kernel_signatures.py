"""The messages of the kernel that can explain why a rank died or stands still: a row for each kind, Xids aside.

Texts are those of the kernel's sources. Each pattern is anchored at the start of a message, for a process may call
itself whatever it likes and the kernel prints process names.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Signature(NamedTuple):
    """One kind of message: its name (of KERNEL_EVENT_KINDS), how it begins, what it means, and what to do."""

    kind: str
    pattern: re.Pattern[str]
    meaning: str
    action: str


def _row(kind: str, pattern: str, meaning: str, action: str) -> Signature:
    return Signature(kind, re.compile(pattern), meaning, action)


_NAME = r"(?:\\x[0-9a-f]{2}|[^\\]){1,15}?"  # of a process: 15 bytes at most, each as it is or escaped as \x0a

SIGNATURES = (
    _row(
        "oom_kill",
        r"(?:Memory cgroup out of memory|Out of memory(?: \(\w+\))?): Killed process \d+ \(",  # mm/oom_kill.c
        "memory ran out, of the node or of a container, and the kernel killed this process",
        "fewer loader workers, a larger limit, or find the leak; restart the run",
    ),
    _row(
        "segfault",
        # arch/x86/mm/fault.c, arch/x86/kernel/traps.c
        rf"{_NAME}\[\d+\]: segfault at |traps: {_NAME}\[\d+\] (?:general protection|trap invalid opcode)",
        "a process crashed in native code, in the library that the message names",
        "keep the core, restart; twice in one place is a bug, on one node alone a fault of its memory",
    ),
    _row(
        "hung_task",
        rf"INFO: task {_NAME}:\d+ blocked(?: in I/O wait)? for more than \d+ seconds",  # kernel/hung_task.c
        "a process waits in the kernel, most often for a file server, a disk or a driver, and cannot be killed",
        "see what it waits for (cat /proc/PID/stack), fix that; otherwise reboot the node",
    ),
    _row(
        "lockup",
        # kernel/watchdog.c, kernel/watchdog_perf.c, kernel/rcu/tree_stall.h
        r"(?:NMI )?watchdog: (?:BUG: soft lockup - CPU#\d+ |(?:CPU\d+: )?Watchdog detected hard LOCKUP on cpu )"
        r"|rcu: INFO: \w+ (?:self-)?detected (?:expedited )?stalls? on CPU",
        "a core has been stuck in the kernel for seconds",
        "keep the log, take the node out and reboot it; again: report it with the driver that the stack names",
    ),
    _row(
        "nfs",
        r"(?:nfs|lockd): server \S{1,255} not responding, ",  # net/sunrpc/clnt.c
        "an NFS server does not answer; processes that read or write there wait",
        "check the server and the network to it; ranks go on once it answers",
    ),
    _row(
        "lustre",
        r"Lustre: \S{1,255}: Connection to \S{1,255} \(at \S{1,255}\) was lost",  # lustre/ptlrpc/import.c
        "a Lustre server does not answer; processes that read or write there wait",
        "check the server and the network to it; ranks go on once it answers",
    ),
    _row(
        "filesystem",
        # fs/ext4/super.c, fs/xfs
        r"EXT4-fs (?:error \(device |\(\S{1,64}\): Remounting filesystem read-only)"
        r"|XFS \(\S{1,64}\): (?i:.{0,80}(?:corruption|I/O error|internal error|shutdown|shutting down))",
        "a local file system is damaged or was made read-only",
        "take the node out, check the file system and its disk; move checkpoints to another place",
    ),
    _row(
        "disk",
        # block/blk-core.c, fs/buffer.c, drivers/nvme/host/pci.c
        r"(?:blk_update_request: |print_req_error: )?(?:critical \w+|I/O|recoverable transport) error, dev \S+, sector "
        r"|Buffer I/O error on dev|nvme nvme\d+: I/O .{1,80}timeout, ",
        "a disk does not answer or has lost data",
        "take the node out, look at its disk (smartctl, nvme smart-log), replace it",
    ),
    _row(
        "memory_failure",
        r"Memory failure: 0x[0-9a-f]+: (?:Sending SIGBUS to|Killing) ",  # mm/memory-failure.c
        "host memory is broken, and the kernel ended the process that used it",
        "take the node out, replace the module (ras-mc-ctl --errors); restart without it",
    ),
    _row(
        "gpu_init",
        r"NVRM: (?:GPU \S+ )?(?:RmInitAdapter|rm_init_adapter) failed",
        "the NVIDIA driver cannot bring up a GPU",
        "take the node out, reboot it; again: reseat the board, then return it",
    ),
    _row(
        "nvswitch",
        r"nvidia-nvswitch\d+: SXid \(PCI:[^)]{1,32}\): \d+, (?:Non-fatal|Fatal)\b",
        "an NVSwitch reports an error; a fatal one ends all work on the GPUs behind it",
        "fatal: take the node out, reset all of its GPUs or reboot; see fabric manager's log",
    ),
    _row(
        "mlx5",
        # drivers/net/ethernet/mellanox/mlx5: events.c, health.c, cmd.c, en_main.c, en/reporter_tx.c
        r"mlx5_core [0-9a-f:.]{7,20} .{0,120}?(?:Port module event(?:\[error\]|: module \d+, Cable (?:unplugged|error))"
        r"|[Hh]ealth (?:compromised|issue observed)|timeout\. Will cause a leak|TX timeout detected|Error cqe on cqn"
        r"|Link down)",
        "a network card or its cable fails",
        "port counters, cable and transceiver; the card's firmware; otherwise take the node out",
    ),
)


def kind_of(text: str) -> str:
    """Return the kind of a message of the kernel, "" if it is of none."""
    return next((row.kind for row in SIGNATURES if row.pattern.match(text)), "")
