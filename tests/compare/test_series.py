"""The queries ask for series that exist: a metric of the catalog, or what a rule records."""

from __future__ import annotations

import re
from pathlib import Path

from tachograph.catalog.index import BY_NAME
from tachograph.compare import prometheus_run

RULES = Path(__file__).resolve().parents[2] / "prometheus/rules"


def test_every_series_exists() -> None:
    """A metric or a rule that is renamed is renamed here, too."""
    queries = [*prometheus_run.SERIES.values(), *prometheus_run.LEVELS.values(), *prometheus_run.PER_STEP.values()]
    queries += [
        prometheus_run.PHASES,
        prometheus_run.ALONE,
        prometheus_run.RANKS,
        *(family for _, family in prometheus_run.WORDS.values()),
    ]
    named = {name for query in queries for name in re.findall(r"(?:run:|node:|tachograph_)[\w:]+", query)}
    rules = "\n".join(path.read_text(encoding="utf-8") for path in RULES.glob("*.yml"))
    recorded = set(re.findall(r"record: (\S+)", rules))
    parts = {name + end for name, metric in BY_NAME.items() if metric.kind == "histogram" for end in ("_sum", "_count")}
    assert len(named) > 10
    assert named - recorded - parts - set(BY_NAME) == set()


def test_every_fact_in_words_is_a_label() -> None:
    """Facts are read from labels of info metrics."""
    assert [
        label for label, family in prometheus_run.WORDS.values() if label not in BY_NAME[family].labels
    ] == []  # fmt: skip
