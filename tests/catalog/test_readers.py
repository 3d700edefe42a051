"""Every family has a reader, or the catalog says why it has none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
import yaml

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import HISTOGRAM, Metric
from tests.catalog.rows import every_row

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "doctor",
    "export",
    "report",
    "silence",
    "top",
    "watch",
    "node/api",
    "node/ranks/conclusions",
    "node/status_page",
    "diagnosis.py",
)
"""What reads metrics beside Prometheus, below the package's folder; what a node concludes for a person is read, too."""

CONSTANTS = {constant: row.name for constant, row in vars(catalog).items() if isinstance(row, Metric)}


def asked_by_rules() -> Iterable[str]:
    """Yield expressions and texts of rules; those that make our names of dcgm-exporter's read none of ours."""
    for path in (ROOT / "prometheus/rules").glob("*.yml"):
        if path.stem != "dcgm":
            for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]:
                for rule in group["rules"]:
                    yield from (rule["expr"], *rule.get("annotations", {}).values())


def files(*patterns: str) -> Iterable[str]:
    for pattern in patterns:
        for path in ROOT.glob(pattern):
            if path != ROOT / "docs/metrics.md":
                yield path.read_text(encoding="utf-8")


@cache
def read_names() -> set[str]:
    """Return every name of a family, or constant, that stands where one is read."""
    code = [
        f"exporter/tachograph/{each}" if "." in each else f"exporter/tachograph/{each}/**/*.py" for each in COMMANDS
    ]
    texts = (*asked_by_rules(), *files("grafana/dashboards/*.json", "runbooks/*.md", "docs/**/*.md", "README.md"))
    names = {name for text in texts for name in re.findall(r"tachograph_\w+", text)}
    words = {word for text in files(*code) for word in re.findall(r"\w+", text)}
    return names | words | {CONSTANTS[word] for word in words & CONSTANTS.keys()}


@every_row
def test_a_family_is_read_or_says_why_not(metric: Metric) -> None:
    """By a rule, a panel, a command, a runbook or another page that a person follows; `unread` says why by none."""
    parts = ("_bucket", "_sum", "_count") if metric.kind == HISTOGRAM else ("",)
    read = any(metric.name + part in read_names() for part in parts)
    if not read and not metric.unread:
        pytest.fail(f"nothing reads {metric.name}: take it out, or say why it is there (unread=…)", pytrace=False)
    assert not (read and metric.unread), "it has a reader: take `unread` away"
    assert not metric.unread.endswith("."), "a phrase: docs/metrics.md ends it"


@every_row
def test_what_nothing_reads_is_shown_on_request(metric: Metric) -> None:
    """By default what has a reader is shown, and what few have: layers that a run asks for, MIG instances, failures."""
    few_have = metric.own_label == "layer" or "mig" in metric.labels or metric is catalog.TRAIN_FAILURES
    assert not metric.unread or metric.detail is True or few_have or metric is catalog.COLLECTOR_DURATION
