"""A node and its ranks' frames, without a simulation."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tachograph.node.clock import Clock
from tachograph.node.nic.port_reading import PortReading
from tachograph.node.shown_gpus import NoGpus
from tachograph_lab.live.live_fleet import subnet_of_loopback
from tachograph_lab.live.live_node import LiveNode
from tests.waiting import DEADLINE

RUN = "live"


class StillNode:
    """A node whose state the test sets."""

    def __init__(self, name: str = "node-0") -> None:
        self.name = name
        self.gpus = NoGpus()
        self.exporter_up = self.up = self.reachable = True
        self.ahead = 0.0

    def take(self) -> Sequence[PortReading]:
        return ()

    def trouble(self) -> str:
        return ""

    def host_samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        yield "node_memory_MemAvailable_bytes", {}, 5e9
        yield "node_network_up", {"device": 'a"b\\c'}, 1


class Frames:
    """The frames of a rank of the run `live`."""

    run = RUN

    def frame(self, kind: str, **fields: object) -> bytes:
        return json.dumps({"v": 1, "type": kind, **fields}, separators=(",", ":")).encode()

    def hello(self, rank: int) -> bytes:
        return self.frame("hello", run=RUN, rank=rank, pid=10**6 + rank)  # nobody's: the test itself outlives its ranks

    def state(self, steps: int) -> bytes:
        now = time.time()
        return self.frame("state", seq=steps, time=now, step=steps, phase="data", phase_since=now, progress_time=now,
                          metrics={"steps_total": steps})  # fmt: skip


class Looks:
    """Scrapes without blocking the event loop."""

    async def page(self, address: str, seconds: float = DEADLINE) -> str:
        def get() -> str:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=seconds) as response:
                return str(response.read().decode())

        try:
            return await asyncio.to_thread(get)
        except urllib.error.URLError as error:
            if isinstance(error.reason, Exception):
                raise error.reason from error
            raise

    async def by_rank(self, address: str, metric: str) -> dict[int, float]:
        page = await self.page(address)
        found = re.findall(rf'^{metric}{{run="{RUN}",rank="(\d+)"}} (\S+)$', page, re.MULTILINE)
        return {int(rank): float(value) for rank, value in found}

    async def until(self, look: Callable[[], Awaitable[Any]], wanted: object) -> None:
        """Return once `look` returns the wanted value; fail with its last value."""
        deadline = time.monotonic() + DEADLINE
        while (found := await look()) != wanted:
            assert time.monotonic() < deadline, f"{found} is not {wanted}"
            await asyncio.sleep(0.02)


@pytest.fixture
def frames() -> Frames:
    return Frames()


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
def subnet() -> Iterator[int]:
    with subnet_of_loopback() as second_octet:
        yield second_octet


@pytest.fixture
def still() -> StillNode:
    return StillNode()


@pytest.fixture
def still_nodes() -> tuple[StillNode, ...]:
    return StillNode("node-0"), StillNode("node-1")


@pytest.fixture
def live(still: StillNode, subnet: int, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], LiveNode]:
    """Return a function that makes the test's node; call it in the event loop."""
    socket = Path(tmp_path_factory.mktemp("n")) / "rank.sock"
    return lambda: LiveNode(still, f"127.{subnet}.0.1", socket, Clock())
