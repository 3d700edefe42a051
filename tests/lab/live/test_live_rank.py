"""A simulated rank on a real socket behaves like the client: it reconnects, and nothing is counted twice or lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tachograph_lab.live.live_node import LiveNode
from tachograph_lab.live.live_rank import LiveRank
from tests.waiting import meanwhile

RANKS = (0, 1, 2)


def refused_by_none(text: str) -> None:
    raise AssertionError(text)


def with_ranks(live: Callable[[], LiveNode], frames: Any, play: Callable[[LiveNode, list[LiveRank]], Any]) -> None:
    """Run `play` with a node and three ranks that have said hello."""

    async def run() -> None:
        node = live()
        await node.open()
        ranks = [LiveRank(node.socket, refused_by_none) for _ in RANKS]
        try:
            for number, rank in enumerate(ranks):
                rank.send(frames.hello(number))
            await play(node, ranks)
        finally:
            for rank in ranks:
                rank.end()
            await node.close()

    asyncio.run(run())


def test_counters_are_exact_after_an_outage(live: Callable[[], LiveNode], still: Any, looks: Any, frames: Any) -> None:
    """While the exporter is down, ranks keep counting; it restarts without state, and soon shows their counts."""

    async def play(node: LiveNode, ranks: list[LiveRank]) -> None:
        async def told(steps: int) -> dict[int, float]:
            for rank in ranks:
                rank.send(frames.state(steps))
            found: dict[int, float] = await looks.by_rank(node.exporter_address, "tachograph_train_steps_total")
            return found

        await looks.until(lambda: told(10), dict.fromkeys(RANKS, 10))
        still.exporter_up = False
        await node.follow()
        for rank in ranks:
            rank.send(frames.state(25))
        await asyncio.sleep(0.25)  # attempts that fail
        still.exporter_up = True
        await node.follow()
        await looks.until(lambda: told(31), dict.fromkeys(RANKS, 31))

    with_ranks(live, frames, play)


def test_a_silent_rank_does_not_come_back(live: Callable[[], LiveNode], still: Any, looks: Any, frames: Any) -> None:
    """A frozen rank cannot reconnect: a new exporter knows it only once it sends again."""

    async def play(node: LiveNode, ranks: list[LiveRank]) -> None:
        up = lambda: looks.by_rank(node.exporter_address, "tachograph_rank_up")  # noqa: E731
        for rank in ranks:
            rank.send(frames.state(1))
        await looks.until(up, dict.fromkeys(RANKS, 1))
        ranks[2].send(frames.state(2))
        ranks[2]._sent_at -= 60  # it has been frozen for a minute
        still.exporter_up = False
        await node.follow()
        still.exporter_up = True
        await node.follow()
        await looks.until(up, {0: 1, 1: 1})
        ranks[2].send(frames.state(3))
        await looks.until(up, dict.fromkeys(RANKS, 1))

    with_ranks(live, frames, play)


def test_an_end_without_a_goodbye_is_a_death(live: Callable[[], LiveNode], looks: Any, frames: Any) -> None:
    """The exporter notices the closed socket at once; a rank that sent bye before has finished."""

    async def play(node: LiveNode, ranks: list[LiveRank]) -> None:
        up = lambda: looks.by_rank(node.exporter_address, "tachograph_rank_up")  # noqa: E731
        await looks.until(up, dict.fromkeys(RANKS, 1))
        ranks[0].end()
        ranks[1].send(frames.frame("bye", outcome="finished"))
        await looks.until(up, {0: 0, 1: 1, 2: 1})

        async def hung_up() -> list[bool]:
            return [rank._transport is None for rank in ranks]

        await looks.until(hung_up, [True, True, False])
        page = await looks.page(node.exporter_address)
        for number, outcome in ((0, "dead"), (1, "finished")):
            assert f'tachograph_rank_state{{run="{frames.run}",rank="{number}",state="{outcome}"}} 1' in page

    with_ranks(live, frames, play)


def test_a_refusal_is_told(live: Callable[[], LiveNode], frames: Any) -> None:
    """A frame that an exporter refuses is an error of the simulation, and is reported."""

    async def play() -> list[str]:
        node = live()
        await node.open()
        refusals: list[str] = []
        rank = LiveRank(node.socket, refusals.append)
        rank.send(frames.frame("hello", run="", rank=0))
        await meanwhile(lambda: refusals)
        rank.end()
        await node.close()
        return refusals

    (text,) = asyncio.run(play())
    assert "run" in text
