"""Measures what reading eight made-up GPUs costs; prints JSON.

    python tests/node/gpu/measure.py [cost] [SECONDS]       CPU and memory of the worker, CPU of its supervisor, at 1 Hz
    python tests/node/gpu/measure.py soak --collections N   whether memory grows over N collections at full speed

The driver's own time is that of the made-up library, so nothing here is the GPU's answer time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tachograph.node.gpu.source import GpuSource
from tachograph_lab.fake_nvml import library as build

TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
UPSET = 0.5
"""Share of a soak at full speed in which GPUs come and go; what follows must be flat."""


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process so far, at the scheduler's resolution where the kernel tells it."""
    try:
        times = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]  # each thread's own
        return sum(int(time.split()[0]) for time in times) * 1e-9
    except (OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


def memory(pid: int) -> dict[str, float]:
    """Return resident and proportional memory of a process in MB."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = {line.split(":")[0]: int(line.split()[1]) / 1000 for line in rollup}
    return {"rss_mb": round(fields["Rss"], 1), "pss_mb": round(fields["Pss"], 1)}


def resident(pid: int) -> int:
    """Return resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def slope(points: Sequence[tuple[float, float]], after: float) -> float:
    """Return the growth of the second number by one of the first, by least squares, after that share of the points."""
    kept = points[int(after * len(points)) :]
    return statistics.linear_regression(*zip(*kept, strict=True)).slope


def worker_of(parent: int) -> int:
    """Return the pid of the parent's only child."""
    return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])


async def cost(seconds: float) -> dict[str, object]:
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


def soak_collections(collections: int, fake: Any) -> dict[str, object]:
    """Collect at full speed on a clock of its own: at first a GPU is lost and another unplugged now and then."""
    from tachograph.node.gpu.node_collector import NodeCollector
    from tachograph.node.gpu.worker_protocol import LineWriter

    now = 0.0
    collector, writer = NodeCollector(lambda: now, answer_seconds=10.0), LineWriter()
    points: list[tuple[float, float]] = []
    blocks: list[tuple[float, float]] = []
    failed, began = 0, time.monotonic()
    for count in range(collections):
        now += 1.0
        turn = count % 100 if count < collections * UPSET else -1
        if turn in {20, 40}:
            fake.gpus[0].error = 15 if turn == 20 else 0
        elif turn in {60, 80}:
            (fake.unplug if turn == 60 else fake.plug)(1)
        collection = collector.collect()
        failed += not collection.ok
        writer.line(collection)
        if count % max(collections // 200, 1) == 0:
            points.append((count, resident(os.getpid())))
            blocks.append((count, sys.getallocatedblocks()))
    return {
        "collections": collections,
        "failed": failed,
        "seconds": round(time.monotonic() - began, 1),
        "rss_mb": [
            round(points[place][1] / 1e6, 2)
            for place in (0, int(UPSET / 2 * len(points)), int(UPSET * len(points)), -1)
        ],
        "bytes_per_collection": round(slope(points, UPSET), 2),
        "blocks_per_collection": round(slope(blocks, UPSET), 5),
    }


def main(arguments: Sequence[str]) -> None:
    """Build the library, start anew with it on the loader's path, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("cost").add_argument("seconds", type=float, nargs="?", default=20.0)
    soak = commands.add_parser("soak")
    soak.add_argument("--collections", type=int, default=100_000)
    soak.add_argument("--gpus", type=int, default=8)
    if not arguments or arguments[0] not in {"cost", "soak", "-h", "--help"}:
        arguments = ["cost", *arguments]
    options = parser.parse_args(arguments)
    state = os.environ.get(build.STATE_VARIABLE)
    if state is None:  # the loader reads its path once, at the start of a process
        with tempfile.TemporaryDirectory() as folder:
            fake = build.FakeNvml(build.build(Path(folder)), Path(folder) / "nvml-state")
            environment = {**os.environ, **fake.environment()}
            sys.exit(subprocess.run([sys.executable, __file__, *arguments], env=environment, check=False).returncode)
    fake = build.FakeNvml(Path(os.environ["LD_LIBRARY_PATH"]), Path(state), live=True)
    fake.state.count = getattr(options, "gpus", 8)
    if options.command == "cost":
        result = asyncio.run(cost(options.seconds))
    else:
        result = soak_collections(options.collections, fake)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
