"""When the run last saved."""

from __future__ import annotations

from typing import Any

from tachograph.node.ranks.frames import Hello, Peer

SAVES = ("checkpoint_timestamp_seconds", "checkpoint_step")


def saved(node: Any) -> list[float | None]:
    return [node.value(name) for name in SAVES]


def test_the_last_save_of_any_rank(node: Any) -> None:
    """With its step, which may be lower than that of a save before the run was set back; none before the first."""
    node.says(0)
    assert saved(node) == [None, None]
    node.says(0, checkpoint_timestamp_seconds=100.0, checkpoint_step=480.0)
    node.says(1, checkpoint_timestamp_seconds=90.0, checkpoint_step=500.0)
    assert saved(node) == [100, 480]
    node.turn(1)
    node.says(1, checkpoint_timestamp_seconds=node.wall, checkpoint_step=240.0)
    assert saved(node) == [node.wall, 240]


def test_it_is_remembered_when_the_next_attempt_has_none(node: Any) -> None:
    """A process that takes the place of the one that saved has saved nothing."""
    node.says(0, checkpoint_timestamp_seconds=100.0, checkpoint_step=480.0)
    node.turn(1)
    node.table.lost(0)
    node.table.hello(9, Hello(v=1, run="r", rank=0, world_size=8, pid=99, attempt=1), Peer(1000, 99))
    assert saved(node) == [100, 480]
