"""Comparison of peers that should be equally fast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")

QUANTILE = 0.75
"""A healthy peer is here: with the median, one slow rank of three would be the measure of two of its three links."""


def usual(speeds: Mapping[K, float]) -> float:
    """Return the speed of a healthy peer: the upper quartile; of two the faster."""
    ordered = sorted(speeds.values())
    return ordered[math.ceil(QUANTILE * len(ordered)) - 1]


def slow(speeds: Mapping[K, float], tolerance: float) -> dict[K, float]:
    """Return the peers slower than the usual by more than `tolerance`, each with its share of the usual speed."""
    if len(speeds) < 2:
        return {}
    reference = usual(speeds)
    if reference <= 0:
        return {}
    return {key: speed / reference for key, speed in speeds.items() if speed < reference * (1 - tolerance)}


def minority(values: Mapping[K, str]) -> dict[str, list[K]]:
    """Return the values that differ from the most frequent one, each with those that have it.

    Where two are equally frequent nobody can say who is wrong: both are returned.
    """
    by_value: dict[str, list[K]] = {}
    for key, value in values.items():
        by_value.setdefault(value, []).append(key)
    most = max(map(len, by_value.values()), default=0)
    common = [value for value, keys in by_value.items() if len(keys) == most]
    if len(common) > 1:
        return by_value
    return {value: keys for value, keys in by_value.items() if value not in common}
