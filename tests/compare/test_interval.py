"""The intervals themselves: how wide, from how many independent samples, and what a slow start or an outlier does."""

from __future__ import annotations

import statistics
from random import Random

import pytest

from tachograph.compare import interval
from tachograph.compare.comparison import at_equal_steps, compare
from tachograph.compare.recording import RecordedRun


def noise(seed: int, count: int = 200, kept: float = 0.0, slower: float = 0.0) -> list[float]:
    """Return step times with 3 % of noise, of which each step keeps a share from the one before."""
    random, level, values = Random(seed), 0.0, []
    for _ in range(count):
        level = kept * level + random.gauss(0, 0.03 * (1 - kept**2) ** 0.5)
        values.append(0.3 * (1 + level) * (1 + slower))
    return values


def changed(first: list[float], second: list[float], statistic: interval.Statistic) -> interval.Interval | None:
    a, b = statistic(first), statistic(second)
    return None if a is None or b is None else interval.of_change([a], [b])


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("statistic", [interval.median, interval.mean])
def test_an_interval_has_the_true_change(statistic: interval.Statistic, kept: float) -> None:
    """Of 60 pairs five miss it at most, also where a step is like the one before it; the same values have the same."""
    found = [
        changed(noise(seed, kept=kept), noise(1000 + seed, kept=kept, slower=0.05), statistic) for seed in range(60)
    ]
    missed = [one for one in found if one is None or not one.low <= 0.05 <= one.high]
    assert len(missed) <= 5
    assert found[7] == changed(noise(7, kept=kept), noise(1007, kept=kept, slower=0.05), statistic)


def test_neighbours_that_are_alike_say_less() -> None:
    """The interval is wider where a step is like the one before it."""
    widths = [
        statistics.median(
            found.high - found.low
            for seed in range(20)
            if (found := changed(noise(seed, 500, kept), noise(50 + seed, 500, kept), interval.mean)) is not None
        )
        for kept in (0.0, 0.8)
    ]
    assert widths[1] > 2 * widths[0]


@pytest.mark.parametrize("several", [2, 3])
def test_runs_that_differ_among_themselves(several: int) -> None:
    """Each is 1 % off by itself, as on another day: of 40 comparisons of several runs three miss the change at most."""
    missed = 0
    for seed in range(40):
        random = Random(seed)
        sides = [
            [
                interval.median(noise(random.randrange(10**6), slower=slower + random.gauss(0, 0.01)))
                for _ in range(several)
            ]
            for slower in (0.0, 0.05)
        ]
        found = interval.of_change(*([one for one in side if one is not None] for side in sides))
        missed += found is None or not found.low <= 0.05 <= found.high
    assert missed <= 3


def test_too_little_has_no_interval() -> None:
    """Nineteen samples; a share of nothing; and a level that drifts all the time has a wide one."""
    assert interval.mean(noise(1, 19)) is None
    assert changed([0.0] * 50, noise(1), interval.mean) is None
    drifting = [0.3 + 0.001 * step for step in range(50)]
    found = changed(drifting, drifting, interval.mean)
    assert found is not None
    assert found.low < -0.05 < 0.05 < found.high


def test_equal_values_are_certain() -> None:
    """Without noise the interval is a point."""
    found = changed([0.25] * 50, [0.5] * 50, interval.median)
    assert found == interval.Interval(0.25, 0.5, *[pytest.approx(1.0)] * 3)


def test_a_level_varies_as_its_parts_do() -> None:
    """The highest of eight parts of the later half; what never varies has no spread."""
    assert interval.highest([9.0, 1, 2, 3, 4, 5, 6, 7, 5, 4]) == interval.Estimate(9.0, 4.0, 9.0)
    assert interval.highest([3.0, 3.0]) == interval.Estimate(3.0, 3.0, 3.0)
    assert interval.highest([]) is None


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
    return {row.measure.name: row.verdict for row in compare([run(first)], [run(second)]).rows}


def test_a_few_long_steps_are_no_regression_and_a_stalling_loader_is() -> None:
    """Six steps of ten times the length come by chance; one in ten that takes twice as long does not."""
    outliers = noise(2)
    for step in (30, 50, 90, 121, 160, 180):
        outliers[step] = 3.0
    assert verdicts(noise(1), outliers)["mean_step_time"] != "regression"
    stalling = [value * (2 if step % 10 == 0 else 1) for step, value in enumerate(noise(2))]
    assert verdicts(noise(1), stalling) == {"step_time": "within the limit", "mean_step_time": "regression"}


def test_losses_are_those_of_the_same_steps() -> None:
    """Steps that the second lacks are interpolated, not beyond its ends; of a step made twice the last counts."""
    first = ((1, 5.0), (2, 4.0), (3, 3.5), (2, 4.5), (9, 1.0))
    assert list(at_equal_steps([first, ((2, 6.0), (4, 2.0))])) == [(4.5, 6.0), (3.5, 4.0)]
    assert list(at_equal_steps([first, ((2, 6.0), (4, 2.0)), ((3, 1.0),)])) == [(3.5, 4.0, 1.0)]
    assert list(at_equal_steps([first, ()])) == []


def test_a_loss_that_is_not_positive_has_no_percentage() -> None:
    """A reward of opposite sign, for example: inconclusive, with the reason."""
    losses = tuple((step, -1.0 - step / 100) for step in range(100))
    (row,) = (row for row in compare([run(noise(1), loss=losses)], [run(noise(2), loss=losses)]).rows if row.why)
    assert (row.measure.name, row.verdict) == ("loss", "inconclusive")
    assert row.why == "a loss that is not above 0 has no percentage"
