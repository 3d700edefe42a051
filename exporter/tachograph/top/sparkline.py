"""A figure over time as bars, one line high or several."""

from __future__ import annotations

import math
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"

FLAT = 0.1
"""The least span, as a share of the largest value: a steady figure looks steady in spite of its noise."""

MOST = 1e300
"""Larger values are gaps, as NaN is: their sum would overflow."""


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the newest values in at most `width` characters, several to one where there are more; gaps are blank."""
    return curve(values, width, 1)[0].lstrip()


def curve(values: Sequence[float], width: int, height: int) -> list[str]:
    """Return the same in so many lines, the highest first."""
    levels = _levels(values, width, len(BARS) * height - 1)
    lines = []
    for line in reversed(range(height)):
        filled = (-1 if level is None else min(level - line * len(BARS), len(BARS) - 1) for level in levels)
        lines.append("".join(BARS[level] if level >= 0 else " " for level in filled))
    return lines


def _levels(values: Sequence[float], width: int, top: int) -> list[int | None]:
    """Return how high the bar of each character is, from 0 to `top`, None where there is a gap."""
    each = max(1, math.ceil(len(values) / width)) if width > 0 else 1
    first = len(values) % each
    groups = [values[:first]] if first else []
    groups += [values[i : i + each] for i in range(first, len(values), each)]
    means = [_mean([value for value in group if abs(value) < MOST]) for group in groups]
    known = [mean for mean in means if mean is not None]
    if not known:
        return []
    low, high = min(known), max(known)
    span = max(high - low, FLAT * max(abs(high), abs(low)))
    low = (low + high - span) / 2
    return [None if mean is None else min(top, round((mean - low) / span * top)) if span else 0 for mean in means]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
