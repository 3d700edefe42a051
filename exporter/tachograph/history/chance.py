"""The part of chance: exact intervals and probabilities for counts that may be small."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

LARGEST = 1e6
"""A ratio beyond which it is called infinite."""
STEPS = 32
"""Halvings of the interval of logarithms: it is then 6e-9 wide."""


def at_least(count: int, trials: int, share: float) -> float:
    """Return the probability of `count` or more of so many trials, each of which comes out with probability `share`."""
    if not 0 < share < 1:
        return float(count <= trials * share)
    return math.fsum(
        math.exp(
            math.lgamma(trials + 1) - math.lgamma(one + 1) - math.lgamma(trials - one + 1)
            + one * math.log(share) + (trials - one) * math.log1p(-share)
        )
        for one in range(count, trials + 1)
    )  # fmt: skip


def some_node(count: int, incidents: int, nodes: int) -> float:
    """Return at most how probable it is that any of so many equal nodes has `count` or more of all incidents."""
    return min(1.0, nodes * at_least(count, incidents, 1 / nodes)) if nodes else 1.0


def rate_ratio(shares: Sequence[float], count: int, confidence: float) -> tuple[float, float, float]:
    """Return how many times as often failures come while exposed, with the exact limits of its confidence interval.

    `shares` has for each failure which share of its run's time was exposed, each within (0, 1); `count` of the failures
    came while exposed. Given the failures of each run, each is exposed with probability r·s / (r·s + 1 - s) at a rate
    ratio r: that some runs fail more often than others does not matter. Limits as by Clopper and Pearson (Biometrika
    26, 1934), of a sum of unequal trials.
    """
    tail = (1 - confidence) / 2

    def exposed(ratio: float) -> list[float]:
        return [ratio * share / (ratio * share + 1 - share) for share in shares]

    best = _root(lambda ratio: sum(exposed(ratio)) - count)
    low = _root(lambda ratio: sum(_distribution(exposed(ratio))[count:]) - tail) if count else 0.0
    high = (
        _root(lambda ratio: tail - sum(_distribution(exposed(ratio))[: count + 1])) if count < len(shares) else math.inf
    )
    return (best if 0 < count < len(shares) else 0.0 if not count else math.inf), low, high


def _distribution(shares: Sequence[float]) -> list[float]:
    """Return the probabilities of 0, 1, … of independent trials with these probabilities."""
    found = [1.0]
    for share in shares:
        found = [here * (1 - share) + before * share for here, before in zip([*found, 0.0], [0.0, *found], strict=True)]
    return found


def _root(rising: Callable[[float], float]) -> float:
    """Return where a function that rises with a ratio is 0: 0 or infinity where it is not between 1e-6 and 1e6."""
    low, high = -math.log(LARGEST), math.log(LARGEST)
    if rising(math.exp(low)) > 0:
        return 0.0
    if rising(math.exp(high)) < 0:
        return math.inf
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(math.exp(middle)) > 0 else (middle, high)
    return math.exp((low + high) / 2)


def gathered(times: Sequence[float], period: float) -> tuple[float, float]:
    """Return about which moment of a period times gather, in seconds, and how probable that is by chance.

    Rayleigh's test (Zar, Biostatistical Analysis, 27.1).
    """
    angles = [2 * math.pi * (time % period) / period for time in times]
    sine, cosine, number = sum(map(math.sin, angles)), sum(map(math.cos, angles)), len(times)
    length = math.hypot(sine, cosine)
    probability = math.exp(math.sqrt(1 + 4 * number + 4 * (number**2 - min(length, number) ** 2)) - (1 + 2 * number))
    return (math.atan2(sine, cosine) % (2 * math.pi)) / (2 * math.pi) * period, min(1.0, probability)
