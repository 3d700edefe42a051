"""What a node says of all its ranks of a run at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tachograph.node.ranks.frames import Bye, Hello, Peer, State

Told = dict[tuple[str, ...], float]


@pytest.fixture
def node(table: Any) -> Any:
    """A node of three ranks, of which rank 0 has made its last step at 100 s, rank 1 at 104 s and rank 2 none."""
    for rank in range(3):
        table.hello(rank, Hello(v=1, run="r", rank=rank, world_size=3, pid=10 + rank), Peer(1000, rank + 1))
    for rank, ended in enumerate((100.0, 104.0, None)):
        table.state(rank, State(v=1, seq=1, time=105.0, progress_time=ended))
    return table


def told(table: Any) -> Told:
    def samples() -> Iterator[tuple[tuple[str, ...], float]]:
        for sample in table.samples():
            if sample.metric.name.startswith("tachograph_run_"):
                yield (sample.metric.name.removeprefix("tachograph_run_"), *sample.labels[1:]), float(sample.value)

    return dict(samples())


def test_ranks_by_state_and_the_last_step(node: Any) -> None:
    """As many series for three ranks as for one; what no rank is in is not there, but for running."""
    assert told(node) == {("ranks", "running"): 3, ("progress_timestamp_seconds",): 104}


def test_who_has_ended_makes_no_progress(node: Any, hand: Any) -> None:
    """Its successor may compile elsewhere; a frozen rank is still there."""
    node.lost(1)
    assert told(node) == {("ranks", "running"): 2, ("ranks", "dead"): 1, ("progress_timestamp_seconds",): 100}
    hand.turn(11.0, node.tick)
    assert told(node) == {
        ("ranks", "running"): 0, ("ranks", "frozen"): 2, ("ranks", "dead"): 1, ("progress_timestamp_seconds",): 100,
    }  # fmt: skip
    node.bye(0, Bye(v=1, outcome="finished"))
    assert ("progress_timestamp_seconds",) not in told(node)


def test_the_usual_step(table: Any) -> None:
    """The median of what the ranks say; none, if none says so."""
    for rank, step in enumerate((1.0, 2.0, 4.0)):
        table.hello(rank, Hello(v=1, run="r", rank=rank, world_size=3, pid=10 + rank), Peer(1000, rank + 1))
        assert (("step_seconds",) in told(table)) == bool(rank)
        table.state(rank, State(v=1, seq=1, time=1000, metrics={"recent_step_seconds": step}))
    assert told(table)["step_seconds",] == 2
