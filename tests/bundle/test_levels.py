"""The rules of two levels: what a cell records, what is judged above, what goes up; compared with a PromQL parser."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser as p
import pytest
import yaml

from tachograph.bundle import levels

ROOT = Path(__file__).resolve().parents[2]
FILES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "prometheus/rules").glob("*.yml"))}
BOARDS = [path.read_text(encoding="utf-8") for path in (ROOT / "grafana/dashboards").glob("*.json")]
Rule = Mapping[str, Any]


def rules_in(files: Mapping[str, str]) -> list[Rule]:
    groups = [group for text in files.values() for group in yaml.load(text, yaml.CSafeLoader)["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def parts(node: object) -> Iterator[object]:
    """Yield an expression and all that it is made of."""
    yield node
    if isinstance(node, p.BinaryExpr):
        yield from (*parts(node.lhs), *parts(node.rhs))
    elif isinstance(node, p.Call):
        yield from (part for argument in node.args for part in parts(argument))
    elif isinstance(node, p.MatrixSelector):
        yield from parts(node.vector_selector)
    elif isinstance(node, (p.AggregateExpr, p.ParenExpr, p.UnaryExpr, p.SubqueryExpr)):
        yield from parts(node.expr)


def reads(expression: str) -> set[str]:
    return {part.name or "" for part in parts(p.parse(expression)) if isinstance(part, p.VectorSelector)}


def keeps_nodes_apart(expression: str) -> bool:
    """Return whether every sum and every match of an expression is of series of one node."""
    for part in parts(p.parse(expression)):
        if isinstance(part, p.AggregateExpr):
            by = part.modifier is not None and str(part.modifier.type).endswith("By")
            if part.modifier is None or by != ("instance" in part.modifier.labels):
                return False
        if isinstance(part, p.BinaryExpr) and part.modifier is not None:
            on = part.modifier.matching
            if on is not None and str(on.type).endswith("Include") != ("instance" in on.labels):
                return False
    return True


@pytest.fixture(scope="module")
def split() -> levels.Levels:
    return levels.split(FILES, BOARDS)


def test_every_rule_is_on_one_level(split: levels.Levels) -> None:
    """Each rule is in one of the files of that name, as it is, and both levels have rules; alerts are all above."""
    for name in FILES:
        whole, cell, above = (
            rules_in({name: files[name]} if name in files else {}) for files in (FILES, split.cell, split.above)
        )
        assert len(cell) + len(above) == len(whole)
        assert [rule for rule in whole if rule in above] == above
        assert [rule for rule in whole if rule in cell] == cell
    assert len(rules_in(split.cell)) > 80
    assert [rule["alert"] for rule in rules_in(split.cell) if "alert" in rule] == []


def test_groups_keep_their_names_and_intervals(split: levels.Levels) -> None:
    """A group that has rules on both levels is evaluated as often on both; none is empty."""

    def groups(files: Mapping[str, str]) -> dict[str, str]:
        found = [group for text in files.values() for group in yaml.load(text, yaml.CSafeLoader)["groups"]]
        assert all(group["rules"] for group in found)
        return {group["name"]: group["interval"] for group in found}

    assert groups(split.cell).keys() & groups(split.above).keys()
    assert {**groups(split.cell), **groups(split.above)} == groups(FILES)
    assert groups(split.cell).items() <= groups(FILES).items()


def test_names_are_those_that_promql_reads() -> None:
    """Every expression of the rules."""
    for rule in rules_in(FILES):
        assert levels.read_by(rule["expr"]) == reads(rule["expr"]), rule["expr"]


def test_a_node_is_what_promql_keeps_apart() -> None:
    """Every recorded series, but for those of all nodes of a Prometheus."""
    records = [rule for rule in rules_in(FILES) if "record" in rule]
    ours = [rule for rule in records if not rule["record"].startswith(levels.OF_ONE_PROMETHEUS)]
    assert 0 < len(ours) < len(records)
    for rule in ours:
        assert levels.is_of_a_node(rule) == keeps_nodes_apart(rule["expr"]), rule["record"]


def test_a_cell_has_all_that_it_reads(split: levels.Levels) -> None:
    """Nothing that is recorded above, and no alerts."""
    above = {rule["record"] for rule in rules_in(split.above) if "record" in rule} | {"ALERTS", "ALERTS_FOR_STATE"}
    for rule in rules_in(split.cell):
        assert not reads(rule["expr"]) & above, rule["record"]


def test_what_is_read_above_is_recorded_there_or_sent(split: levels.Levels) -> None:
    """By rules, by the texts of alerts and by dashboards; nothing is sent that is recorded above."""
    above = {rule["record"] for rule in rules_in(split.above) if "record" in rule}
    there = above | {"ALERTS", "ALERTS_FOR_STATE", *split.sent}
    assert not above & set(split.sent)
    for rule in rules_in(split.above):
        assert reads(rule["expr"]) <= there, rule["expr"]
    series = re.compile(r"\b(?:tachograph_|node:|run:|rank:|cluster:)[\w:]*\w")
    texts = [text for rule in rules_in(split.above) for text in rule.get("annotations", {}).values()]
    assert set(series.findall(" ".join(texts))) - there == set()
    for expression in re.findall(r'"expr": "((?:[^"\\]|\\.)*)"', " ".join(BOARDS)):
        assert set(series.findall(expression)) <= there


GROUP = """\
# A subject.
groups:
  - name: one
    interval: 5s
    rules:
      - record: {name}
        expr: |
          {expr}

  # What follows is judged above.
  - name: two
    interval: 5s
    rules:
      - record: run:other:max
        expr: max by (run) (x)
      # Never.
      - alert: Never
        expr: run:other:max > 1
"""


@pytest.mark.parametrize(
    ("expr", "is_of_a_node"),
    [
        ("up", True),
        ("rate(x_total[5m]) > 0 offset 1h", True),
        ("max by (instance, gpu) (x)", True),
        ('max by (instance) (x{run=~"sum (a) by (b)"})', True),
        ("max without (gpu) (x)", True),
        ("a * on (instance, uuid) group_left (run) b", True),
        ("a / ignoring (gpu) b", True),
        ("label_replace(a, \"b\", \"$1\", \"c\", \"(.*) by (run)\")", True),
        ("max by (run, instance) (x) unless on (instance) y", True),
        ("max by (run) (x)", False),
        ("sum(x)", False),
        ("max by (instance) (x) / on () group_left () sum(y)", False),
        ("count by (instance) (x) and on (run) y", False),
        ("max without (instance) (x)", False),
        ("a / ignoring (instance) b", False),
        ("topk(3, x)", False),
        ("sum (x) by (instance)", False),  # not as rules here are written, so it goes where all is known
        ("a and on (instance) run:other:max", False),
        ('a unless on (instance) ALERTS{alertname="B"}', False),
    ],
)  # fmt: skip
def test_the_level_is_read_off_the_expression(expr: str, *, is_of_a_node: bool) -> None:
    """Whatever the series is called."""
    for name in ("node:x:max", "run:x:max", "tachograph_x"):
        found = levels.split({"x.yml": GROUP.format(name=name, expr=expr)}, [])
        assert [rule["record"] for rule in rules_in(found.cell)] == ([name] if is_of_a_node else [])
        assert len(rules_in(found.above)) == (2 if is_of_a_node else 3)


def test_what_reads_a_series_from_above_is_above() -> None:
    """However far away; what is read of it below goes up."""
    text = GROUP.format(name="node:a:max", expr="max by (instance) (node:b:max) + on (instance) node:d:max")
    more = {"node:b:max": "node:c:max", "node:c:max": "run:other:max", "node:d:max": "max by (instance) (y)"}
    text += "".join(f"      - record: {name}\n        expr: {expr}\n" for name, expr in more.items())
    found = levels.split({"x.yml": text}, ['{"panels": [{"targets": [{"expr": "z{a=\\"b\\"}"}]}]}'])
    assert [rule["record"] for rule in rules_in(found.cell)] == ["node:d:max"]
    assert found.sent == ("node:d:max", "x", "z")


def test_comments_stay_with_what_they_are_about() -> None:
    """Of rules and of groups; a file without rules of a level is not there."""
    found = levels.split(
        {"x.yml": GROUP.format(name="node:a:max", expr="up"), "y.yml": GROUP.format(name="b", expr="sum(x)")}, []
    )
    assert found.cell.keys() == {"x.yml"}
    assert found.cell["x.yml"] == GROUP.format(name="node:a:max", expr="up").partition("\n  # What")[0]
    assert found.above["y.yml"] == GROUP.format(name="b", expr="sum(x)")
    _, _, second = GROUP.partition("          {expr}\n\n")
    assert found.above["x.yml"] == "# A subject.\ngroups:\n\n" + second


def test_series_of_all_nodes_of_a_prometheus_are_its_own() -> None:
    """A count of the nodes that one Prometheus scrapes is recorded by that one, unless it is of runs."""
    for expr, below in (("count(up == 0)", True), ("count(group by (run) (x))", False)):
        found = levels.split({"x.yml": GROUP.format(name="cluster:x:count", expr=expr)}, [])
        assert ("x.yml" in found.cell) is below
