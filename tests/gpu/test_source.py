"""The supervisor and its worker, real processes both: nothing waits for the driver, and nothing is left behind."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph import catalog
from tachograph.node import gpu_source
from tachograph.node.gpu_source import GpuSource
from tachograph.node.readings import GpuSnapshot

INTERVAL = 0.2  # seconds; three of them are what a busy machine may delay a worker without a false alarm
FOREVER, LOST, MISMATCH = -1, 15, 18


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(gpu_source, "FIRST_DELAY", 0.05)
    caplog.set_level(logging.INFO, logger="tachograph")


@pytest.fixture
def node(fake: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Eight made-up GPUs that the worker will find."""
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    return fake


def while_running(source: GpuSource, check: Callable[[], Awaitable[None]]) -> list[int]:
    """Run the source for as long as `check` takes; return the workers that were alive at its end."""

    async def main() -> list[int]:
        task = asyncio.create_task(source.run())
        try:
            await check()
            return children(os.getpid())
        finally:
            task.cancel()
            await asyncio.wait([task])

    return asyncio.run(main())


async def until(condition: Callable[[], object], seconds: float = 8.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come true in time"
        await asyncio.sleep(0.01)


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = stat.read_text().rpartition(")")
            words = (stat.parent / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(rest.split()[1]) == pid and b"gpu_worker" in words:
            found.append(int(stat.parent.name))
    return found


def ups(snapshot: GpuSnapshot | None) -> list[float]:
    assert snapshot is not None
    return [sample.value for sample in snapshot.samples if sample.metric is catalog.GPU_UP]


def is_ok(source: GpuSource) -> bool:
    snapshot = source.snapshot()
    return snapshot is not None and snapshot.ok


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("tachograph")]


def test_readings_arrive_with_identities_and_peaks(node: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The first collection makes the GPUs, their samples and their peaks known; before it there is nothing."""
    source = GpuSource(interval=INTERVAL)

    async def check() -> None:
        assert source.snapshot() is None
        await until(lambda: is_ok(source))

    assert source.snapshot() is None
    while_running(source, check)
    snapshot = source.snapshot()
    assert snapshot is not None
    assert snapshot.ok
    assert snapshot.reason == ""
    assert ups(snapshot) == [1] * 8
    assert 0 < snapshot.duration < 1
    assert {sample.metric for sample in snapshot.samples} == set(catalog.gpu_metrics())
    assert all(len(sample.labels) == len(sample.metric.labels) for sample in snapshot.samples)
    assert [gpu.index for gpu in source.gpus()] == list("01234567")
    uuid = source.gpus()[3].uuid
    assert uuid == node.gpus[3].uuid.decode()
    assert source.peak_flops(uuid, "bf16") == source.peak_flops(uuid, "torch.bfloat16") == 989e12
    assert source.peak_flops(uuid, "int3") is None
    assert source.peak_flops("GPU-of-another-node", "bf16") is None
    assert logged(caplog) == ["reading 8 GPUs"]


def test_a_driver_that_blocks_never_delays_a_scrape(node: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Inside a call that never returns: snapshot() is instant, old values go after 3 intervals, all heals by itself."""
    source = GpuSource(interval=INTERVAL)
    slowest = 0.0

    async def check() -> None:
        nonlocal slowest
        await until(lambda: is_ok(source))
        worker = children(os.getpid())
        node.block(FOREVER)
        blocked = time.monotonic()
        while is_ok(source):
            before = time.perf_counter()
            source.snapshot()
            slowest = max(slowest, time.perf_counter() - before)
            assert time.monotonic() - blocked < 5
            await asyncio.sleep(0.005)
        assert time.monotonic() - blocked > 2 * INTERVAL, "a value is good for 3 intervals"
        snapshot = source.snapshot()
        assert snapshot is not None
        assert {sample.metric for sample in snapshot.samples} == {catalog.GPU_UP}
        assert ups(snapshot) == [0] * 8
        assert snapshot.reason.startswith("driver call does not return for ")
        assert source.peak_flops(source.gpus()[0].uuid, "bf16") == 989e12, "MFU does not move because NVML hangs"
        await asyncio.sleep(6 * INTERVAL)
        node.block(0)
        await until(lambda: is_ok(source))
        assert children(os.getpid()) == worker, "the worker was left alone"

    while_running(source, check)
    assert slowest < 0.01
    assert logged(caplog) == [
        "reading 8 GPUs",
        "no GPU readings: driver call does not return",
        "reading 8 GPUs",
    ]


def test_a_driver_that_blocks_from_the_start_is_told(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An initialisation that never returns gives a reason, not an eternal "not yet"."""
    monkeypatch.setattr(gpu_source, "START_SECONDS", 0.6)
    node.state.init_block_ms = FOREVER
    source = GpuSource(interval=INTERVAL)

    async def check() -> None:
        await until(lambda: source.snapshot() is not None)
        snapshot = source.snapshot()
        assert snapshot is not None
        assert not snapshot.ok
        assert snapshot.samples == ()
        assert snapshot.reason.startswith("driver call does not return for ")
        node.state.init_block_ms = 0
        await until(lambda: is_ok(source))

    while_running(source, check)


def test_only_long_silence_kills_the_worker(node: Any, gone: Any) -> None:
    """A worker silent for the limit is killed and replaced; never before."""
    source = GpuSource(interval=INTERVAL, silence_limit=1.0)

    async def check() -> None:
        await until(lambda: is_ok(source))
        (worker,) = children(os.getpid())
        node.block(FOREVER)
        blocked = time.monotonic()
        await until(lambda: children(os.getpid()) != [worker])
        assert time.monotonic() - blocked >= 1.0
        assert gone(worker, 1)
        node.block(0)
        await until(lambda: is_ok(source))

    while_running(source, check)


def test_a_killed_worker_is_started_again(node: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The worker's death is logged once with its signal, and readings go on in a new one."""
    source = GpuSource(interval=INTERVAL)

    async def check() -> None:
        await until(lambda: is_ok(source))
        (worker,) = children(os.getpid())
        os.kill(worker, signal.SIGKILL)
        await until(lambda: children(os.getpid()) not in ([], [worker]))
        killed = time.monotonic()
        await until(lambda: (found := source.snapshot()) and found.ok and found.monotonic > killed)

    while_running(source, check)
    assert logged(caplog) == [
        "reading 8 GPUs",
        "no GPU readings: the GPU worker was killed by signal 9",
        "reading 8 GPUs",
    ]


def test_a_node_without_a_driver_says_so_once(node: Any, caplog: pytest.LogCaptureFixture) -> None:
    """No driver: not ok, a reason, one line in the log however long it lasts."""
    node.state.init_error = 9
    source = GpuSource(interval=INTERVAL)

    async def check() -> None:
        await until(lambda: source.snapshot() is not None)
        first = source.snapshot()
        assert first is not None
        await until(lambda: (now := source.snapshot()) and now.monotonic > first.monotonic + 5 * INTERVAL)
        last = source.snapshot()
        assert last is not None
        assert (last.ok, last.samples, last.reason) == (False, (), "the NVIDIA driver is not loaded")

    while_running(source, check)
    assert logged(caplog) == ["no GPU readings: the NVIDIA driver is not loaded"]


def test_a_lost_gpu_is_logged_once_and_again_when_it_is_back(node: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One lost GPU is a state, told at its beginning and its end; the collection as a whole is fine."""
    source = GpuSource(interval=INTERVAL)

    async def check() -> None:
        await until(lambda: is_ok(source))
        node.gpus[3].error = LOST
        await until(lambda: 0 in ups(source.snapshot()))
        assert ups(source.snapshot()) == [1, 1, 1, 0, 1, 1, 1, 1]
        assert is_ok(source)
        await asyncio.sleep(5 * INTERVAL)
        node.gpus[3].error = 0
        await until(lambda: 0 not in ups(source.snapshot()))

    while_running(source, check)
    name = f"GPU 3 ({node.gpus[3].uuid.decode()})"
    assert logged(caplog) == ["reading 8 GPUs", f"{name}: GPU is lost", f"{name}: readable again"]


def test_a_gpu_that_vanishes_with_a_restart_stays_known_as_down(node: Any) -> None:
    """A GPU once seen is not forgotten: gone from the driver's list, or without a name, it is the same one, down."""
    source = GpuSource(interval=INTERVAL)

    async def check() -> None:
        await until(lambda: is_ok(source))
        known = source.gpus()
        (worker,) = children(os.getpid())
        node.state.count = 7
        node.gpus[2].error = LOST
        os.kill(worker, signal.SIGKILL)
        await until(lambda: sorted(ups(source.snapshot())) == [0, 0, 1, 1, 1, 1, 1, 1])
        snapshot = source.snapshot()
        assert snapshot is not None
        down = [sample.labels for sample in snapshot.samples if sample.metric is catalog.GPU_UP and not sample.value]
        assert sorted(down) == [(gpu.index, gpu.uuid) for gpu in (known[2], known[7])]
        assert source.gpus() == known

    while_running(source, check)


def test_a_replaced_driver_gets_a_new_worker(node: Any, caplog: pytest.LogCaptureFixture) -> None:
    """After a driver upgrade under load a fresh process reads on; the reason is logged once."""
    source = GpuSource(interval=INTERVAL)

    async def check() -> None:
        await until(lambda: is_ok(source))
        before = children(os.getpid())
        node.break_all(MISMATCH)
        await until(lambda: not is_ok(source))
        node.break_all(0)
        await until(lambda: is_ok(source))
        assert children(os.getpid()) != before

    while_running(source, check)
    reason = "no GPU readings: the NVIDIA driver was replaced: its library and kernel module differ"
    assert logged(caplog) == ["reading 8 GPUs", reason, "reading 8 GPUs"]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("/no/such/worker",), "the GPU worker cannot be started"),
        ((sys.executable, "-c", "print('{}')"), "the GPU worker wrote a line that cannot be read"),
        (
            (sys.executable, "-c", "raise SystemExit('out of order')"),
            "the GPU worker ended with status 1: out of order",
        ),
    ],
)
def test_a_worker_that_does_not_work_is_a_reason(command: tuple[str, ...], reason: str) -> None:
    """A worker that cannot start, speaks nonsense or ends gives a reason with its last words."""
    source = GpuSource(interval=INTERVAL, command=command)

    async def check() -> None:
        await until(lambda: source.snapshot() is not None)
        snapshot = source.snapshot()
        assert snapshot is not None
        assert not snapshot.ok
        assert snapshot.reason.startswith(reason)

    while_running(source, check)


@pytest.mark.parametrize("blocked", [False, True])
def test_a_stopped_exporter_leaves_no_worker(
    node: Any, blocked: bool, monkeypatch: pytest.MonkeyPatch, gone: Any
) -> None:
    """Cancelling run() ends the worker, also one inside a driver call."""
    monkeypatch.setattr(gpu_source, "END_SECONDS", 0.3)
    source = GpuSource(interval=INTERVAL)

    async def check() -> None:
        await until(lambda: is_ok(source))
        if blocked:
            node.block(FOREVER)
            await until(lambda: not is_ok(source))

    (worker,) = while_running(source, check)
    assert gone(worker, 1)


PARENT = """
import asyncio
from tachograph.node.gpu_source import GpuSource

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
def test_a_killed_exporter_leaves_no_worker(node: Any, blocked: bool, gone: Any) -> None:
    """A kill -9 of the exporter ends its worker within 2 s, also one inside a driver call."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"reading\n"
        (worker,) = children(parent.pid)
        if blocked:
            node.block(FOREVER)
        parent.kill()
        assert gone(worker, 2)


def test_the_worker_ends_with_its_stdin(node: Any) -> None:
    """Where the kernel cannot signal a parent's end, the end of stdin does."""
    command = [sys.executable, "-m", "tachograph.node.gpu_worker", "--interval", "30"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdin is not None
        assert worker.stdout.readline()
        worker.stdin.close()
        assert worker.wait(timeout=2) == 0


def test_the_worker_carries_no_server(node: Any) -> None:
    """The worker's memory is its own: no event loop, HTTP or exposition library is loaded in it."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, tachograph.node.gpu_worker; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert not {"asyncio", "aiohttp", "prometheus_client", "msgspec", "yaml", "pynvml"} & set(loaded)
