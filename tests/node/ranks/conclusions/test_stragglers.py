"""What a node says of its ranks' waits: of the median one, and of those that wait least."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.node.samples import Sample

STEP = 1.0


class Node:
    """A node whose ranks take steps of 1 s and wait as they are told to."""

    def __init__(self, table: Any, hand: Any) -> None:
        self.table, self.hand, self.seq = table, hand, 0

    def train(self, seconds: int, waits: dict[int, float], step: float = STEP, **metrics: Any) -> None:
        """Train for so long with these waits by rank, a frame each second."""
        for _ in range(seconds):
            self.seq += 1
            for rank, wait in waits.items():
                own = {"recent_step_seconds": step, "recent_wait_seconds": wait, **metrics}
                self.table.tell(rank, seq=self.seq, time=self.hand.clock.wall(), metrics=own)
            self.hand.turn(1.0, self.table.tick)

    def told(self, name: str) -> dict[tuple[str, ...], float]:
        """Return a family by its labels, but for the run."""
        return {
            sample.labels[1:]: sample.value
            for sample in self.table.samples()
            if isinstance(sample, Sample) and sample.metric.name == f"tachograph_run_{name}"
        }

    def named(self) -> dict[str, float]:
        """Return the waits of the ranks that are named."""
        return {labels[0]: wait for labels, wait in self.told("least_wait_seconds").items()}


@pytest.fixture
def node(table: Any, hand: Any) -> Any:
    return Node(table, hand)


def greet(node: Node, ranks: int, **over: Any) -> None:
    for rank in range(ranks):
        node.table.greet(rank, rank=rank, world_size=ranks, **over)


def test_the_median_rank_and_who_waits_least(node: Any) -> None:
    """As many series for four ranks as for eight.

    They are tachograph_run_waiting_ranks, tachograph_run_wait_seconds, tachograph_run_wait_spread_seconds, and one
    tachograph_run_least_wait_seconds, with the GPU where it is known.
    """
    greet(node, 4)
    node.train(19, {0: 0.30, 1: 0.29, 2: 0.32, 3: 0.31})
    assert (node.told("waiting_ranks"), node.told("wait_seconds")) == ({("",): 4}, {})
    node.train(2, {0: 0.30, 1: 0.29, 2: 0.32, 3: 0.31})
    assert node.told("wait_seconds") == {("",): pytest.approx(0.305)}
    assert node.told("wait_spread_seconds") == {("",): pytest.approx(0.01)}
    assert node.told("least_wait_seconds") == {("1", "", "", ""): 0.29}


def test_a_wait_counts_once_it_lasts(node: Any) -> None:
    """A median that is greater, or a rank that waits less, for less than 20 s and four steps changes nothing."""
    greet(node, 3)
    node.train(30, dict.fromkeys(range(3), 0.1))
    node.train(19, {0: 0.5, 1: 0.0, 2: 0.5})
    assert (node.told("wait_seconds"), node.named()) == ({("",): 0.1}, {"0": 0.5, "1": 0.1})
    node.train(3, {0: 0.5, 1: 0.0, 2: 0.5})
    assert (node.told("wait_seconds")["",], node.named()["1"]) == (0.5, 0.0)


def test_long_steps_take_four(node: Any) -> None:
    """Of 30 s each, two minutes."""
    greet(node, 2)
    node.train(118, {0: 3.0, 1: 9.0}, step=30.0)
    assert node.told("wait_seconds") == {}
    node.train(4, {0: 3.0, 1: 9.0}, step=30.0)
    assert (node.told("wait_seconds"), node.named()) == ({("",): 9.0}, {"0": 3.0})  # of two, the longer wait


def test_all_that_are_clearly_late_are_named_and_eight_at_most(node: Any) -> None:
    """Half of the largest lag; one that recovered is shown for two minutes more."""
    greet(node, 32)
    waits = dict.fromkeys(range(32), 0.5)
    node.train(60, waits | {3: 0.1, 4: 0.15, 5: 0.35})
    assert node.named().keys() == {"3", "4"}
    node.train(100, waits | dict.fromkeys(range(12), 0.1))
    assert len(node.named()) == 8
    node.train(150, waits | {3: 0.1})
    assert node.named().keys() == {"3"}


def test_stages_are_told_apart(node: Any) -> None:
    """A stage that waits less by design has its own median, and its own rank that waits least."""
    for rank in range(4):
        node.table.greet(rank, rank=rank, world_size=4, coordinates={"pp": rank // 2})
    node.train(30, {0: 0.5, 1: 0.51, 2: 0.1, 3: 0.12})
    assert node.told("wait_seconds") == {("0",): 0.51, ("1",): 0.12}
    assert node.named() == {"0": 0.5, "2": 0.1}


def test_the_past(node: Any) -> None:
    """Known after five minutes, as a share of the step, and not learnt while a rank waits less than it did.

    It is shown as tachograph_run_wait_past_seconds and tachograph_run_least_wait_past_seconds.
    """
    greet(node, 3)
    waits = {0: 0.3, 1: 0.1, 2: 0.3}
    node.train(290, waits)
    assert node.told("wait_past_seconds") == {}
    node.train(120, waits)
    assert node.told("wait_past_seconds") == {("",): pytest.approx(0.3)}
    assert node.told("least_wait_past_seconds")["1", "", "", ""] == pytest.approx(0.1)
    node.train(600, {0: 0.5, 1: 0.1, 2: 0.0}, step=2.0)
    assert node.told("least_wait_past_seconds")["2", "", "", ""] == pytest.approx(0.6)


def test_a_run_that_stands_still_keeps_its_stragglers(node: Any, hand: Any) -> None:
    """For an hour; who has ended is none."""
    greet(node, 3)
    node.train(30, {0: 0.3, 1: 0.1, 2: 0.3})
    node.table.lost(2)
    for rank in (0, 1):
        node.table.tell(rank, seq=100)
    hand.turn(5.0, node.table.tick)
    assert (node.told("waiting_ranks"), node.named()) == ({("",): 2}, {"1": 0.1})


def test_the_median_phase(node: Any) -> None:
    """tachograph_run_phase_seconds: of each phase, for the ranks that spend time in it."""
    greet(node, 2)
    node.train(2, {0: 0.3, 1: 0.1}, recent_phase_seconds={"forward": 0.4, "data": 0.1})
    assert node.told("phase_seconds") == {("data",): 0.1, ("forward",): 0.4}
