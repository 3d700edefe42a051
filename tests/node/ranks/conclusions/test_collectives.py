"""How fast the collectives of a node's ranks are: tachograph_run_collective_bus_bandwidth_bytes, tachograph_run_collective_seconds."""  # noqa: E501

from __future__ import annotations

from typing import Any

import pytest

from tests.node.ranks.conclusions.test_stragglers import Node


@pytest.fixture
def node(table: Any, hand: Any) -> Any:
    node = Node(table, hand)
    for rank in range(2):
        node.table.greet(rank, rank=rank, world_size=2)
    return node


def train(node: Any, seconds: int, rates: tuple[float, float], phase: str = "forward") -> None:
    """Train with a step a second, in which each rank's all-reduce takes so long and moves 4 bytes."""
    for _ in range(seconds):
        node.seq += 1
        for rank, rate in enumerate(rates):
            before = node.spent.get(rank, 0.0) if hasattr(node, "spent") else 0.0
            node.spent = {**getattr(node, "spent", {}), rank: before + rate}
            metrics = {
                "collective_seconds_total": {"all_reduce": node.spent[rank]},
                "collective_bus_bytes_total": {"all_reduce": 4.0 * node.seq},
                "steps_total": node.seq,
                "recent_step_seconds": 1.0,
            }
            wall = node.hand.clock.wall()
            node.table.tell(rank, seq=node.seq, time=wall, progress_time=wall, phase=phase, metrics=metrics)
        node.hand.turn(1.0, node.table.tick)


def test_the_best_rank_has_the_true_bandwidth(node: Any) -> None:
    """Over two minutes, from a minute on; and the slowest has the longest collectives of a step."""
    train(node, 55, (0.5, 0.2))
    assert node.told("collective_bus_bandwidth_bytes") == {}
    train(node, 20, (0.5, 0.2))
    assert node.told("collective_bus_bandwidth_bytes") == {("all_reduce",): pytest.approx(20.0)}
    assert node.told("collective_seconds") == {(): pytest.approx(0.5)}
    train(node, 140, (0.5, 0.4))
    assert node.told("collective_bus_bandwidth_bytes") == {("all_reduce",): pytest.approx(10.0)}


def test_long_steps_are_counted_whole(node: Any) -> None:
    """With the collectives of eleven steps in the time of ten, a node looked a tenth slower than its equals."""
    found = set()
    for second in range(1, 301):
        ended, since = divmod(second, 11)
        metrics = {
            "collective_seconds_total": {"all_reduce": 7.0 * (ended + (since >= 9))},
            "steps_total": ended,
            "recent_step_seconds": 11.0,
        }
        wall = node.hand.clock.wall()
        for rank in range(2):
            node.table.tell(rank, seq=second, time=wall, progress_time=wall - since, phase="forward", metrics=metrics)
        node.hand.turn(1.0, node.table.tick)
        if second > 90:
            found.add(node.told("collective_seconds")[()])
    assert found == {7.0}


def test_a_save_and_a_hang_begin_it_anew(node: Any, hand: Any) -> None:
    """What they did to the lengths is none of the network's."""
    train(node, 75, (0.5, 0.2))
    train(node, 5, (0.5, 0.2), phase="checkpoint")
    assert node.told("collective_bus_bandwidth_bytes") == {}
    train(node, 80, (0.5, 0.2))
    assert node.told("collective_bus_bandwidth_bytes")
    hand.turn(30.0, node.table.tick)
    assert node.told("collective_bus_bandwidth_bytes") == {}
