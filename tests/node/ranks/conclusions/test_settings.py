"""What the ranks of a run were started with."""

from __future__ import annotations

from typing import Any

from tachograph.node.ranks.frames import Bye, Hello, Peer, State


def hello(table: Any, rank: int, world: int, **facts: str) -> None:
    table.hello(
        rank, Hello(v=1, run="r", rank=rank, world_size=world, pid=10 + rank, facts=facts), Peer(1000, rank + 1)
    )


def test_the_size_that_most_of_the_living_say(node: Any) -> None:
    """Of as many that say so each, the larger; where all have ended, which most of them say."""
    for rank, world in enumerate((4, 4, 3)):
        hello(node.table, rank, world)
    assert node.value("world_size") == 4
    node.table.lost(0)
    assert node.value("world_size") == 4
    node.table.lost(1)
    assert node.value("world_size") == 3
    node.table.bye(2, Bye(v=1, outcome="finished"))
    assert node.value("world_size") == 4


def test_the_highest_tier(node: Any) -> None:
    """What is standard, as is a rank that sets none, is not shown; one dev rank of several does not make a run dev."""
    hello(node.table, 0, 4, tier="dev")
    assert node.told("tier_info") == {("tier_info", "dev"): 1}
    hello(node.table, 1, 4)
    assert not node.told("tier_info")
    hello(node.table, 2, 4, tier="standard")
    assert not node.told("tier_info")
    hello(node.table, 3, 4, tier="hero")
    assert node.told("tier_info") == {("tier_info", "hero"): 1}


def test_the_most_tolerant_threshold(node: Any) -> None:
    """Also that of a rank that has ended; what cannot be a limit is none."""
    for rank, limits in enumerate(
        ({"hang_seconds": 600.0}, {"hang_seconds": 60.0, "straggler_ratio": 0.4}, {"data_stall_ratio": 0.0})
    ):
        hello(node.table, rank, 3)
        node.table.state(rank, State(v=1, seq=1, time=node.wall, metrics={"threshold": limits}))
    node.table.lost(0)
    assert node.told("threshold") == {("threshold", "hang_seconds"): 600, ("threshold", "straggler_ratio"): 0.4}
