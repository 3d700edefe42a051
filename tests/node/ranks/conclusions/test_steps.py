"""At which step a node's ranks are: tachograph_run_rank_step."""

from __future__ import annotations

from typing import Any

from tachograph.node.ranks.frames import Hello, Peer, State


def told(table: Any) -> dict[str, float]:
    """The steps shown, by rank; the median has none."""
    shown = (sample for sample in table.samples() if sample.metric.name == "tachograph_run_rank_step")
    return {sample.labels[1]: float(sample.value) for sample in shown}


def test_who_is_at_another_step_is_named(table: Any) -> None:
    """More than three steps from the median; not who evaluates, and nobody before there is a step."""
    for rank in range(5):
        table.hello(rank, Hello(v=1, run="r", rank=rank, world_size=5, pid=10 + rank), Peer(1000, rank + 1))
    assert not told(table)
    for rank, step in enumerate((100, 103, 104, 100, 90)):
        phase = "eval" if rank == 4 else "forward"
        table.state(rank, State(v=1, seq=1, time=1000, step=step, phase=phase, phase_since=999))
    assert told(table) == {"": 101.5}
    table.state(0, State(v=1, seq=2, time=1001, step=80, phase="forward", phase_since=999))
    assert told(table) == {"": 101.5, "0": 80}
