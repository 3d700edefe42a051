"""Check `limits`: ulimits and shared memory, which containers and service managers set low."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from tachograph.preflight.finding import FAIL, WARN, Conclusion, Facts, PreflightFinding
from tachograph.preflight.site import PreflightCheck, PreflightSite
from tachograph.text.humanize import gibibytes

SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED = 2**30
"""Docker gives a container 64 MiB; NCCL needs some 10 MB for each pair of ranks, loader workers their batches."""
LEAST_FILES = 4096
"""Every rank keeps a socket or more to many others, every worker its queues; the usual default is 1,024."""
LEAST_LOCKED = 2**36
"""NCCL pins what it sends over InfiniBand: "unlimited" is what its guide asks for."""
LEAST_PROCESSES = 4096
LIMITS = (("files", resource.RLIMIT_NOFILE), ("locked", resource.RLIMIT_MEMLOCK), ("processes", resource.RLIMIT_NPROC))
INFINIBAND = Path("/sys/class/infiniband")


def measure(site: PreflightSite) -> Facts:
    """Return the soft limits of this process (None: unlimited), and the size and free bytes of /dev/shm."""
    del site
    limits: dict[str, int | None] = {}
    for name, number in LIMITS:
        soft = resource.getrlimit(number)[0]
        limits[name] = None if soft == resource.RLIM_INFINITY else soft
    try:
        status = os.statvfs(SHARED_MEMORY)
        shared = [status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize]
    except OSError:
        shared = []
    return {"limits": limits, "shared": shared, "rdma": INFINIBAND.is_dir() and any(INFINIBAND.iterdir())}


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    """Name the limits that are too low, each once with its ranks."""
    wrong: dict[tuple[str, str, str], list[int]] = {}
    for rank, one in facts.items():
        for row in _too_low(one):
            wrong.setdefault(row, []).append(rank)
    findings = [
        PreflightFinding(severity, f"{what} on {site.who(ranks)}", then, tuple(ranks))
        for (severity, what, then), ranks in wrong.items()
    ]
    one = next(iter(facts.values()))
    shared = f"{gibibytes(one['shared'][0])} GiB of shared memory" if one["shared"] else "no /dev/shm"
    files = one["limits"]["files"]
    return Conclusion(f"{shared}, {'unlimited' if files is None else f'{files:,}'} open files", findings)


def _too_low(one: Facts) -> Iterator[tuple[str, str, str]]:
    limits, shared = one["limits"], one["shared"]
    if not shared:
        yield FAIL, "there is no /dev/shm", "mount a tmpfs there: loader workers and NCCL need it"
    elif shared[0] < LEAST_SHARED:
        size = f"/dev/shm has {shared[0] / 2**20:,.0f} MiB"
        yield FAIL, size, "docker run --shm-size=16g, or an emptyDir with medium: Memory at /dev/shm"
    elif shared[1] < LEAST_SHARED / 4:
        left = f"/dev/shm has {shared[1] / 2**20:,.0f} of {shared[0] / 2**20:,.0f} MiB left"
        yield FAIL, left, "remove what ended programs left there: ls -l /dev/shm"
    if limits["files"] is not None and limits["files"] < LEAST_FILES:
        yield WARN, f"a process may open {limits['files']:,} files (ulimit -n)", "ulimit -n 65536"
    if one["rdma"] and limits["locked"] is not None and limits["locked"] < LEAST_LOCKED:
        locked = f"a process may lock {limits['locked'] / 2**20:,.0f} MiB of memory (ulimit -l)"
        yield FAIL, locked, "ulimit -l unlimited, in Slurm PropagateResourceLimitsExcept=MEMLOCK: InfiniBand needs it"
    if limits["processes"] is not None and limits["processes"] < LEAST_PROCESSES:
        yield WARN, f"a user may have {limits['processes']:,} processes and threads (ulimit -u)", "ulimit -u unlimited"


CHECK = PreflightCheck("limits", "ulimits and shared memory", measure, conclude)
