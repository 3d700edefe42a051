"""The intervals themselves: how wide, from how many independent samples, and what a slow start or an outlier does."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tachograph.compare import interval
from tachograph.compare.comparison import compare, equal_steps
from tachograph.compare.recording import RecordedRun


def noise(seed: int, count: int = 200, kept: float = 0.0, slower: float = 0.0) -> list[float]:
    """Return step times with 3 % of noise, of which each step keeps a share from the one before."""
    random, level, values = Random(seed), 0.0, []
    for _ in range(count):
        level = kept * level + random.gauss(0, 0.03 * (1 - kept**2) ** 0.5)
        values.append(0.3 * (1 + level) * (1 + slower))
    return values


@pytest.mark.parametrize("statistic", [interval.median, interval.mean])
def test_an_interval_has_the_true_change(statistic: interval.Statistic) -> None:
    """Of 60 pairs two miss it at most; and the same values have the same interval."""
    found = [interval.of_change(noise(seed), noise(1000 + seed, slower=0.05), statistic) for seed in range(60)]
    missed = [one for one in found if one is None or not one.low <= 0.05 <= one.high]
    assert len(missed) <= 2
    assert found[7] == interval.of_change(noise(7), noise(1007, slower=0.05), statistic)


def test_neighbours_that_are_alike_say_less() -> None:
    """Blocks are longer, and the interval wider, where a step is like the one before it."""
    independent, alike = np.array(noise(1)), np.array(noise(1, kept=0.9))
    assert interval.block_length(independent) <= 5 < interval.block_length(alike)
    narrow, wide = (interval.of_change(noise(1, 500, kept), noise(2, 500, kept), interval.mean) for kept in (0.0, 0.8))
    assert narrow is not None
    assert wide is not None
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_too_little_has_no_interval() -> None:
    """Nineteen samples; and a level that drifts all the time, which has no eight independent blocks in fifty."""
    assert interval.of_change(noise(1, 19), noise(2), interval.mean) is None
    drifting = [0.3 + 0.001 * step for step in range(50)]
    assert interval.of_change(drifting, drifting, interval.mean) is None
    assert interval.of_change([0.0] * 50, noise(1), interval.mean) is None


def test_equal_values_are_certain() -> None:
    """Without noise the interval is a point."""
    found = interval.of_change([0.25] * 50, [0.5] * 50, interval.median)
    assert found == interval.Interval(0.25, 0.5, 1.0, 1.0, 1.0)


def test_a_slow_start_is_left_out() -> None:
    """What takes long at the beginning is not the run's usual step; without one nearly all is kept."""
    slow = [2.0] * 30 + noise(1, 170)
    assert interval.steady_from(slow) == 30
    assert interval.steady_from(noise(1)) <= 10
    assert interval.steady_from(noise(1, 30)) == 0


def run(values: list[float], **more: object) -> RecordedRun:
    steps = tuple(enumerate(values))
    return RecordedRun("r", "test", 0, 1, {}, {"step_seconds": steps}, **more)  # type: ignore[arg-type]


def verdicts(first: list[float], second: list[float]) -> dict[str, str]:
    return {row.measure.name: row.verdict for row in compare(run(first), run(second)).rows}


def test_a_few_long_steps_are_no_regression_and_a_stalling_loader_is() -> None:
    """Three steps of ten times the length come by chance; one in ten that takes twice as long does not."""
    outliers = noise(2)
    outliers[50] = outliers[90] = outliers[160] = 3.0
    assert verdicts(noise(1), outliers)["mean_step_time"] != "regression"
    stalling = [value * (2 if step % 10 == 0 else 1) for step, value in enumerate(noise(2))]
    assert verdicts(noise(1), stalling) == {"step_time": "within the limit", "mean_step_time": "regression"}


def test_losses_are_those_of_the_same_steps() -> None:
    """Steps that the second lacks are interpolated, not beyond its ends; of a step made twice the last counts."""
    first = ((1, 5.0), (2, 4.0), (3, 3.5), (2, 4.5), (9, 1.0))
    assert list(equal_steps(first, ((2, 6.0), (4, 2.0)))) == [(4.5, 6.0), (3.5, 4.0)]
    assert list(equal_steps(first, ())) == []


def test_a_loss_that_is_not_positive_has_no_percentage() -> None:
    """A reward of opposite sign, for example: inconclusive, with the reason."""
    losses = tuple((step, -1.0 - step / 100) for step in range(100))
    (row,) = (row for row in compare(run(noise(1), loss=losses), run(noise(2), loss=losses)).rows if row.why)
    assert (row.measure.name, row.verdict) == ("loss", "inconclusive")
    assert row.why == "a loss that is not above 0 has no percentage"
