"""A jump of the learning rate, told from what schedules do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest

from tachograph.client.signals.learning_rate import LearningRateWatch

TOTAL, WARM = 1000, 100


def linear(step: int) -> float:
    return min(step / WARM, (TOTAL - step) / (TOTAL - WARM))


def cosine(step: int) -> float:
    return step / WARM if step < WARM else 0.5 * (1 + math.cos(math.pi * (step - WARM) / (TOTAL - WARM)))


def root(step: int) -> float:
    return min((step + 1) / WARM, math.sqrt(WARM / (step + 1)))


def jumps(rates: Iterable[tuple[int, float]]) -> list[int]:
    """Return the steps at which the rate jumped."""
    watch = LearningRateWatch()
    return [step for step, rate in rates if watch.observe(step, rate)]


@pytest.mark.parametrize("schedule", [linear, cosine, root])
@pytest.mark.parametrize("first", [0, 1, 500])
@pytest.mark.parametrize("every", [1, 10])
def test_a_schedule_is_no_jump(schedule: Callable[[int], float], first: int, every: int) -> None:
    """Warm-up from zero, and a decay to zero, at each step and at every tenth, from the start and after a resume."""
    assert jumps((step, 3e-4 * schedule(step)) for step in range(first, TOTAL + 1, every)) == []


@pytest.mark.parametrize(
    ("factor", "is_jump"), [(1.45, False), (1.55, True), (1 / 1.45, False), (1 / 1.55, True), (0.0, True)]
)
def test_a_jump_is_more_than_half_again(factor: float, is_jump: bool) -> None:
    """Up or down, once, from a rate that stood or fell slowly."""
    assert jumps((step, 1e-3 * (factor if step >= 300 else 1)) for step in range(600)) == [300] * is_jump
    assert jumps((step, 1e-3 * cosine(step) * (factor if step >= 300 else 1)) for step in range(600)) == [300] * is_jump


def test_a_turn_is_a_jump_however_gentle() -> None:
    """A ramp down is a schedule; up again by more than half at once is none, though no steeper than the ramp was."""
    assert jumps([(100, 1.0), (101, 0.75), (102, 0.5), (103, 0.25), (104, 0.45)]) == [104]


def test_a_second_warm_up_from_zero_begins_with_one_jump() -> None:
    """The fall to zero is one; the ramp, whose steps double the rate at first, is none but for its first."""
    assert jumps((step, max(0, step - 300) / 100 if step >= 300 else 1.0) for step in range(250, 400)) == [300]


def test_what_is_no_rate_is_ignored() -> None:
    """NaN, infinite and negative rates neither jump nor are remembered; a step seen twice is one."""
    assert jumps([(1, 1.0), (2, math.nan), (3, math.inf), (4, -1.0), (5, 1.0), (5, 9.0), (6, 1.0)]) == []


def test_steps_that_go_back_start_again() -> None:
    """A resume has its own grace."""
    assert jumps([(100, 1.0), (101, 1.0), (50, 5.0), (51, 5.0), (52, 9.0)]) == [52]
