"""The ways in which a run fails: a title, and the three commands that come next.

In a command `{run}`, `{rank}`, `{node}`, `{gpu}` and `{pid}` stand for what the finding names; what it does not name
stays as `<rank>`, to be filled in.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class NextCommand:
    """A command to run, and what it tells."""

    command: str
    why: str


@dataclass(frozen=True)
class FailureMode:
    """A way in which a run fails."""

    title: str
    next: tuple[NextCommand, NextCommand, NextCommand]


BOXES = NextCommand(
    "tachograph blackbox capture {run}; tachograph blackbox collect --out b {run}; tachograph blackbox analyze b",
    "who holds the run up, and at which line, before a timeout ends it",
)
STACK = NextCommand("ssh {node} tachograph top --once", "pid and line of rank {rank}, before anyone kills it")
LOGS = NextCommand(
    "tachograph logs <folder of the run's logs>", "the first error of all ranks, and what followed from it"
)
KERNEL = NextCommand(
    "ssh {node} \"dmesg -T | grep -iE 'oom|xid|segfault|nfs|blocked' | tail -20\"", "what the kernel did to it"
)
PLACES = NextCommand("tachograph top --once {run}", "ranks and GPUs, the worst first")
REPORT = NextCommand("tachograph report --since 2h --out report.html {run}", "the last two hours on one page")
SMI = NextCommand(
    "ssh {node} nvidia-smi -q -i {gpu} -d TEMPERATURE,PERFORMANCE,ECC,POWER", "its GPU: clocks, heat, errors"
)
SMI_ALL = NextCommand("ssh {node} nvidia-smi", "the GPUs of the node, and who is on them")
PORTS = NextCommand('ssh {node} "ibstat; perfquery -x; ip -s link"', "the ports of the first node, and what they count")
TARGETS = NextCommand("tachograph doctor --prometheus <URL>", "what Prometheus scrapes, and what it cannot")
EXPORTER = NextCommand("ssh {node} journalctl -u tachograph-exporter -n 50", "why the exporter there does not answer")
SCHEDULER = NextCommand("squeue --name={run} || kubectl get pods -A | grep -Fe {run}", "what its scheduler knows of it")
DISKS = NextCommand(
    "ssh {node} \"df -h; df -i; mount | grep -E 'nfs|lustre|fuse'\"", "room and mounts on a node of the run"
)
PRESSURE = NextCommand(
    'ssh {node} "uptime; cat /proc/pressure/io; ps -eo stat,wchan:32,cmd | grep ^D"', "who waits for disks"
)


WASTED = frozenset({"not_finite", "silent_corruption", "ranks_differ"})
"""Modes in which the run makes steps that will have to be made again."""


def _mode(title: str, *following: NextCommand) -> FailureMode:
    first, second, third = following
    return FailureMode(title, (first, second, third))


MODES: Mapping[str, FailureMode] = {
    "none": _mode("nothing is wrong", PLACES, REPORT, TARGETS),
    "starting": _mode("it has not begun yet", PLACES, SCHEDULER, LOGS),
    "ended": _mode("it has ended", REPORT, SCHEDULER, LOGS),
    "preempted": _mode("it was asked to end", SCHEDULER, LOGS, REPORT),
    "no_data": _mode("nothing is known of it at this time", SCHEDULER, TARGETS, LOGS),
    "other": _mode("an alert of your own", PLACES, REPORT, TARGETS),
    "node_down": _mode(
        "a node is down",
        NextCommand("ipmitool -H {node}-bmc chassis status", "whether it has power, and its console"),
        NextCommand("ping -c 3 {node}", "whether its network answers"),
        SCHEDULER,
    ),
    "gpu_fault": _mode("a GPU is broken", SMI, KERNEL, SCHEDULER),
    "link_down": _mode("a network link is down", PORTS, BOXES, SCHEDULER),
    "restart_loop": _mode("it fails again after each restart", LOGS, KERNEL, SCHEDULER),
    "rank_died": _mode("a rank was killed or crashed", KERNEL, LOGS, SCHEDULER),
    "out_of_memory": _mode("out of memory", LOGS, KERNEL, SMI_ALL),
    "rank_failed": _mode("a rank ended with an error", LOGS, KERNEL, SCHEDULER),
    "run_down": _mode("the run is down and nobody restarts it", SCHEDULER, LOGS, KERNEL),
    "killed_together": _mode("all ranks were ended from outside", SCHEDULER, KERNEL, LOGS),
    "suspended": _mode("all ranks stand still at once", SCHEDULER, PRESSURE, PLACES),
    "frozen": _mode(
        "a rank is frozen",
        NextCommand("ssh {node} ps -o pid,stat,wchan:32,cmd -p {pid}", "T: stopped; D: in a disk; R: Python's lock"),
        STACK, BOXES,
    ),
    "not_finite": _mode(
        "the loss or the gradients are not finite",
        NextCommand("tachograph report --since 30m --out report.html {run}", "loss and norm before the first NaN"),
        LOGS, SMI,
    ),
    "silent_corruption": _mode(
        "a GPU computes wrong numbers",
        NextCommand("ssh {node} dcgmi diag -r 3 -i {gpu}", "whether the GPU fails a test under load"),
        SMI, REPORT,
    ),
    "ranks_differ": _mode("the ranks no longer do the same training", LOGS, PLACES, REPORT),
    "communication_stall": _mode("communication stall: ranks wait in a collective", BOXES, STACK, LOGS),
    "engine_down": _mode("an engine that it generates with does not answer", LOGS, PLACES, KERNEL),
    "divergence": _mode(
        "the loss diverges",
        NextCommand("tachograph report --since 6h --out report.html {run}", "when it began, and the gradient norm"),
        NextCommand("tachograph logs <folder of the run's logs>", "what the loop logged at the first bad step"), PLACES,
    ),
    "loss_spike": _mode("a loss spike, which most often heals by itself", PLACES, REPORT, LOGS),
    "plateau": _mode(
        "the loss does not move",
        NextCommand("tachograph report --since 24h --out report.html {run}", "loss and norm since the last resume"),
        LOGS, PLACES,
    ),
    "validation": _mode("the validation loss is off", REPORT, LOGS, PLACES),
    "skipped_steps": _mode("mixed precision skips steps", REPORT, LOGS, PLACES),
    "straggler": _mode("a straggler holds up all ranks", PLACES, SMI, PRESSURE),
    "gpu_straggler": _mode("a straggler, as its GPU is held back", SMI, PLACES, KERNEL),
    "data_straggler": _mode("a straggler, as its loader is slow", STACK, PRESSURE, DISKS),
    "uneven_work": _mode("pipeline bubble or uneven work: ranks take turns being late", PLACES, REPORT, BOXES),
    "slow_collectives": _mode("collectives are slow", PORTS, PLACES, REPORT),
    "slow_steps": _mode("steps are slower than they were", PLACES, SMI_ALL, REPORT),
    "decline": _mode("it becomes slower and slower", REPORT, PLACES, PRESSURE),
    "goodput": _mode("much of its time does not go into steps", REPORT, PLACES, LOGS),
    "idle_gpus": _mode("its GPUs have too little to do", PLACES, REPORT, SMI_ALL),
    "bad_batches": _mode(
        "the same data breaks its loss again",
        NextCommand("tachograph supervise history {run}", "at which steps, and what was found there"), REPORT, PLACES,
    ),
    "data_stall": _mode("all ranks wait for data", PRESSURE, DISKS, PLACES),
    "storage_slow": _mode("the storage that several runs share is slow", PRESSURE, DISKS, PLACES),
    "link_errors": _mode("a network port corrupts packets or is slow", PORTS, PLACES, REPORT),
    "memory_leak": _mode("memory leaks", SMI_ALL, STACK, REPORT),
    "memory_full": _mode("GPU memory is nearly full", SMI_ALL, LOGS, REPORT),
    "unsaved": _mode("it does not save", LOGS, DISKS, REPORT),
    "disk_full": _mode("the disk for checkpoints is nearly full", DISKS, LOGS, REPORT),
    "slow_save": _mode("saves take long", PRESSURE, DISKS, REPORT),
    "gpu_held_back": _mode("a GPU is held back by heat or power", SMI, PLACES, REPORT),
    "gpu_wear": _mode("a GPU's memory wears out", SMI, KERNEL, REPORT),
    "gpu_link": _mode(
        "a link of a GPU is down or slow", NextCommand("ssh {node} nvidia-smi nvlink -s -i {gpu}", "its links"),
        SMI, KERNEL,
    ),
    "repeated": _mode(
        "a node keeps breaking runs", NextCommand("tachograph history", "its incidents of 30 days, over all runs"),
        KERNEL, SMI_ALL,
    ),
    "gpu_missing": _mode(
        "a node has fewer GPUs than it should", SMI_ALL,
        NextCommand("ssh {node} \"lspci | grep -i nvidia\"", "whether the board is there at all"), KERNEL,
    ),
    "ranks_missing": _mode("ranks are not visible", SCHEDULER, TARGETS, EXPORTER),
    "rank_left": _mode("a rank has left, and the others go on", LOGS, SCHEDULER, PLACES),
    "not_requeued": _mode("it was stopped and has not come back", SCHEDULER, LOGS, REPORT),
    "ended_early": _mode("it ended before its last step", LOGS, SCHEDULER, REPORT),
    "name_shared": _mode(
        "it has too many ranks: two jobs of one name, or an attempt that did not end", SCHEDULER, PLACES, TARGETS
    ),
    "misuse": _mode("its script misuses the recorder", LOGS, PLACES, EXPORTER),
    "blind": _mode("part of it is not visible; that says nothing about the run", TARGETS, EXPORTER, PLACES),
    "unsupervised": _mode(
        "its supervisor would not restart it",
        NextCommand("tachograph supervise history {run}", "in the run's working directory: what it did, and why"), LOGS,
        EXPORTER,
    ),
    "scraped_twice": _mode("an exporter is scraped twice", TARGETS, EXPORTER, PLACES),
    "rules_fail": _mode("rules fail, so their alerts are off", TARGETS, PLACES, EXPORTER),
    "overload": _mode("an exporter does not record everything", EXPORTER, TARGETS, PLACES),
    "over_share": _mode("a user wants more than a share of an exporter", EXPORTER, PLACES, TARGETS),
    "wrong_clock": _mode(
        "the clock of a node is wrong", NextCommand("ssh {node} chronyc tracking", "whether it is synchronized"),
        NextCommand("ssh {node} timedatectl", "which service keeps it"), TARGETS,
    ),
}  # fmt: skip


_OPERAND = re.compile(r"(?<!=)(?<!-Fe )\{(run|node)\}")


def next_commands(mode: str, known: Mapping[str, str]) -> tuple[NextCommand, ...]:
    """Return the three commands of a mode, filled with what is known of `run`, `rank`, `node`, `gpu` and `pid`.

    Anybody on a node may name a run, also like an option, and the commands are pasted into a shell.
    """

    def operand(found: re.Match[str]) -> str:
        return f"-- {found[0]}" if known.get(found[1], "").startswith("-") else found[0]

    def fill(text: str, form: Callable[[str], str]) -> str:
        return re.sub(r"\{(\w+)\}", lambda one: form(known[one[1]]) if known.get(one[1]) else f"<{one[1]}>", text)

    return tuple(
        NextCommand(fill(_OPERAND.sub(operand, one.command), shlex.quote), fill(one.why, str))
        for one in MODES[mode].next
    )
