"""Confidence intervals of a change, by a bootstrap on blocks: steps that follow each other are not independent.

The only module of this package that knows numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.99
"""Of an interval: the true change lies outside it in one comparison of a hundred, half of those above it."""

RESAMPLES = 2000
SEED = 20260131
"""Fixed: the same two files have the same verdict."""

FEWEST = 20
"""Samples of each run below which nothing is said."""

MOST = 2000
"""Samples that are resampled; more are first averaged in groups of neighbours."""

Values = NDArray[np.float64]
Statistic = Callable[[Values], Values]


def median(values: Values) -> Values:
    """Return the median of the last axis."""
    return np.asarray(np.median(values, axis=-1))


def mean(values: Values) -> Values:
    """Return the mean of the last axis."""
    return np.asarray(np.mean(values, axis=-1))


@dataclass(frozen=True)
class Interval:
    """A statistic of two runs, and by how much the second is higher, as a share: the estimate, and its bounds."""

    first: float
    second: float
    change: float
    low: float
    high: float


def of_change(
    first: Sequence[float], second: Sequence[float], statistic: Statistic, scale: Sequence[float] | None = None
) -> Interval | None:
    """Return the interval of `statistic(second) / statistic(first) - 1`; None for too few samples.

    `scale`: the change is a share of the median of these instead, the step times of the first run for example.
    """
    a, b = _averaged(first), _averaged(second)
    if min(len(a), len(b)) < FEWEST:
        return None
    draws_a, draws_b = _resampled(a, statistic, 0), _resampled(b, statistic, 1)
    if draws_a is None or draws_b is None:
        return None
    at_a, at_b = float(statistic(a)), float(statistic(b))
    unit = at_a if scale is None else float(np.median(np.asarray(scale, dtype=float)))
    divisors = draws_a if scale is None else np.full_like(draws_a, unit)
    if unit <= 0 or np.any(divisors <= 0):
        return None
    low, high = _bounds((draws_b - draws_a) / divisors)
    return Interval(at_a, at_b, (at_b - at_a) / unit, low, high)


def of_pairs(first: Sequence[float], second: Sequence[float]) -> Interval | None:
    """Return the interval of the mean difference of pairs, as a share of the first's mean; None for too few."""
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if len(a) < FEWEST or (unit := float(np.mean(a))) <= 0:
        return None
    draws = _resampled(_averaged(b - a), mean, 0)
    if draws is None:
        return None
    low, high = _bounds(draws / unit)
    return Interval(unit, float(np.mean(b)), float(np.mean(b - a)) / unit, low, high)


def steady_from(values: Sequence[float]) -> int:
    """Return the index of the first sample after a slow start: caches, compilation and clocks have settled.

    It is an ordinary one, and the next twenty have the median of the second half of all, within half of its spread. At
    most half is left out.
    """
    found = np.asarray(values, dtype=float)
    half = found[len(found) // 2 :]
    if len(half) < FEWEST:
        return 0
    middle = float(np.median(half))
    spread = max(1.4826 * float(np.median(np.abs(half - middle))), 0.005 * abs(middle))
    ordinary = found <= middle + 3 * spread
    for start in range(0, len(half), -(-len(found) // MOST)):
        if np.median(found[start : start + FEWEST]) <= middle + spread / 2:
            return start + int(np.argmax(ordinary[start:]))
    return len(found) - len(half)


def block_length(values: Values) -> int:
    """Return how many neighbours to keep together, after Politis and White (2004), with their flat-top window.

    From ranks, as a few steps of ten times the length hide how alike the others are.
    """
    count = len(values)
    centred = np.unique(values, return_inverse=True)[1].astype(float)  # equal values have one rank
    centred -= centred.mean()
    furthest = min(count - 1, int(np.ceil(np.sqrt(count))) + 5)
    covariance = (
        np.array([centred[: count - lag] @ centred[lag:] for lag in range(min(2 * furthest, count - 1) + 1)]) / count
    )
    if covariance[0] <= 0:
        return 1
    limit = 2 * np.sqrt(np.log10(count) / count)
    quiet = np.abs(covariance / covariance[0]) < limit
    last = next((lag for lag in range(furthest) if quiet[lag + 1 : lag + 6].all()), furthest)
    reach = min(2 * max(last, 1), len(covariance) - 1)
    lags = np.arange(1, reach + 1)
    weights = np.clip(2 * (1 - lags / reach), 0, 1)
    spectrum = covariance[0] + 2 * float(weights @ covariance[1 : reach + 1])
    slope = 2 * float(weights @ (lags * covariance[1 : reach + 1]))
    if spectrum <= 0:
        return 1
    length = (2 * slope**2 / (4 / 3 * spectrum**2)) ** (1 / 3) * count ** (1 / 3)
    return int(np.clip(np.ceil(length), 1, 3 * np.sqrt(count)))


def _resampled(values: Values, statistic: Statistic, stream: int) -> Values | None:
    """Return the statistic of circular block resamples; None where less than eight blocks are independent."""
    count, length = len(values), block_length(values)
    blocks = -(-count // length)
    if blocks < 8:
        return None
    draw = np.random.default_rng((SEED, stream))
    starts = draw.integers(0, count, size=(RESAMPLES, blocks, 1))
    picked = (starts + np.arange(length)).reshape(RESAMPLES, -1)[:, :count] % count
    drawn = statistic(values[picked])
    # Blocks are fewer than samples: their spread is too small by n / (n - 1), and normal quantiles are Student's.
    wider = np.sqrt(blocks / (blocks - 1)) * _student(blocks - 1)
    centre = float(statistic(values))
    return cast(Values, centre + (drawn - centre) * wider)


def _student(freedom: int) -> float:
    """Return by how much the 99.5 % quantile of Student's t exceeds the normal one (Cornish and Fisher)."""
    z = 2.5758
    return 1 + (z**2 + 1) / (4 * freedom) + (5 * z**4 + 16 * z**2 + 3) / (96 * freedom**2)


def _bounds(draws: Values) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _averaged(values: Sequence[float] | Values) -> Values:
    """Return at most MOST values: means of as many neighbours as that takes."""
    found = np.asarray(values, dtype=float)
    group = -(-len(found) // MOST) if len(found) else 1
    whole = len(found) // group * group
    return cast(Values, found[:whole].reshape(-1, group).mean(axis=1))
