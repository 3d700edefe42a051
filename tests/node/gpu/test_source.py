"""The supervisor and its worker, real processes both: nothing waits for the driver, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.gpu.source import LEFT_LIMIT

Sources = Callable[..., Any]
Logged = Callable[..., list[str]]

DOWN = {catalog.GPU_UP, catalog.GPU_UNAVAILABLE, catalog.GPU_INFO}
"""What is shown of a GPU that is down while the worker speaks."""

INTERVAL = 0.2  # seconds; three of them are what a busy machine may delay a worker without a false alarm
FOREVER, LOST, MISMATCH = -1, 15, 18


def test_readings_arrive_with_identities_and_peaks(node: Any, a_source: Sources, logged: Logged) -> None:
    """The first collection makes the GPUs, their samples and their peaks known; before it there is nothing."""
    source = a_source()

    async def check() -> None:
        assert source.snapshot() is None
        await source.until(source.all_up)

    assert source.snapshot() is None
    source.while_running(check)
    snapshot = source.snapshot()
    assert snapshot is not None
    assert snapshot.ok
    assert snapshot.reason == ""
    assert source.ups() == [1] * 8
    assert snapshot.duration > 0
    assert source.metrics() >= {catalog.GPU_INFO, catalog.GPU_POWER, catalog.GPU_PEAK_FLOPS}
    assert all(len(sample.labels) == len(sample.metric.labels) for sample in snapshot.samples)
    assert [gpu.index for gpu in source.gpus()] == list("01234567")
    uuid = source.gpus()[3].uuid
    assert uuid == node.gpus[3].uuid.decode()
    assert source.peak_flops(uuid, "bf16") == source.peak_flops(uuid, "torch.bfloat16") == 989e12
    assert source.peak_flops(uuid, "int3") is None
    assert source.peak_flops("GPU-of-another-node", "bf16") is None
    assert logged() == ["reading 8 GPUs"]
    assert set(source.collectors()) == {"gpu", "gpm", "xid"}
    assert source.worker_ends() == {"crashed": 0, "killed": 0, "driver": 0}, "its own end is none"


def test_a_driver_that_blocks_never_delays_a_scrape(node: Any, a_source: Sources, logged: Logged) -> None:
    """Inside a call that never returns snapshot() answers, first with old values, then without; all heals by itself."""
    source = a_source(hasty=True)

    async def check() -> None:
        await source.until(source.all_up)
        await source.until(lambda: source.peak_flops(source.gpus()[0].uuid, "bf16") is not None)
        worker = source.workers()
        node.block(FOREVER)
        assert source.is_ok()
        await source.until(lambda: not source.is_ok())
        snapshot = source.snapshot()
        assert snapshot is not None
        assert source.metrics() == DOWN
        assert source.why() == ["hung"] * 8
        assert source.collectors()["gpu"] == "hung"
        assert snapshot.reason.startswith("driver call has not returned for ")
        assert source.peak_flops(source.gpus()[0].uuid, "bf16") == 989e12, "MFU does not move because NVML hangs"
        node.block(0)
        await source.until(source.all_up)
        assert source.workers() == worker, "the worker was left alone"

    source.while_running(check)
    assert logged(single=False) == [
        "reading 8 GPUs",
        "no GPU readings: driver call has not returned",
        "reading 8 GPUs",
    ]
    assert source.worker_ends() == {"crashed": 0, "killed": 0, "driver": 0}


def test_a_driver_that_blocks_from_the_start_is_told(node: Any, a_source: Sources) -> None:
    """An initialisation that never returns gives a reason, not an eternal "not yet"."""
    node.state.init_block_ms = FOREVER
    source = a_source(hasty=True)

    async def check() -> None:
        assert source.collectors() == {"gpu": "starting", "gpm": "starting", "xid": "starting"}
        await source.until(lambda: source.snapshot() is not None)
        snapshot = source.snapshot()
        assert snapshot is not None
        assert not snapshot.ok
        assert snapshot.samples == ()
        assert snapshot.reason.startswith("driver call has not returned for ")
        assert snapshot.reason.endswith("(nvmlInit)")
        assert source.collectors()["gpu"] == "hung"
        node.state.init_block_ms = 0
        await source.until(source.all_up)

    source.while_running(check)


def test_one_hung_gpu_never_costs_the_worker(node: Any, a_source: Sources) -> None:
    """However long one GPU hangs, the worker that reads the others is left alone, and the GPU heals by itself."""
    limit = 10 * INTERVAL
    source = a_source(hasty=True, silence_limit=limit)

    async def check() -> None:
        await source.until(source.all_up)
        worker = source.workers()
        node.hang(3)
        await source.until(lambda: 0 in source.ups())
        assert source.why() == ["hung"]
        hung_until = time.monotonic() + limit + INTERVAL
        await source.until(lambda: source.is_ok() and source.shown().monotonic > hung_until)
        assert source.ups() == [1, 1, 1, 0, 1, 1, 1, 1]
        node.heal(3)
        await source.until(lambda: 0 not in source.ups())
        assert source.workers() == worker

    source.while_running(check)
    assert source.worker_ends() == {"crashed": 0, "killed": 0, "driver": 0}


def test_a_driver_that_answers_for_no_gpu_gets_a_new_worker_in_the_end(
    node: Any, a_source: Sources, logged: Logged
) -> None:
    """All GPUs hung for the limit: killed, counted, started afresh; every GPU is down as hung all along."""
    source = a_source(silence_limit=2.0, hasty=True)

    async def check() -> None:
        await source.until(source.all_up)
        worker = source.workers()
        node.block(FOREVER)
        await source.until(lambda: source.why() == ["hung"] * 8)
        assert source.worker_ends()["killed"] == 0

        def hung(condition: bool) -> bool:
            assert source.why() == ["hung"] * 8
            assert source.metrics() >= {catalog.GPU_INFO}
            return condition

        await source.until(lambda: hung(source.worker_ends()["killed"] > 0))
        killed = time.monotonic()
        await source.until(lambda: hung(source.shown().monotonic > killed))  # the new worker meets the same driver
        node.block(0)
        await source.until(source.all_up)
        assert source.workers() != worker

    source.while_running(check)
    ends = source.worker_ends()
    assert ends == {"crashed": 0, "killed": ends["killed"], "driver": 0}
    told = [line for line in logged(single=False) if "was killed" in line]
    assert told == ends["killed"] * ["no GPU readings: the GPU worker was killed: no driver call returned"]


def test_only_long_silence_kills_the_worker(node: Any, a_source: Sources, gone: Any) -> None:
    """A worker silent for the limit is killed and replaced, and counted; never before."""
    source = a_source(silence_limit=3.0)

    async def check() -> None:
        await source.until(source.all_up)
        (worker,) = source.workers()
        os.kill(worker, signal.SIGSTOP)
        await source.until(lambda: not source.is_ok())
        snapshot = source.snapshot()
        assert snapshot is not None
        assert snapshot.reason.startswith("the GPU worker has been silent for ")
        assert source.why() == ["worker"] * 8
        assert source.workers() == [worker], "three intervals are no long silence"
        await source.until(lambda: source.workers() != [worker])
        assert gone(worker)
        await source.until(source.all_up)

    source.while_running(check)
    assert source.worker_ends() == {"crashed": 0, "killed": 1, "driver": 0}


def test_workers_that_cannot_be_ended_do_not_pile_up(
    node: Any, a_source: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With three held by the kernel in a driver call, no fourth is started before one of them ends."""

    class Held:
        returncode: int | None = None

    source = a_source(command=(sys.executable, "-c", "raise SystemExit(1)"))
    held: Any = [Held() for _ in range(LEFT_LIMIT)]
    source._left = list(held)

    async def check() -> None:
        await source.until(lambda: source.worker_ends()["crashed"] == 1)
        await asyncio.sleep(3 * INTERVAL)
        assert source.worker_ends()["crashed"] == 1
        held[0].returncode = -9
        await source.until(lambda: source.worker_ends()["crashed"] > 1)

    source.while_running(check)


def test_a_gpu_that_vanishes_with_a_restart_stays_known_as_down(node: Any, a_source: Sources) -> None:
    """A GPU once seen is not forgotten: gone from the driver's list, or without a name, it is the same one, down."""
    source = a_source()

    async def check() -> None:
        await source.until(source.all_up)
        known = source.gpus()
        (worker,) = source.workers()
        node.unplug(7)
        node.gpus[2].error = LOST
        os.kill(worker, signal.SIGKILL)
        await source.until(lambda: sorted(source.ups()) == [0, 0, 1, 1, 1, 1, 1, 1])
        snapshot = source.snapshot()
        assert snapshot is not None
        down = [sample.labels for sample in snapshot.samples if sample.metric is catalog.GPU_UNAVAILABLE]
        assert down == [("2", known[2].uuid, "lost"), ("7", known[7].uuid, "unplugged")]
        assert source.gpus() == known
        assert source.metrics() >= {catalog.GPU_INFO}

    source.while_running(check)


def test_a_rank_finds_its_gpu_by_its_pid(node: Any, a_source: Sources) -> None:
    """What NVML lists on a GPU is known by pid."""
    node.gpus[5].process_id = 4242
    source = a_source()

    async def check() -> None:
        await source.until(source.all_up)
        assert source.gpu_of_pid(4242) == source.gpus()[5]
        assert source.gpu_of_pid(1) is None

    source.while_running(check)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("/no/such/worker",), "the GPU worker cannot be started"),
        ((sys.executable, "-c", "print('{}')"), "the GPU worker wrote a line that cannot be read"),
        (
            (sys.executable, "-c", "raise SystemExit('out of order')"),
            "the GPU worker ended with status 1: out of order",
        ),
        (
            (sys.executable, "-c", "print('{', end='', flush=True); raise SystemExit('out of order')"),
            "the GPU worker ended with status 1: out of order",
        ),
    ],
)
def test_a_worker_that_does_not_work_is_a_reason(a_source: Sources, command: tuple[str, ...], reason: str) -> None:
    """A worker that cannot start, speaks nonsense or ends gives a reason with its last words."""
    source = a_source(command=command)

    async def check() -> None:
        await source.until(lambda: source.snapshot() is not None)
        snapshot = source.snapshot()
        assert snapshot is not None
        assert not snapshot.ok
        assert snapshot.reason.startswith(reason)

    source.while_running(check)


@pytest.mark.parametrize("blocked", [False, True])
def test_a_stopped_exporter_leaves_no_worker(
    node: Any, a_source: Sources, blocked: bool, monkeypatch: pytest.MonkeyPatch, gone: Any
) -> None:
    """Cancelling run() ends the worker, also one inside a driver call."""
    monkeypatch.setattr("tachograph.node.gpu.source.END_SECONDS", 0.3)
    source = a_source(hasty=True)

    async def check() -> None:
        await source.until(source.all_up)
        if blocked:
            node.block(FOREVER)
            await source.until(lambda: not source.is_ok())

    (worker,) = source.while_running(check)
    assert gone(worker)


PARENT = """
import asyncio
from tachograph.node.gpu.source import GpuSource

async def main():
    source = GpuSource(interval=0.1)
    asyncio.create_task(source.run())
    while not ((snapshot := source.snapshot()) and snapshot.ok):
        await asyncio.sleep(0.01)
    print("reading", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("blocked", [False, True])
def test_a_killed_exporter_leaves_no_worker(node: Any, blocked: bool, gone: Any, workers_of: Any) -> None:
    """A kill -9 of the exporter ends its worker, also one inside a driver call."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"reading\n"
        (worker,) = workers_of(parent.pid)
        if blocked:
            node.block(FOREVER)
        parent.kill()
        assert gone(worker)
