"""Every metric has a test."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import Metric
from tests.catalog.rows import every_row

TESTS = Path(__file__).parents[1]
CONSTANTS = {row.name: constant for constant, row in vars(catalog).items() if isinstance(row, Metric)}


@cache
def words() -> set[str]:
    """Return every word of the tests."""
    return {
        word
        for ending in ("*.py", "*.prom")  # a page that is compared byte for byte is a test
        for path in TESTS.rglob(ending)
        if path.parent != Path(__file__).parent
        for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))
    }


@every_row
def test_a_test_names_it(metric: Metric) -> None:
    """Some test names each row, by its constant or its name, with or without the prefix of its kind."""
    short = re.sub("^tachograph_(rank|run|train|gpu|exporter)_", "", metric.name)
    if not {CONSTANTS[metric.name], metric.name, metric.name.removeprefix("tachograph_"), short} & words():
        pytest.fail(f"no test names {metric.name}: write one beside the code that sets it", pytrace=False)
