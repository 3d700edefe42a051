"""The standard `process_*` metrics of this process, named as the client libraries of Prometheus name them.

process_cpu_seconds_total 12.25
process_resident_memory_bytes 47185920
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from functools import cache

from tachograph.catalog.metric import COUNTER, GAUGE, Metric
from tachograph.node.process_status import PROC
from tachograph.node.samples import Sample


def _row(name: str, kind: str, text: str) -> Metric:
    return Metric(f"process_{name}", kind, "", (), text)


_VIRTUAL = _row("virtual_memory_bytes", GAUGE, "Virtual memory size in bytes.")
_RESIDENT = _row("resident_memory_bytes", GAUGE, "Resident memory size in bytes.")
_START = _row("start_time_seconds", GAUGE, "Start time of the process since unix epoch in seconds.")
_CPU = _row("cpu_seconds_total", COUNTER, "Total user and system CPU time spent in seconds.")
_OPEN_FILES = _row("open_fds", GAUGE, "Number of open file descriptors.")
_MOST_FILES = _row("max_fds", GAUGE, "Maximum number of open file descriptors.")


def process_samples() -> Iterator[Sample]:
    """Yield them; where the system has no /proc, only those that do without it."""
    yield Sample(_CPU, (), time.process_time())
    yield Sample(_MOST_FILES, (), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    try:
        virtual, resident, *_ = (PROC / "self/statm").read_text().split()
    except FileNotFoundError:
        return
    yield Sample(_VIRTUAL, (), int(virtual) * resource.getpagesize())
    yield Sample(_RESIDENT, (), int(resident) * resource.getpagesize())
    yield Sample(_START, (), _started())
    yield Sample(_OPEN_FILES, (), sum(1 for _ in (PROC / "self/fd").iterdir()))


@cache
def _started() -> float:
    """Return when this process started: the kernel counts from the boot, in ticks (proc_pid_stat(5))."""
    ticks = int((PROC / "self/stat").read_text().rpartition(")")[2].split()[19])
    return round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK"), 2)
