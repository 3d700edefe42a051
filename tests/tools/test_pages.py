"""The files that are made from the catalog and the tables are those that `make docs` writes."""

from __future__ import annotations

import re

import pytest

from tachograph.catalog.index import METRICS
from tools.pages import alerts
from tools.pages.__main__ import PAGES, ROOT
from tools.pages.metrics import metrics_page
from tools.pages.ways_in import SOURCES


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_current(path: str) -> None:
    """The committed pages are those that `make docs` writes."""
    assert (ROOT / path).read_text(encoding="utf-8") == PAGES[path](), "run `make docs`"


def test_the_metrics_page_has_every_metric_once() -> None:
    """Each row of the catalog is one item of the page, or among the names below them if nothing reads it."""
    page = metrics_page()
    read = re.findall(r"^- `(tachograph_\w+)[`{]", page, re.MULTILINE)
    assert read == [metric.name for metric in METRICS if not metric.unread]
    listed = re.findall(r"`(tachograph_\w+)[`{]", " ".join(re.findall(r"^Not read: (?:.+\n)+", page, re.MULTILINE)))
    assert listed == [metric.name for metric in METRICS if metric.unread]


def test_an_alert_is_possible_with_all_that_its_expression_cannot_do_without() -> None:
    """Both sides of a comparison or `and`, one of `or`, and never what is behind `unless`; labels are looked at."""
    data, logged = (next(one for one in SOURCES if key in one.given) for key in ("batches_total", "grad_norm"))
    every = tuple(one for one in SOURCES if "step" in one.given)
    assert alerts.possible("DataStall", (*every, data))
    assert not alerts.possible("DataStall", every)
    assert not alerts.possible("DataStall", (*every, data._replace(keys="recent_phase_seconds{forward}")))
    assert alerts.possible("GradientNormSpike", (*every, logged))
    assert not alerts.possible("GradientNormSpike", every)
    assert alerts.possible("GpuLost", ())
