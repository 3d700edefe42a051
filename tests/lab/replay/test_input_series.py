"""Values in promtool's notation, short and exact."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tachograph_lab.replay import input_series
from tachograph_lab.replay.promtool_limit import PromtoolLimitError, with_raised_limit
from tachograph_lab.replay.scraped import MISSING, STALE, ScrapedSeries

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ([1, 1, 1, 1, 1, 1], "1x5"),
        ([7], "7"),
        ([0, 5, 10, 15, 15, 15, 14], "0+5x3 15+0x1 14"),
        ([3, 2, 1, 0, 9], "3-1x3 9"),
        ([MISSING, MISSING, 2, 2, STALE, MISSING], "_x2 2x1 stale _x1"),
        ([NAN, NAN, NAN, INF, -INF, -INF], "NaN NaN NaN Inf -Inf -Inf"),
        ([0.1, 0.30000000000000004, -2.5e-7, 2.5e-7], "0.1 0.3 -2.5e-07 2.5e-07"),
        ([86400.123456, 86405.123456, 1.5e18, 2], "86400.123456 86405.123456 1.5e+18 2"),
        ([0.5, 0.5, 0.5, 0.5, MISSING, MISSING, MISSING, MISSING], "0.5x3 _x4"),
    ],
)
def test_values(values: list[float], written: str) -> None:
    """Repeats and even steps are one term; missing, stale and NaN are different."""
    assert input_series.values(np.array(values, np.float64)) == written


@pytest.mark.parametrize(
    ("values", "first", "written"),
    [
        ([1, 1, 1], 0, "1 _x4 1 _x4 1"),
        ([0.5, NAN, STALE, MISSING, 2], 3, "_x3 0.5 _x4 NaN _x4 stale _x9 2"),
        ([MISSING, MISSING, 7, MISSING], 1, "_x11 7"),
        ([MISSING], 2, ""),
    ],
)
def test_values_with_gaps(values: list[float], first: int, written: str) -> None:
    """A target's scrapes are 5 grid steps apart and begin at a step of its own; missing values are gaps."""
    assert input_series.values(np.array(values, np.float64), 5, first) == written


def test_whole_numbers_come_back_exactly() -> None:
    """Whatever their steps, promtool adds them up to the recorded values."""
    numbers = np.cumsum(np.random.default_rng(1).integers(0, 3, 500)).astype(np.float64)
    read: list[float] = []
    for word in input_series.values(numbers).split():
        start, _, rest = word.partition("+")
        step, _, times = rest.partition("x")
        read += [float(start) + i * float(step or 0) for i in range(int(times or 0) + 1)]
    assert read == numbers.tolist()


@pytest.mark.parametrize("whole", [2**53 - 1, 2**53 - 2, 10**12 + 1])
def test_neighbours_stay_apart(whole: int) -> None:
    """Two checksums that differ by one are two numbers to promtool, as they are to Prometheus."""
    assert input_series.number(float(whole)) == str(whole)


def test_labels_are_quoted() -> None:
    """As PromQL reads them."""
    one = ScrapedSeries("m", {"a": 'x"y\\z\nw', "b": "–"}, np.array([1.0]))
    assert input_series.selector(one) == r'm{a="x\"y\\z\nw",b="–"}'


def test_a_program_without_that_one_limit_is_left_alone() -> None:
    """With none or two matches the program is refused: no promtool is patched blindly."""
    limit = (10_000).to_bytes(8, "little") + (100_000_000_000).to_bytes(8, "little")
    assert with_raised_limit(b"a" + limit + b"b") != b"a" + limit + b"b"
    for content in (b"nothing", limit + b"-" + limit):
        with pytest.raises(PromtoolLimitError, match="not once"):
            with_raised_limit(content)
