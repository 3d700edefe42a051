"""The files that are made from the catalog and the tables are those that `make docs` writes."""

from __future__ import annotations

import re

import pytest

from tachograph.catalog.index import METRICS
from tools.pages.__main__ import PAGES, ROOT
from tools.pages.metrics import metrics_page


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_current(path: str) -> None:
    """What is committed is what `make docs` writes."""
    assert (ROOT / path).read_text(encoding="utf-8") == PAGES[path](), "run `make docs`"


def test_the_metrics_page_has_every_metric_once() -> None:
    """Each row of the catalog is one row of the page."""
    assert re.findall(r"^\| `(tachograph_\w+)`", metrics_page(), re.MULTILINE) == [metric.name for metric in METRICS]
