"""What the selectors of rules ask for: nothing that is shown on request only, and the Xids that page, all of them."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser as p
import pytest

from tachograph.catalog import index as catalog

XIDS = Path(__file__).resolve().parents[2] / "exporter/tachograph/node/xid/xids.csv"
Rules = list[dict[str, Any]]


@pytest.fixture
def own_rules(rules: Rules) -> Rules:
    """The rules but for those that give dcgm-exporter's metrics our names."""
    return [rule for rule in rules if rule["file"] != "dcgm.yml"]


def selectors(node: object) -> Iterator[p.VectorSelector]:
    """Yield every selector of an expression."""
    if isinstance(node, p.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, p.VectorSelector):
        yield node
    elif isinstance(node, p.BinaryExpr):
        yield from (*selectors(node.lhs), *selectors(node.rhs))
    elif isinstance(node, p.Call):
        yield from (one for argument in node.args for one in selectors(argument))
    elif isinstance(node, (p.AggregateExpr, p.ParenExpr, p.UnaryExpr, p.SubqueryExpr)):
        yield from selectors(node.expr)


def needed(node: object) -> list[p.VectorSelector]:
    """Return the selectors without which an expression is empty: not those that something can stand in for."""
    if isinstance(node, p.BinaryExpr) and str(node.op) in ("or", "unless"):
        left, right = needed(node.lhs), needed(node.rhs)
        return left if str(node.op) == "unless" or all(map(shown_by_default, left)) else right
    if isinstance(node, p.BinaryExpr):
        return needed(node.lhs) + needed(node.rhs)
    if isinstance(node, p.Call):
        return [selector for argument in node.args for selector in needed(argument)]
    if isinstance(node, (p.AggregateExpr, p.ParenExpr, p.UnaryExpr, p.SubqueryExpr)):
        return needed(node.expr)
    return list(selectors(node))


def selects(selector: p.VectorSelector, labels: Mapping[str, str]) -> bool:
    """Return whether a series with these labels, among others, can be selected."""
    return all(fits(one, labels[one.name]) for one in selector.matchers.matchers if one.name in labels)


def fits(matcher: p.Matcher, value: str) -> bool:
    if matcher.op in (p.MatchOp.Equal, p.MatchOp.NotEqual):
        return (matcher.value == value) == (matcher.op == p.MatchOp.Equal)
    return (re.fullmatch(matcher.value, value) is not None) == (matcher.op == p.MatchOp.Re)


def selector_pins(selector: p.VectorSelector, label: str, value: str) -> bool:
    """Return whether a selector asks for this one value of a label."""
    return any(
        (matcher.name, matcher.op, matcher.value) == (label, p.MatchOp.Equal, value)
        for matcher in selector.matchers.matchers
    )


def shown_by_default(selector: p.VectorSelector) -> bool:
    """Return whether a selector finds anything of an exporter that was not asked for detail."""
    row = catalog.BY_NAME.get(selector.name or "")
    if row is None or isinstance(row.detail, bool):
        return row is None or not row.detail
    label = row.labels[-1]
    if not row.vocabulary:  # some value is shown, unless the selector asks for a hidden one
        return not any(selector_pins(selector, label, value) for value in row.detail)
    return any(selects(selector, {label: value}) for value in row.vocabulary if value not in row.detail)


def test_no_rule_waits_for_what_is_hidden(own_rules: Rules) -> None:
    """A series that is exposed on request only would keep its alert silent on every other node."""
    assert not shown_by_default(p.parse("tachograph_gpu_memory_free_bytes"))
    assert not shown_by_default(p.parse('tachograph_gpu_clock_hertz{domain="memory"}'))
    assert not shown_by_default(p.parse('tachograph_gpu_achievable_flops{dtype="fp8"}'))
    assert not shown_by_default(p.parse("tachograph_train_collective_completed"))
    assert not shown_by_default(p.parse('tachograph_gpu_ecc_errors_total{scope="aggregate"}'))
    assert shown_by_default(p.parse('tachograph_gpu_clock_hertz{domain!="memory"}'))
    for rule in own_rules:
        waits = [selector.name for selector in needed(p.parse(rule["expr"])) if not shown_by_default(selector)]
        assert not waits, f"{rule.get('record') or rule['alert']}: {waits} are hidden"


def test_the_xids_that_page_are_those_of_the_table(own_rules: Rules) -> None:
    """The rules and the exporter's data file hold the same Xids for fatal; a program's own are none of them."""
    table = csv.DictReader(line for line in XIDS.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    paging = {row["xid"] for row in table if row["pages"] == "yes"}
    lists = [
        set(matcher.value.split("|"))
        for rule in own_rules
        for selector in selectors(p.parse(rule["expr"]))
        for matcher in selector.matchers.matchers
        if matcher.name == "xid"
    ]
    assert len(lists) >= 2
    assert all(listed == paging for listed in lists), lists
    assert not paging & {"13", "31", "43", "45"}


def test_no_rule_takes_an_increase_that_begins_above_zero(own_rules: Rules) -> None:
    """A counter that is first shown above 0 has not risen, as far as increase() can tell: no rule reads one."""
    rare = {row.name for row in catalog.METRICS if row.rare}
    assert rare
    for rule in own_rules:
        asked = {selector.name for selector in selectors(p.parse(rule["expr"]))}
        assert not asked & rare, rule.get("record") or rule["alert"]


def test_no_rule_counts_changes(own_rules: Rules) -> None:
    """VictoriaMetrics counts the sample with which a series begins as a change, and Prometheus does not."""
    assert not [rule for rule in own_rules if re.search(r"\bchanges\(", rule["expr"])]
