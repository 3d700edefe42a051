"""A check of every row as one test, whose failure names the rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tachograph.catalog.index import METRICS
from tachograph.catalog.metric import Metric


def every_row(check: Callable[[Metric], None]) -> Callable[[], None]:
    """Return a test that checks each row and fails with all that are wrong."""

    def test() -> None:
        wrong = []
        for metric in METRICS:
            try:
                check(metric)
            except (AssertionError, pytest.fail.Exception) as fault:
                wrong.append(f"{metric.name}: {fault}")
        if wrong:
            pytest.fail("\n".join(wrong), pytrace=False)

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    return test
