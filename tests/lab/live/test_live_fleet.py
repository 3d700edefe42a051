"""A fleet in one process: announced, played in real time, with an error if the machine is too slow for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tachograph_lab.fleet.messages import RankMessage
from tachograph_lab.live.live_fleet import Announcement, LiveFleet, read_announcement

KILLED = 3
STEPS = 3
RANKS_OF_A_NODE = 2


class Kill:
    """Two ranks on each node, a step in each turn, one of which makes one less and dies once it is to."""

    def __init__(self, nodes: Any, frames: Any) -> None:
        self.nodes = nodes
        self.now = -1.0
        self.turn = 0
        self.is_over = False
        self._frames = frames
        self._greeted: set[int] = set()
        self._killed = False

    def advance(self, now: float) -> None:
        assert now > self.now
        self.now = now
        self.turn += 1

    def messages(self) -> Iterator[RankMessage]:
        for rank in range(RANKS_OF_A_NODE * len(self.nodes)):
            node, connection = self.nodes[rank // RANKS_OF_A_NODE].name, (self._frames.run, rank, 0, 0)
            if rank not in self._greeted:
                self._greeted.add(rank)
                yield RankMessage(node, connection, self._frames.hello(rank))
            if rank != KILLED or not self.is_over:
                yield RankMessage(node, connection, self._frames.state(min(self.turn, STEPS - (rank == KILLED))))
            elif not self._killed:
                self._killed = True
                yield RankMessage(node, connection, None)


def while_it_plays(
    story: Any, folder: Path, subnet: int, starts_in: float, look: Callable[[Announcement], Awaitable[None]]
) -> None:
    async def run() -> None:
        stop = asyncio.Event()
        fleet = LiveFleet(story, time.time() + starts_in, folder, subnet)
        playing = asyncio.get_running_loop().create_task(fleet.play(stop))
        while (announced := read_announcement(folder)) is None:
            assert not playing.done(), playing.result()
            await asyncio.sleep(0.02)
        try:
            await look(announced)
        finally:
            stop.set()
            await playing

    asyncio.run(run())


def test_a_kill_is_seen_on_its_node_alone(
    still_nodes: Any, frames: Any, looks: Any, tmp_path: Path, subnet: int
) -> None:
    """Every node has its own exporter and its own ranks; a killed rank is dead there, the others keep training."""
    story = Kill(still_nodes, frames)

    async def look(announced: Announcement) -> None:
        assert list(announced.nodes) == ["node-0", "node-1"]

        async def up() -> list[dict[int, float]]:
            return [await looks.by_rank(place.exporter, "tachograph_rank_up") for place in announced.nodes.values()]

        steps = partial(looks.by_rank, announced.nodes["node-1"].exporter, "tachograph_train_steps_total")
        await looks.until(up, [{0: 1, 1: 1}, {2: 1, 3: 1}])
        await looks.until(steps, {2: STEPS, 3: STEPS - 1})
        story.is_over = True
        await looks.until(up, [{0: 1, 1: 1}, {2: 1, 3: 0}])
        assert await steps() == {2: STEPS, 3: STEPS - 1}

    while_it_plays(story, tmp_path, subnet, 0.2, look)
    announced = read_announcement(tmp_path)
    assert announced is not None
    assert [error for error in announced.errors if "fell behind" not in error] == []


def test_a_fleet_that_falls_behind_says_so(
    still_nodes: Any, frames: Any, looks: Any, tmp_path: Path, subnet: int
) -> None:
    """A replay slower than real time proves nothing: the announcement has an error."""

    async def look(announced: Announcement) -> None:
        async def faults() -> list[str]:
            found = read_announcement(tmp_path)
            return found.errors if found else []

        await looks.until(faults, ["the fleet fell behind at second 0: too many ranks for this machine"])

    while_it_plays(Kill(still_nodes, frames), tmp_path, subnet, -2.5, look)
