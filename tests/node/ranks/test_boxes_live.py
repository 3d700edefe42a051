"""Boxes of real ranks, by the client that is shipped, over the exporter's real socket."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.node.clock import Clock
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.listener import Listener
from tachograph.node.ranks.rank_table import RankTable
from tests.waiting import meanwhile

DEADLINE = 60.0
PROGRAM = """
import sys, time
from tachograph.client.recorder import Recorder
recorder = Recorder(run="llama/7b", rank=int(sys.argv[1]), world_size=4)
def load_shard():
    if sys.argv[2] == "fails": raise FileNotFoundError("shard 7")
    while True: time.sleep(0.01)  # here
for batch in range(3):
    with recorder.step(): pass
with recorder.phase("data"): load_shard()
"""
WAITS = next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if "# here" in line)
RAISES = WAITS - 1


@pytest.fixture
def node(two_gpus: Any) -> Any:
    """Runs a coroutine with the processes of four ranks, one of which fails at once, and the exporter's table."""

    def run(body: Callable[[RankTable, list[subprocess.Popen[bytes]]], Any]) -> None:
        async def main() -> None:
            with tempfile.TemporaryDirectory() as folder:
                table = RankTable(Limits(), Clock(), two_gpus)
                listener = Listener(Path(folder) / "rank.sock", 0o666, Limits(), Clock(), table)
                await listener.open()
                ranks = [
                    subprocess.Popen(
                        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(rank), "fails" if rank == 3 else "waits"],
                        env={**os.environ, "TACHOGRAPH_SOCKET": str(listener.path), "TACHOGRAPH_BLACKBOX": "1"},
                        stderr=subprocess.DEVNULL,
                    )
                    for rank in range(4)
                ]  # fmt: skip
                try:
                    await asyncio.wait_for(body(table, ranks), DEADLINE)
                finally:
                    for rank in ranks:
                        rank.kill()
                        rank.wait()
                    await listener.close()

        asyncio.run(main())

    return run


def test_boxes_come_by_failure_signal_and_request(node: Any) -> None:
    """A failure's by itself, after its bye; one by SIGUSR2; those of the others, who are asked."""

    async def body(table: RankTable, ranks: list[subprocess.Popen[bytes]]) -> None:
        def boxes() -> dict[int, Any]:
            return {box.rank: box for box in table.boxes.of("llama/7b")}

        await meanwhile(lambda: 3 in boxes())
        assert boxes()[3].reason == "failed: exception"
        assert json.loads(boxes()[3].text)["where"] == f"<string>:{RAISES} load_shard"
        await meanwhile(lambda: sum(rank.step is not None for rank in table.ranks()) == 4)
        ranks[1].send_signal(signal.SIGUSR2)
        await meanwhile(lambda: 1 in boxes())
        assert table.capture("llama/7b", "asked for by alice") == 3
        await meanwhile(lambda: len(boxes()) == 4)
        reasons = {rank: box.reason for rank, box in boxes().items()}
        asked = "asked for by alice"
        assert reasons == {0: asked, 1: "SIGUSR2", 2: asked, 3: "failed: exception"}
        for rank in range(3):
            box = json.loads(boxes()[rank].text)
            assert (box["rank"], box["phase"], box["pid"]) == (rank, "data", ranks[rank].pid)
            assert box["where"] == f"<string>:{WAITS} load_shard"
        assert sum(table.rejected.values()) == 0
        assert sorted(rank.outcome for rank in table.ranks()) == ["", "", "", "failed"]

    node(body)
