"""From NVML's list of processes to the rank's series: real sockets' pids, a real worker, a made-up library."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest

from tachograph.catalog.gpu import GPU_UP
from tachograph.catalog.rank import RANK_INFO, RANK_PEAK_FLOPS
from tachograph.node.clock import Clock
from tachograph.node.gpu.source import GpuSource
from tachograph.node.ranks.frames import Hello, Peer, State
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.shown_ranks import ShownRanks
from tests import waiting

LOST = 15


def test_a_process_on_a_gpu_is_the_rank_there(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that tells nothing of its GPU is found by its process, has that GPU's peak, and stays there when the GPU
    is lost, so that whoever is told of the loss is told whose it is.
    """  # noqa: D205
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    fake.gpus[3].process_id = os.getpid()
    source = GpuSource(interval=0.2, kmsg="")
    table = RankTable(Limits(), Clock(), source)
    link = object()
    table.hello(link, Hello(v=1, run="r", rank=5), Peer(os.getuid(), os.getpid()))
    table.state(link, State(v=1, seq=1, time=time.time()))
    (rank,) = table.ranks()

    def shown(metric: Any) -> list[Any]:
        return [sample for sample in ShownRanks(table).samples() if sample.metric is metric]

    def lost() -> bool:
        snapshot = source.snapshot()
        ups = {sample.labels[0]: sample.value for sample in snapshot.samples if sample.metric is GPU_UP}
        return ups["3"] == 0 and ups["4"] == 1

    async def play() -> None:
        running = asyncio.create_task(source.run())
        try:
            await waiting.meanwhile(lambda: table.tick() or rank.place[0])
            fake.gpus[3].error = LOST
            await waiting.meanwhile(lost)
        finally:
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(play())
    table.tick()
    (info,) = shown(RANK_INFO)
    assert info.labels[5:7] == ("3", fake.gpus[3].uuid.decode())
    (peak,) = shown(RANK_PEAK_FLOPS)
    assert peak.value == 989e12
