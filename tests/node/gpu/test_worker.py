"""The worker process: a line per interval whatever the driver does, an end when it is told, and no growth."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.gpu.gpu_watch import CALL_SECONDS
from tachograph.node.gpu.worker_protocol import SPENT_STATUS

FOREVER, LOST, MISMATCH = -1, 15, 18
INTERVAL = 0.2
PACE = ("--interval", str(INTERVAL))
OTHERS = (0, 1, 2, 4, 6, 7)
MEASURE = Path(__file__).with_name("measure.py")

Worker = Callable[..., Any]


def value(line: Any, name: str, gpu: int, *own: str) -> float | None:
    """Return a sample of a GPU, None where there is none."""
    found: float | None = line.gpu(gpu).get((name, *own))
    return found


def all_up(line: Any) -> bool:
    return all(value(line, "up", gpu) for gpu in range(8))


def test_a_line_says_what_the_exporter_asks_for(fake: Any, worker: Worker) -> None:
    """There is a word for each collector, and every sample is a catalog row with all its labels."""
    line = worker(fake.environment(), *PACE).line_where(all_up)
    assert line.collectors.keys() == {"gpu", "gpm", "xid"}
    for metric, labels, _ in line.collection.samples():
        assert len(labels) == len(catalog.BY_NAME[metric.name].labels)


def test_six_gpus_are_read_at_full_pace_while_one_hangs_and_one_is_lost(fake: Any, worker: Worker) -> None:
    """No GPU but those two misses an interval; the hung one has no values after 4, and is told after 3 s."""
    lines = worker(fake.environment(), *PACE)
    lines.line_where(all_up)
    fake.hang(3)
    fake.gpus[5].error = LOST
    told_at = last_shown = None
    told_in = 0
    seen: dict[int, set[float]] = {index: set() for index in OTHERS}
    began = last = time.monotonic()
    turns = int((CALL_SECONDS + 3 * INTERVAL) / INTERVAL)
    for turn in range(1, turns + 1):
        for index in OTHERS:
            fake.gpus[index].power = 100_000 * turn
        line = lines.line()
        now = time.monotonic()
        assert now - last < 2 * INTERVAL, "the worker speaks each interval"
        last = now
        for index in OTHERS:
            seen[index].add(value(line, "power_watts", index) or 0.0)
        if value(line, "power_watts", 3) is not None:
            last_shown = now - began
        if told_at is None and value(line, "unavailable_info", 3, "hung"):
            told_at, told_in = now - began, turn
    assert told_at is not None
    assert told_at + INTERVAL / 2 >= CALL_SECONDS
    assert told_in <= CALL_SECONDS / INTERVAL + 2  # in lines: on a busy machine each of them is late
    assert last_shown is not None
    assert last_shown < 4 * INTERVAL + INTERVAL / 2
    assert value(line, "unavailable_info", 5, "lost") == 1
    for index in OTHERS:
        assert len(seen[index]) >= turns - 1, "fresh values in each line, one of which may have been on its way"
    fake.heal(3)
    lines.line_where(lambda line: value(line, "up", 3))


def test_slow_calls_are_no_hang(fake: Any, worker: Worker) -> None:
    """A collection may take longer than three intervals, if they are short: the GPU answers, and is up."""
    lines = worker(fake.environment(), "--interval", "0.1")
    lines.line_where(all_up)
    fake.gpus[3].block_ms = 50  # a dozen calls
    said = [lines.line() for _ in range(25)]
    assert {value(line, "up", 3) for line in said} == {1}
    watts = [value(line, "power_watts", 3) for line in said]
    assert None in watts, "no value is older than three intervals"
    assert watts.count(None) < len(watts)


def test_a_driver_that_hangs_at_start_leaves_the_worker_speaking(fake: Any, worker: Worker) -> None:
    """Each interval a line that says it is starting, and readings as soon as the driver is open."""
    fake.state.init_block_ms = FOREVER
    lines = worker(fake.environment(), *PACE)
    said = [lines.line() for _ in range(4)]
    assert {(line.ok, line.collectors["gpu"]) for line in said} == {(False, "starting")}
    fake.state.init_block_ms = 0
    lines.line_where(all_up)


def test_a_mismatch_ends_the_worker_although_a_call_hangs(fake: Any, worker: Worker) -> None:
    """Its last line says why, its exit status asks for a fresh process, and no thread in the driver holds it up."""
    lines = worker(fake.environment(), *PACE)
    lines.line_where(all_up)
    fake.hang(3)
    fake.gpus[0].error = MISMATCH
    line = lines.line_where(lambda line: not line.ok)
    assert line.collectors["gpu"] == "driver_mismatch"
    lines.process.communicate(timeout=2)
    assert lines.process.returncode == SPENT_STATUS


@pytest.mark.parametrize("hung", [False, True])
def test_the_worker_ends_with_its_stdin(fake: Any, worker: Worker, hung: bool) -> None:
    """Where the kernel cannot signal a parent's end, the end of stdin does, also with a thread in the driver."""
    lines = worker(fake.environment(), *PACE)
    lines.line_where(all_up)
    if hung:
        fake.hang(3)
        lines.line()
    lines.process.communicate(timeout=2)  # closes stdin and reads what is on its way
    assert lines.process.returncode == 0


def test_an_xid_outlives_its_gpu(fake: Any, worker: Worker) -> None:
    """Fatal Xids stand at 0 from the start; one that takes its GPU off the bus is counted and stays shown."""
    lines = worker(fake.environment(), *PACE)
    lines.line_where(lambda line: value(line, "xid_errors_total", 2, "79") == 0 and not line.collectors["xid"])
    fake.queue_xid(2, 79)
    fake.gpus[2].error = LOST
    line = lines.line_where(lambda line: value(line, "xid_errors_total", 2, "79") == 1 and value(line, "up", 2) == 0)
    assert value(line, "xid_errors_total", 1, "79") == 0


def test_the_worker_carries_no_server(fake: Any) -> None:
    """The worker's memory is its own: no event loop, HTTP or exposition library is loaded in it."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, tachograph.node.gpu.worker; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert not {"asyncio", "aiohttp", "prometheus_client", "msgspec", "yaml", "pynvml"} & set(loaded)


def test_the_exporter_does_not_carry_the_worker() -> None:
    """What only the worker needs costs the exporter no memory."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, tachograph.node.gpu.source; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    worker_only = {
        "gpu.worker",
        "gpu.node_collector",
        "gpu.gpu_collector",
        "gpu.reading_table",
        "gpu.gpm",
        "xid.counts",
    }
    modules = {f"tachograph.node.{name}" for name in worker_only}
    assert all(map(importlib.util.find_spec, modules))
    assert not modules & set(loaded)


@pytest.mark.parametrize("collections", [2000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow(collections: int) -> None:
    """GPUs that come and go leave nothing behind once the pools are filled, and after them not one page is added."""
    soak = subprocess.run(
        [sys.executable, str(MEASURE), "soak", "--collections", str(collections), "--gpus", "2"],
        check=True,
        capture_output=True,
        text=True,
    )
    result = json.loads(soak.stdout)
    assert result["failed"] == 0
    assert result["bytes_per_collection"] < 5, "measured: 0.2, from 5,000 collections on 0"
    start, filled, upset, _ = result["rss_mb"]
    assert filled - start < 3.4, "measured: 1.0, after 20,000 collections 2.4"
    assert upset - filled < 0.6, "measured: 0.3"
