"""The exporter put together: a part that fails costs that part alone."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from tachograph.node.config import read_config
from tachograph.node.exporter import Exporter
from tachograph.node.readings import GpuSnapshot


class Gpus:
    """A GPU side that does what it is told."""

    def __init__(self, snapshot: GpuSnapshot | None, error: Exception | None = None) -> None:
        self.last, self.error = snapshot, error

    async def run(self) -> None:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()

    def snapshot(self) -> GpuSnapshot | None:
        return self.last

    def gpus(self) -> tuple[Any, ...]:
        return ()

    def peak_flops(self, uuid: str, precision: str) -> float | None:
        return None


def config(folder: Path) -> Any:
    return read_config([f"--socket={folder}/rank.sock", "--web.listen-address=127.0.0.1:0"], {})


def shown(exporter: Exporter) -> dict[tuple[str, ...], float]:
    return {(s.metric.name, *s.labels): getattr(s, "value", None) for s in exporter.samples()}


def run_for_a_moment(exporter: Exporter) -> None:
    async def serve() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, stop.set)
        await exporter.run(stop)

    asyncio.run(serve())


def test_gpu_side_that_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever ends the GPU side is logged once; the ranks are served on, and nothing is left behind."""
    exporter = Exporter(config(tmp_path), Gpus(None, RuntimeError("driver gone")))
    with caplog.at_level(logging.INFO, "tachograph"):
        run_for_a_moment(exporter)
    assert [record.message for record in caplog.records].count("GPU readings ended") == 1
    assert "serving" in caplog.text
    assert not (tmp_path / "rank.sock").exists()


def test_gpu_collector_health(tmp_path: Path, hand: Any) -> None:
    """The gpu collector's health is 0 before the first and after a failed collection, 1 after a good one, absent when
    GPUs are left alone.
    """  # noqa: D205
    name = "tachograph_exporter_collector_success"
    good = GpuSnapshot((), 0.25, hand.now - 2.0, True, "")
    values = shown(Exporter(config(tmp_path), Gpus(good), hand.clock))
    assert values[name, "gpu"] == 1
    assert values["tachograph_exporter_collector_duration_seconds", "gpu"] == 0.25
    assert values["tachograph_exporter_collector_age_seconds", "gpu"] == 2.0
    failed = GpuSnapshot((), 0.25, hand.now, False, "no driver")
    assert shown(Exporter(config(tmp_path), Gpus(failed), hand.clock))[name, "gpu"] == 0
    none_yet = shown(Exporter(config(tmp_path), Gpus(None), hand.clock))
    assert none_yet[name, "gpu"] == 0
    assert ("tachograph_exporter_collector_age_seconds", "gpu") not in none_yet
    left_alone = shown(Exporter(config(tmp_path), None, hand.clock))
    assert (name, "gpu") not in left_alone
    assert left_alone[name, "ranks"] == 1


def test_ranks_that_cannot_be_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A fault of ours in the rank table costs the ranks: success 0, one line in the log, and the rest is served."""
    exporter = Exporter(config(tmp_path), Gpus(None))

    def broken() -> Any:
        raise RuntimeError("a fault of ours")

    exporter._table.samples = broken  # type: ignore[method-assign]
    for _ in range(3):
        values = shown(exporter)
    assert values["tachograph_exporter_collector_success", "ranks"] == 0
    assert values["tachograph_exporter_collector_success", "gpu"] == 0
    assert ("process_resident_memory_bytes",) in values
    assert caplog.text.count("ranks cannot be shown") == 1


def test_ready_says_what_is_missing(tmp_path: Path) -> None:
    """Not ready until ranks can connect; without GPUs it is ready, and says why there are none."""
    exporter = Exporter(config(tmp_path), Gpus(GpuSnapshot((), 0.0, 0.0, False, "no NVIDIA driver")))
    assert exporter._ready() == (False, "not ready: the socket of the ranks is not open yet\n")
    seen: list[tuple[bool, str]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, lambda: (seen.append(exporter._ready()), stop.set()))
        await exporter.run(stop)

    asyncio.run(serve())
    assert seen == [(True, "ready: ranks can connect; no GPU readings: no NVIDIA driver\n")]
