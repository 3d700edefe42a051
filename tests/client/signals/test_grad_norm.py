"""The gradient-norm detector."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from tachograph.client.signals.grad_norm import GradNormWatch
from tachograph.client.signals.spike import NEW_LEVEL_STEPS


def norms(seed: int, steps: int, size: float = 0.2) -> list[float]:
    """A healthy norm near 1.5 with log-normal noise."""
    source = random.Random(seed)
    return [1.5 * math.exp(source.gauss(0, size)) for _ in range(steps)]


def flagged(values: Iterable[float]) -> tuple[list[int], GradNormWatch]:
    """Return the steps on which a spike was on."""
    step, steps = 0, []
    watch = GradNormWatch(lambda: step)  # a step a second
    for step, norm in enumerate(values):
        watch.observe(step, norm)
        if watch.spike.steps:
            steps.append(step)
    return steps, watch


def test_the_textbook_trace() -> None:
    """Gradient norm 0.9 + 0.05·sin(step), times 6.5 at one step: that step alone."""
    values = [0.9 + 0.05 * math.sin(step) for step in range(120)]
    assert flagged(values)[0] == []
    values[60] *= 6.5
    assert flagged(values)[0] == [60]


@pytest.mark.parametrize("size", [0.0, 0.1, 0.2, 0.25])
@pytest.mark.parametrize("seed", [1, 2])
def test_healthy_noise_is_quiet(size: float, seed: int) -> None:
    """10,000 steps with up to 25 % noise."""
    assert flagged(norms(seed, 10_000, size))[0] == []


def test_a_jump_stays_flagged_until_it_ends_or_is_the_new_level() -> None:
    """150 steps at six times the norm are one spike of 150; after 200 it is the level, and the next counts from 1."""
    values = norms(3, 1000)
    jump = [norm * 6 if 500 <= step < 650 else norm for step, norm in enumerate(values)]
    assert flagged(jump)[0] == list(range(500, 650))
    jump = [norm * 6 if step >= 500 else norm for step, norm in enumerate(values)]
    steps, watch = flagged(jump)
    assert steps == list(range(500, 500 + NEW_LEVEL_STEPS))
    assert watch.level == pytest.approx(9, rel=0.1)
    watch.observe(1000, 100.0)
    assert watch.spike.steps == 1


def test_spike_steps_are_steps_not_logged_norms() -> None:
    """Logged every 10 steps, a spike counts 1, 11, 21."""
    watch, seen = GradNormWatch(), []
    for step in range(0, 400, 10):
        watch.observe(step, 1.0)
    for step in (400, 410, 420):
        watch.observe(step, 9.0)
        seen.append(watch.spike.steps)
    assert seen == [1, 11, 21]


def test_what_is_not_finite_says_nothing() -> None:
    """Mixed precision overflows the norm now and then: no spike begins, none ends, no baseline moves."""
    watch = flagged(norms(5, 200))[1]
    level = watch.level
    for step, norm in ((200, math.inf), (201, math.nan), (202, -math.inf)):
        watch.observe(step, norm)
    assert (watch.spike.steps, watch.level) == (0, level)
    watch.observe(203, 20.0)
    watch.observe(204, math.inf)
    assert watch.spike.steps == 1
    watch.observe(205, 20.0)
    assert watch.spike.steps == 3


@pytest.mark.parametrize("share", [0.0, 0.009])
def test_a_norm_that_vanished_never_becomes_the_level(share: float) -> None:
    """However long it lasts: what is measured against it would otherwise be cured by waiting."""
    watch = flagged(norms(6, 600))[1]
    before = watch.level
    for step in range(600, 5000):
        watch.observe(step, 1.5 * share)
    assert (watch.level, watch.spike.steps) == (before, 0)


def test_a_norm_that_falls_fast_at_the_start_is_followed() -> None:
    """The first gradients may be a thousand times the later ones: no spike, and a level of the later ones."""
    values = [1500 * math.exp(-step / 40) + norm for step, norm in enumerate(norms(7, 1500))]
    steps, watch = flagged(values)
    assert steps == []
    assert watch.level == pytest.approx(1.5, rel=0.1)


def test_the_level_is_of_many_norms() -> None:
    """None until 16; then the median, over the last 480; ten high ones in a row do not move it."""
    watch = flagged([1.0] * 15)[1]
    assert watch.level is None
    watch.observe(15, 1.0)
    assert watch.level == pytest.approx(1.0)
    values = norms(8, 640)
    watch = flagged(values)[1]
    assert watch.level == pytest.approx(1.5, rel=0.05)
    level = watch.level
    for step in range(640, 650):
        watch.observe(step, 3.0)
    assert watch.level == level


def test_steps_that_go_back_start_a_new_baseline() -> None:
    """After a rollback the norm may be anywhere."""
    watch = flagged(norms(9, 300))[1]
    watch.observe(100, 50.0)
    assert (watch.level, watch.spike.steps) == (None, 0)


def test_norms_that_are_not_finite_are_counted_in_a_row() -> None:
    """NaN and infinity alike, by steps, as a loop may log every tenth; absent again with the first finite one."""
    watch = flagged([1.0] * 20)[1]
    row = {"grad_norm_nonfinite_steps": 1}
    assert not row.keys() & watch.metrics().keys()
    watch.observe(20, math.inf)
    assert row.items() <= watch.metrics().items()
    watch.observe(30, math.nan)
    assert watch.metrics()["grad_norm_nonfinite_steps"] == 11
    watch.observe(31, 0.0)
    assert not row.keys() & watch.metrics().keys()
    watch.observe(32, math.nan)
    watch.observe(10, -math.inf)  # a rollback
    assert row.items() <= watch.metrics().items()


def test_metrics_are_absent_until_there_is_something_to_say() -> None:
    """No norm, no series; no level before there is one; a norm of zero is a norm."""
    watch = GradNormWatch()
    assert dict(watch.metrics()) == {}
    watch.observe(0, 0.0)
    assert dict(watch.metrics()) == {"grad_norm_spike_steps": 0}
    metrics = dict(flagged([2.0] * 40)[1].metrics())
    assert metrics == {"grad_norm_spike_steps": 0, "grad_norm_level": pytest.approx(2.0)}
