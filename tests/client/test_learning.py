"""The loss detector."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from tachograph.client.learning import NEW_LEVEL_STEPS, LossWatch, NonfiniteWatch


def flagged(losses: Iterable[float]) -> tuple[list[int], LossWatch]:
    """Return the steps on which a spike was on."""
    watch, steps = LossWatch(), []
    for step, loss in enumerate(losses):
        watch.observe(step, loss)
        if watch.spike_steps:
            steps.append(step)
    return steps, watch


def training(noise: float, seed: int, steps: int) -> list[float]:
    """A healthy run: fast fall, long tail, seeded noise of the given relative size."""
    source = random.Random(seed)
    return [
        (8 * math.exp(-step / 600) + 2.2 * (step + 1) ** -0.05 + 0.5) * (1 + source.gauss(0, noise))
        for step in range(steps)
    ]


def test_the_textbook_trace() -> None:
    """Loss 3.0·e^(−0.18·step) + 0.20 with +1.9 at step 9: step 9 is flagged, and it alone."""
    losses = [3.0 * math.exp(-0.18 * step) + 0.20 for step in range(40)]
    assert flagged(losses)[0] == []
    losses[9] += 1.9
    steps, watch = flagged(losses)
    assert (steps, watch.spikes, watch.spike_steps) == ([9], 1, 0)


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.05, 0.10])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_healthy_noise_is_quiet(noise: float, seed: int) -> None:
    """10,000 steps of a falling loss with up to 10 % noise: no spike."""
    steps, watch = flagged(training(noise, seed, 10_000))
    assert (steps, watch.spikes) == ([], 0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_shift_is_flagged_from_its_first_step_until_it_heals(seed: int) -> None:
    """A loss at 1.6 times its level for 150 steps is one spike of 150 steps: it cannot hide in its own baseline."""
    losses = training(0.03, seed, 1000)
    shifted = [loss * 1.6 if 700 <= step < 850 else loss for step, loss in enumerate(losses)]
    steps, watch = flagged(shifted)
    assert (steps, watch.spikes, watch.spike_steps) == (list(range(700, 850)), 1, 0)


def test_spike_steps_count_from_one() -> None:
    """The first step of a spike is 1, so that 0 always means normal; steps count, not logged losses."""
    watch = LossWatch()
    for step in range(0, 400, 10):
        watch.observe(step, 2.0)
    seen = []
    for step in (400, 410, 420):
        watch.observe(step, 5.0)
        seen.append(watch.spike_steps)
    assert (seen, watch.spikes) == ([1, 11, 21], 1)


def test_a_new_level_becomes_the_baseline() -> None:
    """A shift that stays longer than 200 steps is the new normal, and the next spike is told from there."""
    losses = [2.0] * 100 + [4.0] * (NEW_LEVEL_STEPS + 60) + [9.0]
    steps, watch = flagged(losses)
    assert steps == [*range(100, 100 + NEW_LEVEL_STEPS), len(losses) - 1]
    assert watch.spikes == 2


def test_improvement_is_no_spike() -> None:
    """A loss that falls suddenly is good news."""
    assert flagged([2.0] * 100 + [0.5] * 50)[0] == []


@pytest.mark.parametrize("level", [0.0, -3.0])
def test_losses_around_and_below_zero(level: float) -> None:
    """The spread has a floor that needs no positive level: a reward-like loss raises no false spike and no error."""
    source = random.Random(5)
    losses = [level + source.gauss(0, 0.1) for _ in range(500)]
    assert flagged(losses)[0] == []
    assert flagged([*losses, level + 5.0])[0] == [500]


def test_nan_is_no_sample() -> None:
    """A loss that is not finite has no score, changes no baseline, and ends no spike."""
    watch = LossWatch()
    for step in range(100):
        watch.observe(step, 2.0)
    watch.observe(100, 9.0)
    for step, loss in ((101, math.nan), (102, math.inf), (103, -math.inf)):
        watch.observe(step, loss)
        assert watch.score is None
    watch.observe(104, 9.0)
    assert (watch.spike_steps, watch.spikes) == (5, 1)
    watch.observe(105, 2.0)
    assert watch.spike_steps == 0


def test_steps_that_go_back_start_a_new_baseline() -> None:
    """After a rollback the loss may be anywhere: what is learnt starts again."""
    watch = LossWatch()
    for step in range(100):
        watch.observe(step, 1.0)
    watch.observe(40, 8.0)
    assert (watch.score, watch.spike_steps) == (None, 0)


def test_nonfinite_values_are_counted_by_source_with_their_first_step() -> None:
    """Both sources exist from the start; the first step stays the first."""
    watch = NonfiniteWatch()
    assert (watch.totals, watch.first_steps) == ({"loss": 0, "grad_norm": 0}, {})
    watch.observe(7, {"loss": 1.0, "grad_norm": math.inf, "learning_rate": math.nan})
    watch.observe(8, {"loss": math.nan, "grad_norm": math.nan})
    watch.observe(9, {})
    assert (watch.totals, watch.first_steps) == ({"loss": 1, "grad_norm": 2}, {"loss": 8, "grad_norm": 7})
