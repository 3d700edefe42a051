"""What a node says of a run's saves."""

from __future__ import annotations

from typing import Any

import pytest

NAMES = ("run_checkpoint_", "run_unsaved_")


def said(table: Any) -> dict[tuple[str, ...], float]:
    return {
        (sample.metric.name.removeprefix("tachograph_"), *sample.labels[1:]): float(sample.value)
        for sample in table.samples()
        if sample.metric.name.removeprefix("tachograph_").startswith(NAMES)
        and sample.metric.name.rpartition("_checkpoint_")[2] not in ("step", "timestamp_seconds")
    }


@pytest.fixture
def node(table: Any, hand: Any) -> Any:
    """Three ranks that started at 0, 10 and 20 s."""
    for rank in range(3):
        table.greet(rank, rank=rank, pid=10 + rank)
        table.tell(rank, 1, hand.clock.wall())
        hand.turn(10, table.tick)
    return table


def tell(
    node: Any, hand: Any, rank: int, seq: int, *, phase: str | None = None, since: float = 0.0, **told: float
) -> None:
    wall = hand.clock.wall()
    node.tell(rank, seq, wall, phase=phase, phase_seconds=since if phase else None, metrics=told)
    node.tick()


def test_without_a_save_since_the_youngest_process_began(node: Any, hand: Any) -> None:
    """Then since the last save, whoever made it; what has ended tells nothing."""
    hand.turn(70)
    assert said(node) == {("run_unsaved_seconds",): 80}
    tell(node, hand, 0, 2, checkpoint_timestamp_seconds=hand.clock.wall() - 5, checkpoint_duration_seconds=40)
    tell(node, hand, 1, 2, checkpoint_timestamp_seconds=hand.clock.wall() - 9, checkpoint_duration_seconds=60)
    assert said(node) == {("run_unsaved_seconds",): 5, ("run_checkpoint_duration_seconds",): 60}
    node.lost(1)
    assert said(node)["run_checkpoint_duration_seconds",] == 40
    node.lost(0)
    node.lost(2)
    assert said(node) == {}


def test_the_save_under_way(node: Any, hand: Any) -> None:
    """As long as that of the rank that began first."""
    tell(node, hand, 0, 2, phase="checkpoint", since=30.0)
    tell(node, hand, 2, 2, phase="checkpoint", since=31.0)
    hand.turn(4)
    assert said(node)["run_checkpoint_saving_seconds",] == 35
    tell(node, hand, 0, 3, phase="forward", since=1.0)
    tell(node, hand, 2, 3, phase="data", since=1.0)
    assert ("run_checkpoint_saving_seconds",) not in said(node)


def test_the_fullest_file_system(node: Any, hand: Any) -> None:
    """By the rank that saved there; nothing is free is a number, too."""
    tell(node, hand, 0, 2, checkpoint_free_ratio=0.2)
    tell(node, hand, 2, 2, checkpoint_free_ratio=0.0)
    assert said(node)["run_checkpoint_free_ratio", "2"] == 0


def test_failures_are_told_for_ten_minutes(node: Any, hand: Any) -> None:
    """Also where the process ended by it; not those of before we were there, nor those of an earlier process."""
    tell(node, hand, 2, 2, checkpoint_failures_total=1)
    assert said(node)["run_checkpoint_failed_ranks", "2"] == 1
    tell(node, hand, 1, 2, checkpoint_failures_total=2)
    assert said(node)["run_checkpoint_failed_ranks", "1"] == 2
    node.lost(2)
    node.greet("again", rank=2, pid=99, attempt=1)
    node.tell("again", 1, hand.clock.wall(), metrics={"checkpoint_failures_total": 0})
    hand.turn(590, node.tick)
    assert said(node)["run_checkpoint_failed_ranks", "1"] == 2
    hand.turn(20, node.tick)
    assert not [key for key in said(node) if key[0] == "run_checkpoint_failed_ranks"]
    node.greet("new", rank=7, pid=70)
    node.tell("new", 900, hand.clock.wall(), metrics={"checkpoint_failures_total": 3})
    node.tick()
    assert not [key for key in said(node) if key[0] == "run_checkpoint_failed_ranks"]
