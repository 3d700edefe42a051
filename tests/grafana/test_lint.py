"""The rules of Grafana's own dashboard-linter, which is a Go program, on every dashboard; where not, the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import promql_parser
import pytest

Json = dict[str, Any]

EXCLUDED = {
    "template-job-rule": "our series are identified by their prefix; `job` is the cluster owner's to name",
    "template-instance-rule": "a node is chosen where nodes are shown; Fleet shows runs",
    "target-job-rule": "as template-job-rule",
    "target-instance-rule": "a query for a run or a cluster spans all nodes; those for nodes and ranks do match it",
    "target-logql-rule": "there is no Loki",
    "target-logql-auto-rule": "there is no Loki",
}
"""Rules that do not hold here, and why; all others do."""

SINCE_THE_START = {
    ("run", "Spikes and non-finite steps"): "counts of an attempt: few, and what matters is that there is one",
    ("run", "Allocation failures"): "counts of an attempt: few, and what matters is that there is one",
    ("incident", "Decisions of the supervisor"): "a step is a decision, of which there are a few a week",
    ("incident", "Restarts by the supervisor"): "the steps that all restarts have cost so far",
    ("ranks", "Failed collectives"): "counts of an attempt: one is too many",
    ("node", "ECC errors"): "NVML's own count since the driver was loaded; rare, a rate would round it away",
    ("node", "Remapped rows and retired pages"): "rows and pages over the part's life: a rate of them means nothing",
    ("storage", "Failed checkpoints"): "counts of an attempt: one is too many",
    ("storage", "Failed checkpoints, by rank"): "as Failed checkpoints",
    ("storage", "Ranks and their checkpoints"): "as Failed checkpoints",
    ("storage", "Loader worker restarts"): "a step each epoch; its rate would be a spike nobody reads",
}
"""Panels that draw a counter as it stands, and why."""


def parts(node: object, inside: str = "") -> Iterator[tuple[promql_parser.VectorSelector, str]]:
    """Yield every selector below a parsed expression with the function that takes its range."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node, inside
        return
    if isinstance(node, promql_parser.Call):
        inside = node.func.name
    for part in ("expr", "lhs", "rhs", "param", "vs", "vector_selector", "args"):
        child = getattr(node, part, None)
        for one in child if isinstance(child, list) else [child]:
            if one is not None and not isinstance(one, (str, int, float)):
                yield from parts(one, inside)


def test_template_datasource(dashboard: Json) -> None:
    """template-datasource-rule: the first variable is the data source, under the name other bundles use."""
    first = dashboard["templating"]["list"][0]
    assert (first["type"], first["name"], first["label"]) == ("datasource", "datasource", "Data source")
    assert first["query"] == "prometheus"


def test_template_on_time_change_reload(dashboard: Json) -> None:
    """template-on-time-change-reload-rule: a run that ended an hour ago is listed when that hour is looked at."""
    for variable in dashboard["templating"]["list"]:
        assert variable["type"] != "query" or variable["refresh"] == 2, variable["name"]


def test_template_label_promql(dashboard: Json, expressions: ModuleType, fill: Any) -> None:
    """template-label-promql-rule: each list of values is label_values of a selector that parses."""
    asked = [one for one in expressions.asked(dashboard) if one.kind == "variable"]
    assert len(asked) == sum(variable["type"] == "query" for variable in dashboard["templating"]["list"])
    for one in asked:
        assert isinstance(promql_parser.parse(fill(dashboard, one.expression)), promql_parser.VectorSelector)


def test_panel_datasource_and_targets(panels: list[Json]) -> None:
    """panel-datasource-rule, panel-no-targets-rule: each panel asks something, of the variable data source."""
    for panel in panels:
        if panel["type"] == "text":
            continue
        assert panel["targets"], panel["title"]
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs), panel["title"]


def test_uneditable_dashboard(dashboard: Json) -> None:
    """uneditable-dashboard: what provisioning would overwrite cannot be edited."""
    assert dashboard["editable"] is False


def fixed_ranges(expression: str) -> list[str]:
    """Return the ranges of rates that do not follow the scrape interval or the time range."""
    ranges = re.findall(r"\b(?:rate|irate|increase)\([^\[]*\[([^\]]+)\]", expression)
    return [one for one in ranges if one not in ("$__rate_interval", "$__range")]


def test_target_rate_interval(panels: list[Json]) -> None:
    """target-rate-interval-rule: a fixed range would be too short for another scrape interval."""
    for panel in panels:
        for target in panel.get("targets", []):
            fixed = fixed_ranges(target["expr"])
            assert not fixed, f"{panel['title']}: {fixed}"
            if "[$__range" in target["expr"]:  # sums of the range are asked once, or of its end
                assert target["instant"] or "@ end()" in target["expr"], panel["title"]


def bare_counters(expression: str) -> set[str]:
    """Return the counters that are drawn as they stand."""
    taken = {"rate", "irate", "increase", "changes", "resets"}
    found = {str(one.name) for one, function in parts(promql_parser.parse(expression)) if function not in taken}
    return {name for name in found if name.endswith("_total")}


def test_target_counter_agg(dashboard: Json, expressions: ModuleType, fill: Any) -> None:
    """target-counter-agg-rule: a bare counter is a line that only ever climbs, unless that is its point."""
    name = dashboard["uid"].removeprefix("tachograph-")
    for one in expressions.asked(dashboard):
        bare = bare_counters(fill(dashboard, one.expression))
        assert not bare or (name, one.place) in SINCE_THE_START, f"{one.place} draws {bare} without a rate"


def test_exceptions_are_still_there(dashboards: dict[str, Json], expressions: ModuleType) -> None:
    """An exception for a panel that no longer exists would hide the next mistake of that name."""
    there = {(name, one.place) for name, found in dashboards.items() for one in expressions.asked(found)}
    assert set(SINCE_THE_START) <= there


@pytest.mark.parametrize(("check", "expression"), [
    (fixed_ranges, "sum(rate(tachograph_train_tokens_total[5m]))"),
    (bare_counters, 'sum(tachograph_train_tokens_total{run="x"})'),
])  # fmt: skip
def test_a_bad_query_is_found(check: Any, expression: str) -> None:
    """The rules on rates can fail."""
    assert check(expression)
