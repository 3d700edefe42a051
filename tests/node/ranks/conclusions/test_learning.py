"""What a node says of the loss, the gradients and the learning rate of its part of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.node.ranks.frames import Bye, Hello, Peer, State

Told = dict[tuple[str, ...], float]
NAN = "NaN"


class Node:
    """Ranks of run r that send frames; what is told is looked at as a scrape would."""

    def __init__(self, table: Any, hand: Any, ranks: int = 3) -> None:
        self.table, self.hand, self.seq = table, hand, 0
        for rank in range(ranks):
            self.hello(rank)

    def hello(self, rank: int, link: int | None = None, **facts: str) -> None:
        """Connect a rank."""
        pid = 10 + rank + 100 * (link or 0)
        hello = Hello(v=1, run="r", rank=rank, world_size=8, pid=pid, facts=facts, attempt=int(link is not None))
        self.table.hello(rank if link is None else link, hello, Peer(1000, pid))

    def say(self, *ranks: dict[str, Any] | None, step: int | None = None) -> None:
        """Let each rank send its metrics; None: it sends nothing."""
        self.seq += 1
        for rank, metrics in enumerate(ranks):
            if metrics is not None:
                frame = State(v=1, seq=self.seq, time=self.hand.clock.wall(), step=step, metrics=metrics)
                self.table.heard(rank)
                self.table.state(rank, frame)
        self.table.tick()

    def told(self, start: str = "") -> Told:
        """Return what is said of the run, by name without the prefix and the other labels."""
        return {
            (sample.metric.name.removeprefix("tachograph_run_"), *sample.labels[1:]): float(sample.value)
            for sample in self.table.samples()
            if sample.metric.name.startswith(f"tachograph_run_{start}")
        }


@pytest.fixture
def node(table: Any, hand: Any) -> Node:
    """Three ranks."""
    return Node(table, hand)


def test_medians_leave_out_what_is_not_finite(node: Node) -> None:
    """Of the loss as of the norm; a loss may be negative, and a rank may log none."""
    node.say({"loss": -2.0, "grad_norm": 1}, {"loss": NAN, "grad_norm": "+Inf"}, {"grad_norm": 2}, step=7)
    told = node.told()
    assert (told["loss",], told["grad_norm",], told["train_step",]) == (-2, 1.5, 7)
    assert ("learning_rate",) not in told
    assert ("val_loss",) not in told


def test_the_furthest_step_and_the_steps_of_the_attempt(node: Node) -> None:
    """Of the living."""
    node.say({"steps_total": 4}, step=14)
    node.say({"steps_total": 5}, {"steps_total": 9}, step=19)
    assert {key[0]: value for key, value in node.told().items() if key[0] in ("train_step", "steps_total")} == {
        "train_step": 19,
        "steps_total": 9,
    }
    node.table.lost(1)
    assert node.told()["steps_total",] == 5


def test_the_first_to_lose_its_loss_is_named(node: Node, hand: Any) -> None:
    """With its step and how many lost it then; for 70 s after the last, then nothing is said."""
    fine = {"loss": 2.0}
    node.say(fine, fine, fine)
    assert not node.told("loss_nonfinite")
    lost = {"loss": NAN, "loss_nonfinite_timestamp_seconds": hand.clock.wall()}
    first, later = lost | {"nonfinite_step": {"loss": 40}}, lost | {"nonfinite_step": {"loss": 41}}
    node.say(later, fine, first)
    hand.turn(3.0, node.table.tick)
    assert node.told("loss_nonfinite") == {
        ("loss_nonfinite_step", "2", "", ""): 40, ("loss_nonfinite_seconds",): 3,
        ("loss_nonfinite_ranks", "first"): 1, ("loss_nonfinite_ranks", "lately"): 2,
        ("loss_nonfinite_ranks", "now"): 2,
    }  # fmt: skip
    node.say(later | fine, fine, first | fine)
    assert node.told("loss_nonfinite")["loss_nonfinite_ranks", "now"] == 0
    hand.turn(70.0, node.table.tick)
    assert not node.told("loss_nonfinite")


def test_a_loss_that_stays_lost_stays_said(node: Node, hand: Any) -> None:
    """Where steps are slow, the time of the last one is long ago; without a step, nobody is named."""
    node.say({"loss": "+Inf"})
    hand.turn(5.0, node.table.tick)
    for _ in range(20):
        node.say({"loss": "+Inf"})
        hand.turn(5.0, node.table.tick)
    told = node.told("loss_nonfinite")
    assert told["loss_nonfinite_ranks", "lately"] == 1
    assert ("loss_nonfinite_step", "0", "", "") not in told


def test_who_stopped_itself_for_its_nan_is_still_named(node: Node, hand: Any) -> None:
    """Its loss is not shown any more; for ten minutes it is what its run failed of."""
    metrics = {"loss": NAN, "nonfinite_step": {"loss": 4}, "loss_nonfinite_timestamp_seconds": hand.clock.wall()}
    node.say({"loss": 1.0}, metrics)
    node.table.bye(1, Bye(v=1, outcome="failed", category="nonfinite"))
    hand.turn(500.0, node.table.tick)
    assert node.told("loss_nonfinite_step") == {("loss_nonfinite_step", "1", "", ""): 4}
    hand.turn(101.0, node.table.tick)
    assert not node.told("loss_nonfinite")


def test_who_is_back_has_not_lost_its_loss(node: Node, hand: Any) -> None:
    """What its process before lost is over."""
    node.say({"loss": NAN, "nonfinite_step": {"loss": 4}, "loss_nonfinite_timestamp_seconds": hand.clock.wall()})
    node.table.bye(0, Bye(v=1, outcome="failed", category="nonfinite"))
    assert node.told("loss_nonfinite")
    node.hello(0, link=7)
    assert not node.told("loss_nonfinite")


def spike(steps: int, count: int) -> dict[str, float]:
    return {"loss": 2.0, "loss_spike_steps": steps, "loss_spikes_total": count}


def test_a_spike_is_one_that_half_of_the_ranks_see(node: Node, hand: Any) -> None:
    """Of those that log a loss; when it began is remembered, however short it was."""
    node.say(spike(0, 1), spike(0, 1), {})
    assert node.told("loss_spike") == {("loss_spike_steps",): 0}
    node.say(spike(0, 1), spike(3, 2), {})
    assert node.told("loss_spike") == {("loss_spike_steps",): 1.5}
    node.say(spike(1, 2), spike(4, 2), {})
    hand.turn(1.0, node.table.tick)
    node.say(spike(0, 2), spike(0, 2), {})
    hand.turn(40.0, node.table.tick)
    assert node.told("loss_spike") == {("loss_spike_steps",): 0, ("loss_spiked_seconds",): 41}


def test_the_validation_loss(node: Node) -> None:
    """NaN where it is so on half of the ranks that log it; a spike where half of them see one."""
    odd = {"val_loss": 9.0, "val_loss_spike_evaluations": 2}
    node.say(odd, {"val_loss": 3.0}, {"val_loss": 3.0})
    assert node.told("val") == {("val_loss",): 3}
    node.say(odd, odd, {"val_loss": 3.0})
    assert node.told("val") == {("val_loss",): 9, ("val_loss_spike_evaluations",): 2}
    node.say({"val_loss": NAN}, {"val_loss": 3.0}, {})
    assert math.isnan(node.told("val")["val_loss",])


def test_a_gradient_that_vanishes_is_counted_in_steps(node: Node, hand: Any) -> None:
    """From the last step with one; what is not known for a while stands, and a rollback begins again."""
    norm = {"grad_norm_level": 1.0}
    for step, value in ((10, 1.0), (20, 0.5), (30, 0.009)):
        node.say(norm | {"grad_norm": value}, step=step)
        hand.turn(1.0, node.table.tick)
    assert node.told("grad_norm_vanished") == {("grad_norm_vanished_steps",): 10}
    node.say({}, step=45)
    assert node.told("grad_norm_vanished") == {("grad_norm_vanished_steps",): 25}
    node.say(norm | {"grad_norm": 0.0}, step=5)
    assert node.told("grad_norm_vanished") == {("grad_norm_vanished_steps",): 0}
    node.say(norm | {"grad_norm": 0.01}, step=50)
    assert not node.told("grad_norm_vanished")


def test_norms_that_are_not_finite_and_spikes_by_half_of_the_ranks(node: Node) -> None:
    """One rank of three is not enough; where none is so, nothing is said."""
    lost, fine = {"grad_norm_nonfinite_steps": 30}, {"grad_norm": 1.0, "grad_norm_spike_steps": 0}
    node.say(lost, fine, fine | {"grad_norm_spike_steps": 9})
    assert not node.told("grad_norm_nonfinite")
    assert node.told("grad_norm_spike")["grad_norm_spike_steps",] == 4.5
    node.say(lost, lost, fine)
    assert node.told("grad_norm_nonfinite") == {("grad_norm_nonfinite_steps",): 30}


def test_mixed_precision_by_its_worst_rank(node: Node) -> None:
    """The least scale, the most skipped steps; nothing without a scaler."""
    assert not node.told("amp")
    node.say(
        {"amp_loss_scale": 4.0, "amp_skipped_steps_total": 0}, {"amp_loss_scale": 2.0, "amp_skipped_steps_total": 3}
    )
    assert node.told("amp") == {("amp_loss_scale",): 2, ("amp_skipped_steps_total",): 3}


def test_how_long_a_schedule_stands_still(node: Node, hand: Any) -> None:
    """In steps of the run and in seconds, from when it is first seen; a rollback begins again."""
    node.say({"learning_rate": 0.0, "schedule_step": 5}, {"learning_rate": 0.1}, step=5)
    assert node.told("schedule") == {
        ("schedule_step",): 5, ("schedule_idle_steps",): 0, ("schedule_idle_seconds",): 0,
    }  # fmt: skip
    assert node.told("learning_rate") == {("learning_rate",): 0.1}
    hand.turn(9.0, node.table.tick)
    node.say({"schedule_step": 5}, step=30)
    assert node.told("schedule_idle") == {("schedule_idle_steps",): 25, ("schedule_idle_seconds",): 9}
    node.say({"schedule_step": 6}, step=31)
    assert node.told("schedule_idle") == {("schedule_idle_steps",): 0, ("schedule_idle_seconds",): 0}
    hand.turn(1.0, node.table.tick)
    node.say({"schedule_step": 6}, step=2)
    assert node.told("schedule_idle") == {("schedule_idle_steps",): 0, ("schedule_idle_seconds",): 0}


Say = Callable[..., None]


@pytest.fixture
def agree(node: Node) -> Say:
    """Let ranks say a number of the name `x` each, at one step or each at its own."""

    def say(*values: float, step: int | tuple[int, ...] = 0) -> None:
        steps = step if isinstance(step, tuple) else (step,) * len(values)
        node.say(
            *({"invariant": {"x": value}, "invariant_step": {"x": at}} for value, at in zip(values, steps, strict=True))
        )

    return say


def settle(node: Node, hand: Any) -> None:
    """Let more than a minute and a half pass in which all ranks stay connected."""
    for _ in range(19):
        hand.turn(5.0, node.table.tick)
        for rank in range(3):
            node.table.heard(rank)


def held(node: Node) -> dict[str, tuple[str, float]]:
    """Return rank and number by how they are held."""
    found = node.told("invariant").items()
    return {key[2]: (key[3], value) for key, value in found if key[0] == "invariant"}


def test_what_ranks_agree_on_is_one_series(node: Node, agree: Say, hand: Any) -> None:
    """Shown once it is settled: in a new attempt, another node may still show the one before."""
    agree(7, 7, 7, step=4)
    assert not node.told("invariant")
    settle(node, hand)
    assert node.told("invariant") == {("invariant", "x", "most", "0", "", ""): 7, ("invariant_step", "x"): 4}


def test_who_differs_is_named(node: Node, agree: Say, hand: Any) -> None:
    """Least and greatest by their first rank; without a majority nobody holds what most do."""
    agree(7, 8, 7)
    settle(node, hand)
    assert held(node) == {"most": ("0", 7), "least": ("0", 7), "greatest": ("1", 8)}
    agree(9, 8, 7, step=1)
    assert held(node) == {"least": ("2", 7), "greatest": ("0", 9)}


def test_a_number_at_a_later_step_is_settled(node: Node, agree: Say, hand: Any) -> None:
    """Ranks are compared at the step that most of them show, the earlier one of two."""
    agree(7, 7, 7, step=4)
    settle(node, hand)
    agree(9, 7, 7, step=(8, 4, 4))
    assert held(node) == {"most": ("1", 7)}
    agree(9, 9, 7, step=(8, 8, 4))
    assert held(node) == {"most": ("0", 9)}
    agree(9, 9, 9, step=8)
    assert held(node) == {"most": ("0", 9)}


@pytest.mark.parametrize("step", [4, 2])
def test_a_number_that_changes_at_a_step_of_before_is_not(node: Node, agree: Say, hand: Any, step: int) -> None:
    """A constant that is set anew, or a step that is made again."""
    agree(7, 7, 7, step=4)
    settle(node, hand)
    agree(9, 9, 9, step=step)
    assert not node.told("invariant")
    settle(node, hand)
    assert held(node) == {"most": ("0", 9)}


def test_a_number_that_is_none_is_left_out(node: Node, agree: Say, hand: Any) -> None:
    """NaN is not equal to itself."""
    agree(7, math.nan, 7)
    settle(node, hand)
    assert held(node) == {"most": ("0", 7)}


def test_a_global_batch_that_is_not_the_configured_one(table: Any, hand: Any) -> None:
    """Counted in steps, from the first at which it is seen."""
    node = Node(table, hand, 0)
    node.hello(0, global_batch="1024")
    for step, batch in ((5, 1024), (6, 512), (9, 512)):
        node.say({"invariant": {"global_batch": batch}, "invariant_step": {"global_batch": 0}}, step=step)
        told = node.told("global_batch")
    assert told == {("global_batch_wrong_steps",): 3}
    node.say({"invariant": {"global_batch": 1024}, "invariant_step": {"global_batch": 0}}, step=10)
    assert not node.told("global_batch")


def draw(node: Node, seconds: int, per_step: tuple[int, ...], start: list[int], steps: list[int]) -> None:
    """Let ranks make a step a second, each drawing so many batches for it."""
    for _ in range(seconds):
        steps[0] += 1
        for rank, each in enumerate(per_step):
            start[rank] += each
        node.say(*({"steps_total": steps[0], "batches_total": batches} for batches in start))
        node.hand.turn(1.0, node.table.tick)


def drawn(node: Node) -> dict[str, tuple[str, float]]:
    return {key[1]: (key[2], round(value, 2)) for key, value in node.told("batches").items()}


def test_batches_per_step(node: Node) -> None:
    """Known after a hundred steps; who draws more from then on is named a few steps later."""
    start, steps = [5000, 2, 0], [0]
    draw(node, 100, (2, 2, 0), start, steps)
    assert not drawn(node)
    draw(node, 100, (2, 2, 0), start, steps)
    assert drawn(node) == {"most": ("0", 2.0)}
    draw(node, 4, (2, 4, 0), start, steps)
    assert drawn(node) == {"most": ("0", 2.0)}
    draw(node, 8, (2, 4, 0), start, steps)
    assert drawn(node) == {"least": ("0", 2.0), "greatest": ("1", 2.2)}
    draw(node, 150, (2, 2, 2), start, steps)
    assert drawn(node) == {"most": ("0", 2.0)}


def test_batches_per_step_that_change_on_purpose_are_not_said(node: Node) -> None:
    """Not before the window holds the new ones alone: other nodes' windows begin at other steps."""
    start, steps = [1, 1, 1], [0]
    draw(node, 200, (1, 1, 1), start, steps)
    draw(node, 60, (4, 4, 4), start, steps)
    assert not drawn(node)
    draw(node, 150, (4, 4, 4), start, steps)
    assert drawn(node) == {"most": ("0", 4.0)}
