"""What the ranks of a run were started with."""

from __future__ import annotations

import math
from typing import Any

import pytest

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


def says(node: Any, rank: int, **limits: float) -> None:
    """Let a rank of three set limits for its run."""
    hello(node.table, rank, 3)
    node.table.state(rank, State(v=1, seq=1, time=node.wall, metrics={"threshold": limits}))


def test_the_limits_that_apply(node: Any) -> None:
    """The run's own over the site's over the default, with who set it; a limit without any of them is not shown."""
    node.table.site_limits = {"straggler_ratio": 0.3, "data_stall_ratio": 0.5, "checkpoint_age_seconds": 3600.0}
    says(node, 0, straggler_ratio=0.1)
    assert node.told("limit") == {
        ("limit", "hang_seconds", "default"): 15,
        ("limit", "straggler_ratio", "run"): 0.1,
        ("limit", "throughput_drop_ratio", "default"): 0.15,
        ("limit", "data_stall_ratio", "site"): 0.5,
        ("limit", "checkpoint_age_seconds", "site"): 3600,
    }
    node.table.site_limits = {}
    assert ("limit", "data_stall_ratio", "default") in node.told("limit")
    assert ("limit", "checkpoint_age_seconds") not in {key[:2] for key in node.told("limit")}


def test_a_runs_own_limit_is_the_most_tolerant_living_ranks(node: Any) -> None:
    """That of a rank that has ended goes with it; rules of 0.2 read the run's own ones under their old name."""
    says(node, 0, hang_seconds=600.0)
    says(node, 1, hang_seconds=60.0, straggler_ratio=0.4)
    says(node, 2, hang_seconds=30.0)
    assert node.told("limit")["limit", "hang_seconds", "run"] == 600
    node.table.lost(0)
    assert node.told("limit")["limit", "hang_seconds", "run"] == 60
    assert node.told("threshold") == {("threshold", "hang_seconds"): 60, ("threshold", "straggler_ratio"): 0.4}
    node.table.lost(1)
    node.table.lost(2)
    assert not node.told("limit", "threshold")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hang_seconds", 5.0),
        ("hang_seconds", 1e9),
        ("hang_seconds", math.nan),
        ("straggler_ratio", 20.0),
        ("hang", 60.0),
    ],
)
def test_a_limit_that_cannot_be_is_dropped_and_counted(node: Any, name: str, value: float) -> None:
    """Whatever the client: out of range, in the wrong unit, or no limit at all. The default applies."""
    says(node, 0, **{name: value})
    assert {set_by for _, _, set_by in node.told("limit")} == {"default"}
    assert node.table.dropped["bad_limit"] == 1
