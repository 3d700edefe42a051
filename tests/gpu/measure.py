"""Measures what reading GPUs costs: `python tests/gpu/measure.py [seconds]`, eight made-up GPUs at 1 Hz.

Prints JSON: CPU share and memory of the worker process, CPU share of the supervising one, and the time that a
collection takes. The driver's own time is that of the made-up library, so nothing here is the GPU's answer time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tachograph.node.gpu_source import GpuSource

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process so far, at the scheduler's resolution where the kernel tells it."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) * 1e-9
    except (OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


def memory(pid: int) -> dict[str, float]:
    """Return resident and proportional memory of a process in MB."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = {line.split(":")[0]: int(line.split()[1]) / 1000 for line in rollup}
    return {"rss_mb": round(fields["Rss"], 1), "pss_mb": round(fields["Pss"], 1)}


def worker_of(parent: int) -> int:
    """Return the pid of the parent's only child."""
    return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])


async def measure(seconds: float) -> dict[str, object]:
    """Run a source and return what it cost."""
    source = GpuSource(interval=1.0)
    task = asyncio.create_task(source.run())
    while source.snapshot() is None:
        await asyncio.sleep(0.01)
    await asyncio.sleep(2)  # past the start
    worker, me = worker_of(os.getpid()), os.getpid()
    before, began = (cpu_seconds(worker), cpu_seconds(me)), time.monotonic()
    durations = []
    while time.monotonic() < began + seconds:
        await asyncio.sleep(1.0)
        if (snapshot := source.snapshot()) is not None:
            durations.append(snapshot.duration)
    after, ended = (cpu_seconds(worker), cpu_seconds(me)), time.monotonic()
    snapshot = source.snapshot()
    result = {
        "seconds": round(ended - began, 1),
        "gpus": len(source.gpus()),
        "samples": len(snapshot.samples) if snapshot else 0,
        "worker_cpu_percent": round(100 * (after[0] - before[0]) / (ended - began), 3),
        "parent_cpu_percent": round(100 * (after[1] - before[1]) / (ended - began), 3),
        "worker_memory": memory(worker),
        "collection_ms": {
            "median": round(1000 * statistics.median(durations), 2),
            "max": round(1000 * max(durations), 2),
        },
    }
    task.cancel()
    await asyncio.wait([task])
    return result


def main() -> None:
    """Build the library, point the worker at it, measure, print."""
    path = Path(__file__).parents[1] / "nvml" / "build.py"
    spec = importlib.util.spec_from_file_location("fake_nvml_build", path)
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LD_LIBRARY_PATH"] = str(build.build(Path(folder)))
        seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
        print(json.dumps(asyncio.run(measure(seconds)), indent=1))


if __name__ == "__main__":
    main()
