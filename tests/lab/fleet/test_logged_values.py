"""The logged values of a simulated run, and those of a rank that differs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tachograph_lab.scenario import Fleet, Learning, StepTimes
from tachograph_lab.scenario.faults import (
    LossClimb,
    LossSpike,
    Nan,
    SkipBatches,
    SlowPhase,
    StaleOptimizer,
    WrongChecksum,
    WrongGlobalBatch,
)  # fmt: skip

Play = Callable[..., Any]


def test_the_textbook_spike(play: Play) -> None:
    """INCIDENTS 1: loss 3.0·e^(−0.18·step) + 0.20; with +1.9 at step 9 it is 2.69 there, and at step 9 alone."""
    story = LossSpike(at=5.5, by=1.9), SlowPhase(at=3.5, ranks=(5,), phase="backward", takes=1.35)
    one_node = {"fleet": Fleet(run="llama", gpus_per_node=8), "step": StepTimes(formula="textbook")}
    played = play(*story, until=0, learning=Learning(formula="textbook"), **one_node).until(12, every=0.2)
    losses = {frame["step"] - 1: frame["metrics"]["loss"] for frame in played.frames(rank=0) if frame["step"]}
    assert losses[9] == pytest.approx(2.69, abs=0.01)
    assert [step for step, loss in losses.items() if loss > 3.0 * math.exp(-0.18 * step) + 0.21] == [9]


@pytest.mark.parametrize(("recovers", "last"), [(True, 0), (False, 20)])
def test_a_spike_is_judged_by_the_client(play: Play, recovers: bool, last: int) -> None:
    """INCIDENTS 6 and 7: a spike that heals ends, one that does not stays; the gradient norm jumps with it."""
    played = play(LossSpike(at=60, by=3.0, steps=3, recovers=recovers, gradient_factor=6.5), until=95, checkpoint=None)
    assert played.rank("train_loss_spikes_total", 3) == 1
    assert played.rank("train_loss_spike_steps", 3) >= last
    assert (played.rank("train_loss_spike_steps", 3) == 0) == recovers
    assert (played.rank("train_grad_norm_spike_steps", 3) == 0) == recovers


def test_a_climb(play: Play) -> None:
    """INCIDENTS 8: the loss stops falling and climbs by a share of itself per minute."""
    flat = {"learning": Learning(), "checkpoint": None, "eval": None}
    climbing, healthy = play(LossClimb(at=20, per_minute=0.5), until=80, **flat), play(until=80, **flat)
    assert climbing.rank("train_loss", 0) / healthy.rank("train_loss", 0) == pytest.approx(1.5, rel=0.03)


def test_nan_begins_on_one_rank_and_spreads(play: Play) -> None:
    """INCIDENTS 9: the all-reduce makes all gradients NaN at once, all losses a step later; the first is to blame."""
    played = play(Nan(at=30, rank=5), until=45)
    first = {rank: played.rank("train_nonfinite_step", rank)["loss",] for rank in range(8)}
    assert {rank for rank, step in first.items() if step == min(first.values())} == {5}
    assert math.isnan(played.rank("train_loss", 5))
    assert math.isnan(played.rank("train_grad_norm", 0))
    alone = play(Nan(at=30, rank=5, what="grad_norm"), until=45)
    assert alone.rank("train_nonfinite_step", 0) is None
    assert ("grad_norm",) in alone.rank("train_nonfinite_step", 5)


def test_nan_that_the_scaler_skips_heals(play: Play) -> None:
    """INCIDENTS 55d: every rank skips the step, the scale halves, and the next loss is finite on all of them."""
    played = play(Nan(at=30, lasts=1.2, rank=5, skipped=True), until=45, checkpoint=None, eval=None)
    assert ("loss",) in played.rank("train_nonfinite_step", 5)
    assert ("loss",) not in (played.rank("train_nonfinite_step", 0) or {})
    assert all(math.isfinite(played.rank("train_loss", rank)) for rank in range(8))
    skipped = played.rank("train_amp_skipped_steps_total", 0)
    assert skipped in (1, 2)
    assert played.rank("train_amp_loss_scale", 7) == 65536 * 0.5**skipped
    assert play(Nan(at=30, rank=5), until=45).rank("train_amp_skipped_steps_total", 0) is None


def test_nan_that_nobody_logs(play: Play) -> None:
    """INCIDENTS 53: the last loss that is known is a good one; the gradient norm is NaN on all ranks."""
    played = play(Nan(at=30, rank=5, unlogged=True), until=55, checkpoint=None, eval=None)
    for rank in range(8):
        assert math.isfinite(played.rank("train_loss", rank))
        assert math.isnan(played.rank("train_grad_norm", rank))
        assert played.rank("train_nonfinite_total", rank)["loss",] == 0
        assert played.rank("train_grad_norm_nonfinite_steps", rank) >= 15


@pytest.mark.parametrize(
    ("fault", "name"),
    [(WrongChecksum(at=25, rank=5), "parameter_checksum"), (StaleOptimizer(at=25, rank=5), "optimizer_step")],
)
def test_an_odd_rank_differs_in_its_number_alone(play: Play, fault: Any, name: str) -> None:
    """INCIDENTS 13 and 14: at one step all ranks report the same number, except the odd one."""
    played = play(fault, until=70, checkpoint=None, eval=None)
    shown = [played.rank("train_invariant", rank) for rank in range(8)]
    steps = [played.rank("train_invariant_step", rank) for rank in range(8)]
    assert len({tuple(sorted(each.items())) for each in steps}) == 1
    assert [each[name,] == shown[0][name,] for each in shown] == [rank != 5 for rank in range(8)]
    assert [each | {(name,): 0} == shown[0] | {(name,): 0} for each in shown] == [True] * 8


def test_skipped_batches_are_missing(play: Play) -> None:
    """INCIDENTS 13: a rank that skips batches falls behind in its batch count, and nowhere else."""
    played = play(SkipBatches(at=15, rank=5), until=75, checkpoint=None, eval=None)
    assert played.rank("train_batches_total", 5) <= played.rank("train_batches_total", 4) - 4
    assert played.rank("train_steps_total", 5) == played.rank("train_steps_total", 4)


def test_a_wrong_global_batch_is_not_the_configured_one(play: Play) -> None:
    """INCIDENTS 13: the world size changed, the batch per rank did not; all ranks agree on the wrong number."""
    played = play(WrongGlobalBatch(at=20), until=30)
    assert {played.rank("train_invariant", rank)["global_batch",] for rank in range(8)} == {512}
