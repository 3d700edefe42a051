"""The supervisor's log of its worker and its GPUs: each change once, and nothing untrue."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.gpu import failure_log
from tachograph.node.gpu.source import ADVICE
from tachograph.node.gpu.worker_protocol import STARTING, GpuReading, LineWriter, NodeReading
from tachograph.node.samples import GpuIdentity

Sources = Callable[..., Any]
Logged = Callable[..., list[str]]

LOST, MISMATCH = 15, 18


async def some_more(source: Any) -> None:
    """Wait for three more collections."""
    for _ in range(3):
        last = source.shown().monotonic
        await source.until(lambda: source.shown().monotonic > last)  # noqa: B023


def test_a_killed_worker_is_started_again(node: Any, a_source: Sources, logged: Logged) -> None:
    """The worker's death is logged once with its signal, and a new one continues the readings."""
    source = a_source()

    async def check() -> None:
        await source.until(source.all_up)
        (worker,) = source.workers()
        os.kill(worker, signal.SIGKILL)
        await source.until(lambda: source.workers() not in ([], [worker]))
        killed = time.monotonic()
        await source.until(lambda: (found := source.snapshot()) and found.ok and found.monotonic > killed)

    source.while_running(check)
    assert logged() == [
        "reading 8 GPUs",
        "no GPU readings: the GPU worker was killed by signal 9",
        "reading 8 GPUs",
    ]
    assert source.worker_ends() == {"crashed": 1, "killed": 0, "driver": 0}


def test_a_node_without_a_driver_says_so_once(node: Any, a_source: Sources, logged: Logged) -> None:
    """No driver: not ok, a reason, one line in the log that says what to do, however long it lasts."""
    node.state.init_error = 9
    source = a_source()

    async def check() -> None:
        await source.until(lambda: source.snapshot() is not None)
        await some_more(source)
        last = source.snapshot()
        assert last is not None
        assert (last.ok, last.samples, last.reason) == (False, (), "the NVIDIA driver is not loaded")
        assert source.collectors() == {"gpu": "no_driver", "gpm": "no_driver", "xid": "no_driver"}
        assert "no_driver" in catalog.COLLECTOR_REASONS

    source.while_running(check)
    advice = ADVICE["no_driver"]
    assert logged() == [f"no GPU readings: the NVIDIA driver is not loaded; {advice}"]


def test_a_lost_gpu_is_logged_once_and_again_when_it_is_back(node: Any, a_source: Sources, logged: Logged) -> None:
    """One lost GPU is a state, told at its beginning and its end; the collection as a whole is fine."""
    source = a_source()

    async def check() -> None:
        await source.until(source.all_up)
        node.gpus[3].error = LOST
        await source.until(lambda: 0 in source.ups())
        assert source.ups() == [1, 1, 1, 0, 1, 1, 1, 1]
        assert source.is_ok()
        await some_more(source)
        node.gpus[3].error = 0
        await source.until(lambda: 0 not in source.ups())

    source.while_running(check)
    name = f"GPU 3 ({node.gpus[3].uuid.decode()})"
    assert logged() == ["reading 8 GPUs", f"{name}: GPU is lost", f"{name}: readable again"]


def test_a_replaced_driver_gets_a_new_worker(node: Any, a_source: Sources, logged: Logged) -> None:
    """After a driver upgrade under load a fresh process reads on; the reason is logged once."""
    source = a_source()

    async def check() -> None:
        await source.until(source.all_up)
        before = source.workers()
        node.break_all(MISMATCH)
        await source.until(lambda: source.why() == ["driver_mismatch"] * 8)
        node.break_all(0)
        await source.until(source.all_up)
        assert source.workers() != before

    source.while_running(check)
    reason = "no GPU readings: the NVIDIA driver was replaced: its library and kernel module differ"
    assert logged() == ["reading 8 GPUs", reason, "reading 8 GPUs"]
    assert source.worker_ends()["driver"] >= 1
    assert source.worker_ends()["crashed"] == source.worker_ends()["killed"] == 0


def test_what_a_part_lacks_is_logged_once(node: Any, a_source: Sources, logged: Logged) -> None:
    """A note, such as on a device whose peak is not known, is one line for all its GPUs, however often read."""
    for gpu in node.gpus:
        gpu.name = b"NVIDIA H99 ULTRA"
    source = a_source()

    async def check() -> None:
        await source.until(source.all_up)
        await some_more(source)

    source.while_running(check)
    (note,) = [line for line in logged() if "H99" in line]
    assert "peak" in note


A, B = ("0", "GPU-a"), ("1", "GPU-b")
NAME = "GPU 0 (GPU-a)"
SCRIPTED_WORKER = """
import sys
for line in open(sys.argv[1]):
    print(line, end="", flush=True)
sys.stdin.read()
"""


def line(*up: tuple[str, str], word: str = "", reason: str = "", down: str = "", **failures: str) -> NodeReading:
    """Return a collection: these GPUs are up, A is down for a reason, and these readings of A fail."""
    gpus = []
    for index, uuid in up:
        own = {f"{name} of GPU 0": why for name, why in failures.items()} if (index, uuid) == A else {}
        gpu = GpuReading(GpuIdentity(index, uuid, "NVIDIA H100"), "" if uuid else STARTING, failures=own)
        gpus.append(gpu)
    if down:
        gpus.append(GpuReading(GpuIdentity(*A, "NVIDIA H100")).down(down, f"it is {down}"))
    return NodeReading(tuple(gpus), (), (), {"gpu": word, "gpm": "", "xid": ""}, 0.01, reason, {}, {})


@pytest.fixture
def log_of(
    a_source: Sources, logged: Logged, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> Callable[[list[Any]], list[str]]:
    """Have a worker say lines; return what is logged of them."""

    def say(lines: list[Any]) -> list[str]:
        caplog.clear()
        writer = LineWriter()
        script = tmp_path / "lines"
        script.write_text(
            "".join(f"{writer.line(said)}\n" for said in [*lines, replace(lines[-1], notes={"the": "end"})])
        )
        source = a_source(command=(sys.executable, "-c", SCRIPTED_WORKER, str(script)))
        source.while_running(lambda: source.until(lambda: "the: end" in logged()))
        return logged()[:-1]

    return say


def test_an_unplugged_gpu_is_not_said_to_be_readable(log_of: Any) -> None:
    """Gone from the driver's list is no recovery, also if another GPU has its index; coming back at another one is."""
    gone = [line(A, B), line(B, down="lost"), *2 * [line(B)], *2 * [line(("0", B[1]))]]
    told = ["reading 2 GPUs", f"{NAME}: it is lost", f"{NAME}: unplugged"]
    assert log_of(gone) == told


def test_a_gpu_that_is_plugged_in_again_is_said_to_be_readable(log_of: Any) -> None:
    """Its UUID is who it is, at whatever index."""
    back = log_of([line(A, B), line(("0", B[1])), line(("0", B[1]), ("1", A[1]))])
    assert back == ["reading 2 GPUs", f"{NAME}: unplugged", "GPU 0 (GPU-a): readable again"]


@pytest.mark.parametrize("between", [line(A, B, word="no_driver", reason="no driver"), line(("0", ""), B)])
def test_a_gpu_of_which_nothing_is_known_is_not_said_to_be_readable(log_of: Any, between: Any) -> None:
    """While the driver is away, or the GPU is opened again, its old failure stands, and is not told again."""
    log = log_of([line(A, B), *3 * [line(B, down="lost"), between]])
    assert [entry for entry in log if "GPU " in entry and "no GPU" not in entry] == [f"{NAME}: it is lost"]
    log = log_of([line(A, B), line(B, down="lost"), between, line(A, B)])
    assert log[-1] == f"{NAME}: readable again"


def test_a_reading_of_a_gpu_that_is_down_is_not_said_to_be_readable(log_of: Any) -> None:
    """A GPU that falls off the bus has no failed readings, because it has none."""
    lost = [line(A, B, power="broken"), *2 * [line(B, down="lost")]]
    assert len(log_of(lost)) == 3
    log = log_of([*lost, line(A, B)])
    assert log[1:] == ["power of GPU 0: broken", f"{NAME}: it is lost", *log[3:]]
    assert sorted(log[3:]) == [f"{NAME}: readable again", "power of GPU 0: readable again"]


def test_what_flaps_does_not_flood_the_log(log_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for each subject and reason, however often a reading, a GPU or the only one of a node comes and goes."""
    monkeypatch.setattr(failure_log, "STEADY_SECONDS", 60.0)
    turns = [
        line(A, B, power="broken"),
        line(A, B),
        line(B, down="lost"),
        line(A, B, power="out of order"),
        line(down="lost", word="error", reason="no GPU can be read"),
        line(A, B),
    ]
    assert log_of(100 * turns) == [
        "reading 2 GPUs",
        "power of GPU 0: broken",
        f"{NAME}: it is lost",
        "power of GPU 0: out of order",
        "no GPU readings: no GPU can be read",
    ]
