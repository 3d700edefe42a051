"""The loss detector."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from tachograph.client.signals.loss_spikes import LossWatch, NonfiniteWatch, trailing
from tachograph.client.signals.spike import NEW_LEVEL_SECONDS, NEW_LEVEL_STEPS

TEXTBOOK = [3.0 * math.exp(-0.18 * step) + 0.20 for step in range(40)]
"""A falling loss, as in the textbook trace; its spike is +1.9 at step 9."""


def watched(losses: Iterable[float], watch: LossWatch | None = None) -> LossWatch:
    """Return a watch that has seen these losses."""
    watch = watch or LossWatch()
    for step, loss in enumerate(losses):
        watch.observe(step, loss)
    return watch


def flagged(losses: Iterable[float], seconds: float = 1.0) -> tuple[list[int], LossWatch]:
    """Return the steps on which a spike was on; each takes so many seconds."""
    step, steps = 0, []
    watch = LossWatch(lambda: step * seconds)
    for step, loss in enumerate(losses):
        watch.observe(step, loss)
        if watch.spike.steps:
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
    losses = list(TEXTBOOK)
    assert flagged(losses)[0] == []
    losses[9] += 1.9
    steps, watch = flagged(losses)
    assert (steps, watch.spikes, watch.spike.steps) == ([9], 1, 0)


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
    assert (steps, watch.spikes, watch.spike.steps) == (list(range(700, 850)), 1, 0)


@pytest.mark.parametrize("climb", [0.13, 0.5])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_climb_does_not_take_its_level_along(climb: float, seed: int) -> None:
    """A loss that climbs by so much in each step, with a noise of 0.15, is found within 20 steps, and does not heal.

    As of a training whose Adam has met a corrupt batch: 2.6 more in 20 steps, none of which is a spike.
    """
    source = random.Random(seed)
    losses = [1.7 + 4.5 * math.exp(-step / 20) + source.gauss(0, 0.15) for step in range(280)]
    losses += [1.7 + climb * step + source.gauss(0, 0.15) for step in range(60)]
    steps, watch = flagged(losses)
    assert 280 < steps[0] < 300
    assert steps == list(range(steps[0], len(losses)))
    assert watch.spikes == 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_loss_that_has_always_climbed_is_as_usual(seed: int) -> None:
    """As that of a GAN's generator, which no step takes far above the last 8, but each above the last 32.

    Where it begins to climb faster, that is found.
    """
    source = random.Random(seed)
    losses = [0.08 * max(step - 20, 0) + source.gauss(0, 0.15) for step in range(280)]
    assert flagged(losses)[0] == []
    steps, _ = flagged([*losses, *(losses[-1] + 0.5 * step + source.gauss(0, 0.15) for step in range(60))])
    assert 280 < steps[0] < 300
    assert steps == list(range(steps[0], 340))


def test_spike_steps_count_from_one() -> None:
    """The first step of a spike is 1, so that 0 always means normal; steps count, not logged losses."""
    watch = LossWatch()
    for step in range(0, 400, 10):
        watch.observe(step, 2.0)
    seen = []
    for step in (400, 410, 420):
        watch.observe(step, 5.0)
        seen.append(watch.spike.steps)
    assert (seen, watch.spikes) == ([1, 11, 21], 1)


def test_a_new_level_becomes_the_baseline() -> None:
    """A shift that lasts longer than 200 steps is the new level, and the next spike is measured from there."""
    losses = [2.0] * 100 + [4.0] * (NEW_LEVEL_STEPS + 60) + [9.0]
    steps, watch = flagged(losses)
    assert steps == [*range(100, 100 + NEW_LEVEL_STEPS), len(losses) - 1]
    assert watch.spikes == 2


def test_a_spike_of_fast_steps_is_on_for_two_minutes() -> None:
    """With 200 steps in a second it would be over before anybody looks."""
    losses = [2.0] * 100 + [4.0] * 30_000
    steps, _ = flagged(losses, 0.005)
    assert steps == list(range(100, 100 + round(NEW_LEVEL_SECONDS / 0.005)))


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
    assert (watch.spike.steps, watch.spikes) == (5, 1)
    watch.observe(105, 2.0)
    assert watch.spike.steps == 0


def test_steps_that_go_back_start_a_new_baseline() -> None:
    """After a rollback the loss may be anywhere: what is learnt starts again."""
    watch = LossWatch()
    for step in range(100):
        watch.observe(step, 1.0)
    watch.observe(40, 8.0)
    assert (watch.score, watch.spike.steps) == (None, 0)


def test_the_textbook_score_of_the_textbook_trace() -> None:
    """2.69 against a limit of 1.72, mean and three deviations of the four before; nothing else comes near it."""
    losses = list(TEXTBOOK)
    losses[9] += 1.9
    mean, deviation = trailing(losses[5:9])
    assert (round(losses[9], 2), round(mean + 3 * deviation, 2)) == (2.69, 1.72)
    watch, scores = LossWatch(), []
    for step, loss in enumerate(losses):
        watch.observe(step, loss)
        scores.append(watch.trailing_score)
    assert scores[:4] == [None] * 4
    assert scores[9] == pytest.approx((losses[9] - mean) / deviation)
    assert [step for step, score in enumerate(scores) if score is not None and score > 3] == [9]
    assert scores[10] == pytest.approx((losses[10] - mean) / deviation), (
        "the spike is no part of what it is measured by"
    )


def test_a_loss_that_stands_still_has_no_textbook_score() -> None:
    """Four equal losses have no deviation to measure by; the other stands at zero."""
    watch = watched([0.1] * 30)
    assert (watch.score, watch.trailing_score) == (0.0, None)


def test_metrics_are_absent_until_there_is_something_to_say() -> None:
    """The count from 0 on, the steps with the first loss, each score with its own least past; none after NaN."""
    watch = LossWatch()
    assert dict(watch.metrics()) == {"loss_spikes_total": 0}
    watch.observe(0, 2.0)
    assert dict(watch.metrics()) == {"loss_spikes_total": 0, "loss_spike_steps": 0}
    watched(TEXTBOOK, watch)
    assert dict(watch.metrics()).keys() == {
        "loss_spikes_total", "loss_spike_steps", "loss_zscore", "loss_trailing_zscore",
    }  # fmt: skip
    watch.observe(40, math.nan)
    assert dict(watch.metrics()) == {"loss_spikes_total": 0, "loss_spike_steps": 0}


def test_nan_between_changes_no_baseline() -> None:
    """With and without losses that are not finite in between, both scores of the others are the same."""
    source = random.Random(4)
    losses = [2 * math.exp(source.gauss(0, 0.05)) for _ in range(200)]
    plain, holed = LossWatch(), LossWatch()
    for step, loss in enumerate(losses):
        plain.observe(step, loss)
        holed.observe(step, loss)
        assert (plain.score, plain.trailing_score) == (holed.score, holed.trailing_score)
        holed.observe(step, math.nan)


def test_no_spike_begins_in_grace_and_the_level_is_learnt() -> None:
    """A level that rose during the grace period is the new level at its end, and a spike is measured from there."""
    losses = [2.0 + 0.01 * (step % 3) for step in range(200)]
    watch = watched(losses)
    watch.grace(20)
    for step in range(200, 220):
        watch.observe(step, 4.0 + 0.01 * (step % 3))
        assert (watch.spike.steps, watch.spikes) == (0, 0)
    for step in range(220, 260):
        watch.observe(step, 4.0 + 0.01 * (step % 3))
        assert watch.spike.steps == 0
    watch.observe(260, 8.0)
    assert (watch.spike.steps, watch.spikes) == (1, 1)


def test_one_odd_loss_in_grace_blinds_nobody() -> None:
    """Losses of the grace period enter neither spread nor tail: right after it, the same loss is a spike."""
    watch = watched(2.0 + 0.01 * (step % 3) for step in range(200))
    watch.grace(5)
    for step in range(200, 205):
        watch.observe(step, 4.0 if step == 202 else 2.0)
    watch.observe(205, 4.0)
    assert (watch.spike.steps, watch.spikes) == (1, 1)


def test_many_odd_losses_in_grace_widen_nothing() -> None:
    """Three of eight for a hundred steps: the spread stays that of the normal ones, and the next odd one is a spike."""
    watch = watched(2.0 + 0.01 * (step % 3) for step in range(30))
    watch.grace(100)
    for step in range(30, 130):
        watch.observe(step, 4.0 if step % 8 < 3 else 2.0 + 0.01 * (step % 3))
    for step in range(130, 140):
        watch.observe(step, 2.0)
    watch.observe(140, 4.0)
    assert (watch.spike.steps, watch.spikes) == (1, 1)


def test_a_spike_under_way_outlives_grace() -> None:
    """Grace keeps a spike from beginning; it ends none."""
    watch = watched([2.0] * 100)
    watch.observe(100, 5.0)
    watch.grace(50)
    watch.observe(101, 5.0)
    assert (watch.spike.steps, watch.spikes) == (2, 1)


def test_grace_counts_from_the_step_of_the_resume() -> None:
    """Back at step 40 with 20 steps of grace, step 60 is watched again; without a new grace the old one is void."""
    watch = watched([2.0] * 100)
    watch.grace(20)
    for step in range(40, 60):
        watch.observe(step, 9.0 if step == 55 else 2.0)
        assert watch.spike.steps == 0
    watch.observe(60, 9.0)
    assert watch.spike.steps == 1
    watch.grace(1000)
    watch.observe(61, 2.0)
    for step in range(30, 50):
        watch.observe(step, 2.0)
    watch.observe(50, 9.0)
    assert watch.spike.steps == 1


def test_nonfinite_values_begin_anew_after_a_hundred_finite_ones() -> None:
    """A rank that healed long ago is not blamed for another's; one that comes and goes keeps its step."""
    watch = NonfiniteWatch()
    watch.observe(3, {"loss": math.nan})
    for step in range(4, 103):
        watch.observe(step, {"loss": 1.0})
    watch.observe(103, {"loss": math.nan})
    assert watch.first_steps == {"loss": 3}, "99 finite ones are not enough"
    for step in range(104, 204):
        watch.observe(step, {"loss": 1.0})
    watch.observe(204, {"loss": math.inf})
    assert (watch.first_steps, watch.totals["loss"]) == ({"loss": 204}, 3)


def test_nonfinite_values_are_counted_by_source_with_their_first_step() -> None:
    """Both sources exist from the start; the first step stays the first, the time is that of the last lost loss."""
    moments = iter((100.0, 200.0))
    watch = NonfiniteWatch(lambda: next(moments))
    assert (watch.totals, watch.first_steps) == ({"loss": 0, "grad_norm": 0}, {})
    watch.observe(7, {"loss": 1.0, "grad_norm": math.inf, "learning_rate": math.nan})
    assert "loss_nonfinite_timestamp_seconds" not in watch.metrics()
    watch.observe(8, {"loss": math.nan, "grad_norm": math.nan})
    assert watch.metrics()["loss_nonfinite_timestamp_seconds"] == 100.0
    watch.observe(9, {"loss": -math.inf})
    watch.observe(10, {"loss": 1.0})
    assert watch.metrics()["loss_nonfinite_timestamp_seconds"] == 200.0
    assert (watch.totals, watch.first_steps) == ({"loss": 2, "grad_norm": 2}, {"loss": 8, "grad_norm": 7})
