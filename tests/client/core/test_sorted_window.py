"""The window whose middle and spread are always known."""

from __future__ import annotations

import random
import statistics

import pytest

from tachograph.client.core.sorted_window import SortedWindow


def test_it_is_the_last_numbers_in_order() -> None:
    """Against the same worked out anew after each number, with equal numbers, zeros and negative ones among them."""
    source, window, seen = random.Random(1), SortedWindow(32), []
    for _ in range(500):
        seen.append(source.choice((0.0, -1.0, round(source.gauss(0, 3), 1))))
        window.push(seen[-1])
        last = sorted(seen[-32:])
        middle = statistics.median(last)
        assert len(window) == len(last)
        assert window.median == middle
        assert window.spread == (last[3 * len(last) // 4] - last[len(last) // 4]) / 1.349


def test_the_spread_is_that_of_the_normal_distribution() -> None:
    """It estimates the standard deviation of normal noise."""
    source, window = random.Random(2), SortedWindow(20_000)
    for _ in range(20_000):
        window.push(source.gauss(5, 3))
    assert window.spread == pytest.approx(3, rel=0.03)
