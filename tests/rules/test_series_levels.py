"""Which alerts a node can raise at each level of --rank.series, --gpu.series: docs/cost.md lists what `few` costs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import promql_parser as p
import pytest

from tachograph.catalog import index as catalog
from tachograph.node.shown_gpus import EXPLAINING

PAGE = Path(__file__).parents[2] / "docs/cost.md"
Rules = Mapping[str, list[Any]]


def brings(node: Any, there: Collection[str]) -> bool:
    """Return whether an expression can have an answer where only the families and recorded series `there` exist."""
    if isinstance(node, p.BinaryExpr):
        left, right = brings(node.lhs, there), brings(node.rhs, there)
        return left or right if str(node.op) == "or" else left and (right or str(node.op) == "unless")
    if isinstance(node, p.Call):
        return all(brings(argument, there) for argument in node.args)
    if isinstance(node, p.MatrixSelector):
        return brings(node.vector_selector, there)
    if isinstance(node, p.VectorSelector):
        return re.sub("_(bucket|sum|count)$", "", node.name or "") in there or node.name in there
    return brings(node.expr, there) if hasattr(node, "expr") else True


def possible(rules: Rules, families: Collection[str]) -> set[str]:
    """Return what can be recorded or raised from these families and those that are not ours."""
    foreign = {name for name in names(rules) if name not in rules and not name.startswith("tachograph_")}
    there: set[str] = set()
    while True:
        more = {name for name, each in rules.items() if any(brings(one, there | foreign | {*families}) for one in each)}
        if more == there:
            return there
        there = more


def names(rules: Rules) -> set[str]:
    return {name for each in rules.values() for one in each for name in re.findall(r"[a-z_:][\w:]*", str(one), re.I)}


def at(level: str) -> set[str]:
    """Return the names of the families shown at a level of both."""
    reached = catalog.SERIES_LEVELS[: catalog.SERIES_LEVELS.index(level) + 1]
    shown = {row.name for row in catalog.METRICS if row.labels[:2] not in {catalog.RANK, catalog.GPU}}
    shown |= {row.name for row in catalog.METRICS if row.level in reached}
    if level != "few":  # of some families only a few values of a label are detail
        shown |= {row.name for row in catalog.METRICS if row.labels[:2] == catalog.GPU and row.detail is not True}
    return shown | {catalog.RANK_HEARTBEAT.name}  # of a frozen rank at any level


@pytest.fixture(scope="module")
def parsed(rules: list[dict[str, Any]]) -> tuple[Rules, set[str]]:
    """The rules by name, parsed, but for those that give dcgm-exporter's metrics our names; the names of alerts."""
    found = defaultdict(list)
    own = [rule for rule in rules if rule["file"] != "dcgm.yml"]
    for rule in own:
        found[rule.get("record") or rule["alert"]].append(p.parse(rule["expr"]))
    return found, {rule["alert"] for rule in own if "alert" in rule}


def test_dashboards_keeps_every_alert(parsed: tuple[Rules, set[str]]) -> None:
    """The defaults hide nothing that an alert cannot do without."""
    rules, alerts = parsed
    assert alerts <= possible(rules, at("dashboards"))


def test_the_page_lists_the_alerts_that_few_costs(parsed: tuple[Rules, set[str]]) -> None:
    """docs/cost.md names those that cannot fire at the lowest levels, and no other."""
    rules, alerts = parsed
    lost = alerts - possible(rules, at("few"))
    (listed,) = re.findall(r"(?s)At `few` these alerts are lost:(.*?)\n\n", PAGE.read_text(encoding="utf-8"))
    assert set(re.findall(r"[A-Z]\w+", listed)) == lost


def test_few_shows_what_texts_read_of_a_gpu(rules: list[dict[str, Any]]) -> None:
    """At the lowest level, or of a GPU of which the node finds what the text is about."""
    texts = "".join(text for rule in rules for text in rule.get("annotations", {}).values())
    read = set(re.findall(r"tachograph_gpu_\w+", texts))
    few = {row.name for row in catalog.METRICS if row.labels[:2] == catalog.GPU and row.few}
    assert read <= few.union(*EXPLAINING.values())
    assert read >= set().union(*EXPLAINING.values())
