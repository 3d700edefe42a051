"""The made-up runs and commands of two benchmarks: what they measure is what they say."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from tachograph.compare.comparison import IMPROVEMENT, REGRESSION


@pytest.fixture(scope="module")
def pairs() -> ModuleType:
    return importlib.import_module("compare")


@pytest.fixture(scope="module")
def bisections() -> ModuleType:
    return importlib.import_module("bisections")


@pytest.mark.parametrize("kind", ["independent", "0.7", "a slow start", "outliers", "runs 1 % apart, one of each"])
def test_a_slowdown_is_what_it_says(tmp_path: Path, pairs: ModuleType, kind: str) -> None:
    """A made-up run that takes half as long again is a regression, one that takes a quarter less an improvement."""
    noise, each = next(rest for name, *rest in pairs.NOISES if name == kind)
    compared = pairs.compared(tmp_path, 1, noise, 0.5, each)
    assert compared.verdict == REGRESSION
    step = next(row for row in compared.rows if row.measure.name == "step_time")
    assert step.change == pytest.approx(0.5, abs=0.05)
    assert pairs.compared(tmp_path, 1, noise, -0.25, each).verdict == IMPROVEMENT


def test_made_up_commands_break_where_they_say(bisections: ModuleType) -> None:
    """Without wrong runs all is exact; with two fifths of them wrong, and nobody told, it is not."""
    for search in (bisections.boundary, bisections.culprit):
        assert all(search(seed, 0.0, 1)[0] for seed in range(5))
        assert not all(search(seed, 0.4, 1)[0] for seed in range(5))
