"""The exporter put together: a part that fails costs that part alone."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.app import Exporter
from tachograph.node.config import read_config
from tachograph.node.ranks.frames import Bye, Hello, Peer
from tachograph.node.samples import GpuIdentity, GpuSnapshot, Sample
from tachograph.node.scrape_times import ScrapeTimes


class Gpus:
    """GPU readings that are set by hand."""

    def __init__(self, snapshot: GpuSnapshot | None, error: Exception | None = None, **collectors: str) -> None:
        self.last, self.error = snapshot, error
        self.states = collectors or {"gpu": "starting", "gpm": "starting", "xid": "starting"}
        self.ends = dict.fromkeys(catalog.WORKER_END_CAUSES, 0)
        self.known: tuple[GpuIdentity, ...] = ()

    async def run(self) -> None:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()

    def snapshot(self) -> GpuSnapshot | None:
        return self.last

    def gpus(self) -> tuple[GpuIdentity, ...]:
        return self.known

    def gpu_of_pid(self, pid: int) -> GpuIdentity | None:
        return None

    def processes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def peak_flops(self, uuid: str, precision: str) -> float | None:
        return None

    def collectors(self) -> dict[str, str]:
        return self.states

    def worker_ends(self) -> dict[str, int]:
        return self.ends


def config(folder: Path, *flags: str) -> Any:
    return read_config([f"--socket={folder}/rank.sock", "--web.listen-address=127.0.0.1:0", *flags], {})


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


def test_an_end_is_scraped_before_the_exporter_ends(
    tmp_path: Path, hand: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that finished a moment before its exporter is asked to end does not look like one that trains on."""
    exporter = Exporter(config(tmp_path, "--run.owner=never"), None, hand.clock)
    exporter.table.hello("link", Hello(v=1, run="r", rank=0), Peer(1000, 1))

    async def page(before: bytes = b"") -> bytes:
        """Return a newer page than the one before: one is made each second, for all who ask."""
        (address,) = [record.address for record in caplog.records if record.message == "serving"]
        while (found := await asyncio.to_thread(lambda: urlopen(f"http://{address}/metrics").read())) == before:
            await asyncio.sleep(0.05)
        return found

    async def serve() -> bytes:
        stop = asyncio.Event()
        running = asyncio.create_task(exporter.run(stop))
        while not exporter._ready()[0]:
            await asyncio.sleep(0.01)
        first = await page()
        hand.turn(6.0)
        second = await page(first)
        hand.turn(1.0)
        exporter.table.bye("link", Bye(v=1, outcome="finished"))
        stop.set()
        last = await page(second)
        await running
        return last

    with caplog.at_level(logging.INFO, "tachograph"):
        assert b'state="finished"} 1' in asyncio.run(serve())


def test_when_a_last_scrape_is_worth_waiting_for() -> None:
    """Not if nobody scrapes, not for one that is overdue, nor for one that comes after the exporter has been killed."""
    times = ScrapeTimes()
    assert times.seconds_left(10.0) == 0.0
    times.note(10.0)
    assert times.seconds_left(11.0) == 0.0
    times.note(15.0)
    assert times.seconds_left(16.0) == pytest.approx(5.0)
    assert (times.has_shown(14.0), times.has_shown(16.0)) == (True, False)
    assert times.seconds_left(30.0) == 0.0
    times.note(30.0)
    assert times.seconds_left(31.0) == 0.0


def test_the_old_word_for_all_series_is_said_to_be_old(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`rank.detail` and `gpu.detail` are one line in the log, at the start, that names what to write instead."""
    run_for_a_moment(Exporter(config(tmp_path, "--rank.series=all", "--gpu.series=all"), None))
    assert "deprecated" not in caplog.text
    run_for_a_moment(Exporter(config(tmp_path, "--rank.detail"), None))
    assert caplog.text.count("rank.detail is deprecated") == caplog.text.count("use rank.series=all") == 1
    run_for_a_moment(Exporter(config(tmp_path, "--gpu.detail"), None))
    assert caplog.text.count("gpu.detail is deprecated") == caplog.text.count("use gpu.series=all") == 1


SUCCESS = "tachograph_exporter_collector_success"
UNAVAILABLE = "tachograph_exporter_collector_unavailable_info"


def test_gpu_collector_health(tmp_path: Path, hand: Any) -> None:
    """Each GPU collector shows 1, or 0 and a reason; duration and age only after a collection; none if disabled."""
    good = Gpus(GpuSnapshot((), 0.25, hand.now - 2.0, True, ""), gpu="", gpm="not_supported", xid="no_permission")
    values = shown(Exporter(config(tmp_path), good, hand.clock))
    assert {key[1:]: value for key, value in values.items() if key[0] in (SUCCESS, UNAVAILABLE)} == {
        ("gpu",): 1, ("gpm",): 0, ("xid",): 0, ("ranks",): 1, ("gpm", "not_supported"): 1, ("xid", "no_permission"): 1,
    }  # fmt: skip
    assert values["tachograph_exporter_collector_duration_seconds", "gpu"] == 0.25
    assert values["tachograph_exporter_collector_age_seconds", "gpu"] == 2.0
    none_yet = shown(Exporter(config(tmp_path), Gpus(None), hand.clock))
    assert none_yet[SUCCESS, "gpu"] == 0
    assert none_yet[UNAVAILABLE, "gpu", "starting"] == 1
    assert ("tachograph_exporter_collector_age_seconds", "gpu") not in none_yet
    left_alone = shown(Exporter(config(tmp_path), None, hand.clock))
    assert {key[1:] for key in left_alone if key[0] == SUCCESS} == {("ranks",)}
    assert not any(key[0] in (UNAVAILABLE, catalog.WORKER_ENDS.name) for key in left_alone)


def test_health_in_words(tmp_path: Path) -> None:
    """A collector that the device does not support is not shown as a fault; other reasons are shown as they are."""
    gpus = Gpus(None, gpu="", gpm="not_supported", xid="no_permission")
    page = Exporter(config(tmp_path), gpus)._status_page()
    assert "<dd>gpu: reading, gpm: not on these GPUs, xid: no permission</dd>" in page
    assert "<dt>Readings</dt><dd>none</dd>" in Exporter(config(tmp_path), None)._status_page()


def test_ends_of_the_worker(tmp_path: Path) -> None:
    """Ends of the GPU worker are counted by cause, and each cause is there from the start."""
    gpus = Gpus(None)
    gpus.ends["killed"] = 2
    values = shown(Exporter(config(tmp_path), gpus))
    counts = {key[1]: value for key, value in values.items() if key[0] == catalog.WORKER_ENDS.name}
    assert counts == {"crashed": 0, "killed": 2, "driver": 0}


GPU = ("0", "GPU-aaaa")
READINGS = (
    Sample(catalog.GPU_UP, GPU, 1),
    Sample(catalog.GPU_INFO, (*GPU, "NVIDIA H100", "00000000:3B:00.0", "", "", "580.95.05", "13.0"), 1),
    Sample(catalog.GPU_MEMORY_USED, GPU, 3 * 2.0**30),
    Sample(catalog.GPU_MEMORY_FREE, GPU, 2.0**30),
    Sample(catalog.GPU_SM_ACTIVE, GPU, 0.5),
    Sample(catalog.GPU_SM_ACTIVE_CYCLES, GPU, 1e12),
)


@pytest.mark.parametrize(
    ("flags", "seen"),
    [
        ((), {catalog.GPU_MEMORY_USED.name, catalog.GPU_SM_ACTIVE_CYCLES.name}),
        (("--gpu.series=all",), {sample.metric.name for sample in READINGS[2:]}),
        (
            ("--gpu.dcgm-names",),
            {catalog.GPU_MEMORY_USED.name, catalog.GPU_SM_ACTIVE_CYCLES.name, "DCGM_FI_DEV_FB_USED",
             "DCGM_FI_DEV_FB_FREE"},
        ),
    ],
    ids=["plain", "detail", "DCGM"],
)  # fmt: skip
def test_what_is_shown_of_a_gpu(tmp_path: Path, hand: Any, flags: tuple[str, ...], seen: set[str]) -> None:
    """Detail is shown if asked for; DCGM's names also show what is otherwise hidden."""
    gpus = Gpus(GpuSnapshot(READINGS, 0.01, hand.now, True, ""), gpu="")
    names = {key[0] for key in shown(Exporter(config(tmp_path, *flags), gpus, hand.clock))}
    every = {sample.metric.name for sample in READINGS[2:]}
    assert {name for name in names if name in every or name.startswith("DCGM_")} == seen


def test_jobs_of_a_mapping_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The jobs of a folder are shown; one that cannot be read costs the jobs, and a fault of ours is logged once."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/0").write_text("4711\n")
    gpus = Gpus(None)
    gpus.known = (GpuIdentity(*GPU, "NVIDIA H100"),)
    exporter = Exporter(config(tmp_path, f"--gpu.job-mapping-dir={tmp_path}/jobs"), gpus)
    assert shown(exporter)["tachograph_gpu_job_info", "0", "GPU-aaaa", "4711"] == 1
    without = Exporter(config(tmp_path, f"--gpu.job-mapping-dir={tmp_path}/none"), gpus)
    assert not any(key[0] == "tachograph_gpu_job_info" for key in shown(without))

    def broken(_: Any) -> Any:
        raise RuntimeError("a fault of ours")

    exporter._shown_gpus._jobs.samples = broken  # type: ignore[union-attr, method-assign]
    for _ in range(3):
        assert shown(exporter)[SUCCESS, "ranks"] == 1
    assert caplog.text.count("job mapping cannot be shown") == 1


def test_ranks_that_cannot_be_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A fault of ours in the rank table costs the ranks: success 0, one line in the log, and the rest is served."""
    exporter = Exporter(config(tmp_path), Gpus(None))

    def broken() -> Any:
        raise RuntimeError("a fault of ours")

    exporter._shown_ranks.blocks = broken  # type: ignore[method-assign]
    for _ in range(3):
        values = shown(exporter)
    assert values[SUCCESS, "ranks"] == 0
    assert values[UNAVAILABLE, "ranks", "error"] == 1
    assert values[SUCCESS, "gpu"] == 0
    assert ("process_resident_memory_bytes",) in values
    assert caplog.text.count("ranks cannot be shown") == 1


def test_a_tick_that_fails_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An internal fault in one tick is a log line a minute; the page is still renewed."""
    exporter = Exporter(config(tmp_path), Gpus(None))
    monkeypatch.setattr("tachograph.node.app.TICK_SECONDS", 0.01)

    def broken() -> None:
        raise RuntimeError("a fault of ours")

    exporter._table.tick = broken  # type: ignore[method-assign]

    async def serve() -> None:
        stop = asyncio.Event()
        serving = asyncio.create_task(exporter.run(stop))
        while exporter._ticks < 5:
            await asyncio.sleep(0)
            assert not serving.done()
        stop.set()
        await serving

    asyncio.run(asyncio.wait_for(serve(), 60))
    assert caplog.text.count("tick failed") == 1


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
