"""Confidence intervals of a change, of one run or of several on each side.

Steps that follow each other are alike, for seconds or for minutes: a spread that takes them as independent is too
small. Here it comes from the four slowest waves in the samples alone, which hold what neighbours share (Müller 2007;
Lazarus, Lewis, Stock and Watson 2018), and the quantile is Student's for as many. docs/evidence/compare.md says how
often these intervals cover.

The only module of this package that knows numpy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
"""Of an interval: the true change lies outside it in one comparison of twenty, half of those above it."""

WAVES = 4
"""Slow waves that the spread is taken from: with more, 200 steps that stay alike for twenty would be covered less."""

FEWEST = 20
"""Samples of each run below which nothing is said."""

MOST_STARTS = 2000
"""Samples that are tried as the end of a slow start."""

PARTS = 8
"""Parts of a run whose highest levels show how far its highest varies."""

_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)
"""The 97.5 % quantiles of Student's t for one degree of freedom and more."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A statistic of one run, and its bounds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Interval:
    """A statistic on both sides, and by how much the second is higher, as a share: the estimate, and its bounds."""

    first: float
    second: float
    change: float
    low: float
    high: float


Statistic = Callable[[Sequence[float]], "Estimate | None"]


def median(samples: Sequence[float]) -> Estimate | None:
    """Return the median of a run; None of too few samples.

    Its bounds are the samples' own quantiles, as far from the middle as the share below the median is uncertain
    (Woodruff 1952): no shape is assumed.
    """
    if len(samples) < FEWEST:
        return None
    values = np.asarray(samples, dtype=float)
    middle = float(np.median(values))
    uncertain = max(_student(WAVES) * _error_of_mean((values <= middle).astype(float)), 1 / len(values))
    low, high = np.quantile(values, np.clip([0.5 - uncertain, 0.5 + uncertain], 0, 1))
    return Estimate(middle, float(low), float(high))


def mean(samples: Sequence[float]) -> Estimate | None:
    """Return the mean of a run; None of too few samples."""
    if len(samples) < FEWEST:
        return None
    values = np.asarray(samples, dtype=float)
    middle, half = float(values.mean()), _student(WAVES) * _error_of_mean(values)
    return Estimate(middle, middle - half, middle + half)


def highest(samples: Sequence[float]) -> Estimate | None:
    """Return the highest level of a run, and how low the highest of a part of its later half was; None of none."""
    if not samples:
        return None
    later = np.asarray(samples, dtype=float)[len(samples) // 2 :]
    peaks = [float(part.max()) for part in np.array_split(later, min(PARTS, len(later)))]
    return Estimate(max(samples), min(peaks), max(samples))


def of_change(first: Sequence[Estimate], second: Sequence[Estimate], unit: float = 0.0) -> Interval | None:
    """Return the interval of how much higher the second side is; None where a share cannot be said.

    `unit`: the change is a share of this instead of the first side, of the first run's step time for example.
    """
    if not unit and any(one.low <= 0 for one in (*first, *second)):
        return None
    change, low, high = _difference(*([_as_share(one, unit) for one in side] for side in (first, second)))
    if not unit:
        change, low, high = math.expm1(change), math.expm1(low), math.expm1(high)
    middle_a, middle_b = (statistics.fmean(one.value for one in side) for side in (first, second))
    return Interval(middle_a, middle_b, change, low, high)


def of_pairs(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Interval | None:
    """Return the interval of the mean difference at equal places, as a share of the first side's mean.

    Each run has as many samples as the others; None for too few, or where the mean is not above 0.
    """
    a, b = (np.mean(np.asarray(side, dtype=float), axis=0) for side in (first, second))
    found = mean(list(b - a))
    if found is None or (unit := float(a.mean())) <= 0:
        return None
    between = _between(*([statistics.fmean(run) for run in side] for side in (first, second)))
    low, high = min(found.low, found.value - between), max(found.high, found.value + between)
    return Interval(unit, float(b.mean()), found.value / unit, low / unit, high / unit)


def steady_from(values: Sequence[float]) -> int:
    """Return the index of the first sample after a slow start: caches, compilation and clocks have settled.

    It is an ordinary one, and the next twenty have the median of the second half of all, within half of its spread. At
    most half is left out; nothing where the first twenty are ordinary on average, as it would be noise that is chosen.
    """
    found = np.asarray(values, dtype=float)
    half = found[len(found) // 2 :]
    if len(half) < FEWEST:
        return 0
    middle = float(np.median(half))
    spread = max(1.4826 * float(np.median(np.abs(half - middle))), 0.005 * abs(middle))
    if found[:FEWEST].mean() <= middle + 2 * spread:
        return 0
    ordinary = found <= middle + 3 * spread
    for start in range(0, len(half), -(-len(found) // MOST_STARTS)):
        if np.median(found[start : start + FEWEST]) <= middle + spread / 2:
            return start + int(np.argmax(ordinary[start:]))
    return len(found) - len(half)


def _as_share(one: Estimate, unit: float) -> Estimate:
    """Return an estimate in units, or without one its logarithms: their difference is a ratio."""
    if unit:
        return Estimate(one.value / unit, one.low / unit, one.high / unit)
    return Estimate(math.log(one.value), math.log(one.low), math.log(one.high))


def _difference(a: Sequence[Estimate], b: Sequence[Estimate]) -> tuple[float, float, float]:
    """Return the difference of two sides and its bounds: from those of the runs, and from how far runs differ."""
    change = statistics.fmean(one.value for one in b) - statistics.fmean(one.value for one in a)
    below_a, below_b = (math.hypot(*(one.value - one.low for one in side)) / len(side) for side in (a, b))
    above_a, above_b = (math.hypot(*(one.high - one.value for one in side)) / len(side) for side in (a, b))
    between = _between([one.value for one in a], [one.value for one in b])
    below, above = max(math.hypot(below_b, above_a), between), max(math.hypot(above_b, below_a), between)
    return change, change - below, change + above


def _between(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the half width that comes from runs of one side that differ; 0 for one run on each."""
    freedom = len(a) + len(b) - 2
    if not freedom:
        return 0.0
    squares = 0.0
    for side in (a, b):
        middle = statistics.fmean(side)
        squares += sum((value - middle) ** 2 for value in side)
    return _student(freedom) * math.sqrt(squares / freedom * (1 / len(a) + 1 / len(b)))


def _error_of_mean(values: Values) -> float:
    """Return the standard error of the mean, from the slowest waves in the values (EWC)."""
    places = (np.arange(len(values)) + 0.5) / len(values)
    waves = np.cos(np.pi * np.outer(np.arange(1, WAVES + 1), places)) * math.sqrt(2 / len(values))
    return math.sqrt(float(np.mean((waves @ (values - values.mean())) ** 2)) / len(values))


def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
