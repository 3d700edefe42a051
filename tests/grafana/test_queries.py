"""Every query of the dashboard: it parses, its names exist, and over a fleet of 64 ranks it answers, in few series."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tachograph import catalog as c
from tachograph.lab import binaries

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]
Fill = Callable[..., str]
SERIES = 50  # what a person can read and a browser can draw every 10 s
ROWS = 50

NEEDS_HISTORY = {"baseline"}
"""Legends of series that a run younger than ten minutes does not have."""
ONLY_IN_TROUBLE = ("collector_success", "rank:collectives_behind:max")
"""Names of metrics whose queries have an answer only while something is wrong that this fleet does not have."""


def expressions(dashboard: Json) -> Iterator[tuple[str, str]]:
    """Yield every PromQL expression with where it stands."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for variable in dashboard["templating"]["list"][1:]:
        if found := re.fullmatch(r"label_values\((.+), \w+\)", variable["query"]["query"]):
            yield variable["name"], found[1]


def selectors(node: object) -> Iterator[promql_parser.VectorSelector]:
    """Yield every vector selector below a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    for part in ("expr", "lhs", "rhs", "param", "vs", "vector_selector", "args"):
        child = getattr(node, part, None)
        for one in child if isinstance(child, list) else [child]:
            if one is not None and not isinstance(one, (str, int, float)):
                yield from selectors(one)


def test_every_metric_and_label_exists(dashboard: Json, rules: list[Json], fill: Fill) -> None:
    """A renamed metric breaks this test and not the screen of someone on call."""
    recorded = {rule["record"] for rule in rules if "record" in rule}
    families = {row.name: {*row.labels, "instance", "job"} for row in c.METRICS}
    histograms = [row for row in c.METRICS if row.kind == c.HISTOGRAM]
    families |= {f"{row.name}_{end}": {*row.labels, "le", "instance"} for row in histograms
                 for end in ("bucket", "sum", "count")}  # fmt: skip
    seen = 0
    for where, expression in expressions(dashboard):
        for selector in selectors(promql_parser.parse(fill(expression))):
            name, seen = selector.name, seen + 1
            if name in families:
                labels = {matcher.name for matcher in selector.matchers.matchers}
                assert labels <= families[name], f"{where}: {name} has no {labels - families[name]}"
            else:
                assert name in recorded | {"ALERTS", "ALERTS_FOR_STATE"}, f"{where}: {name} does not exist"
    assert seen > 50


def test_promtool_accepts_every_expression(dashboard: Json, fill: Fill, tmp_path: Path) -> None:
    """What the parser library lets pass, Prometheus 2.42 itself may not."""
    found = [fill(expression) for _, expression in expressions(dashboard)]
    group = {"name": "all", "rules": [{"record": f"query:{i}", "expr": text} for i, text in enumerate(found)]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [group]}), encoding="utf-8")
    promtool = binaries.ensure("bookworm")["promtool"]
    done = subprocess.run(
        [promtool, "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_counters_are_rated_or_counted_since_the_start(dashboard: Json, fill: Fill) -> None:
    """A bare counter on a panel is a line that only ever climbs, unless its title says so."""
    counted = {"Spikes and non-finite steps", "ECC errors"}
    for where, expression in expressions(dashboard):
        for name in re.findall(r"\w+_total\b(?!\{[^}]*\}\[)", fill(expression)):
            assert where in counted, f"{where} draws {name} without a rate"


@pytest.mark.e2e
def test_every_panel_answers_with_few_series(fleet: Any, panels: list[Json], fill: Fill) -> None:
    """No panel is empty over a healthy fleet's samples, and none draws more than 50 series for 64 ranks."""
    now = fleet.now()
    for panel in panels:
        total = 0
        for target in panel["targets"]:
            once = target["instant"]
            window = {"time": now} if once else {"start": now - 300, "end": now, "step": 15}
            result = fleet.ask("query" if once else "query_range", query=fill(target["expr"]), **window)["result"]
            sick = any(name in target["expr"].partition(" and on (rank)")[0] for name in ONLY_IN_TROUBLE)
            optional = sick or target["legendFormat"] in NEEDS_HISTORY
            assert result or optional, f"{panel['title']} is empty: {fill(target['expr'])}"
            assert len(result) <= ROWS, panel["title"]
            total += len(result) if not once else 0
        assert total < SERIES, f"{panel['title']} draws {total} series"


@pytest.mark.e2e
def test_top_names_the_state_and_the_culprit(fleet: Any, panels: list[Json], fill: Fill) -> None:
    """One dead rank of 64: the run is "rank dead", 63 report, and table and alert name rank 11 first."""
    by_title = {panel["title"]: panel for panel in panels}

    def answer(title: str, number: int = 0, **variables: str) -> list[Json]:
        expression = by_title[title]["targets"][number]["expr"]
        return list(fleet.ask("query", query=fill(expression, **variables), time=fleet.now())["result"])

    code = answer("Run")[0]["value"][1]
    words = by_title["Run"]["fieldConfig"]["defaults"]["mappings"][0]["options"]
    assert words[code]["text"] == "rank dead"
    (reporting,) = answer("Ranks reporting")
    assert (reporting["metric"]["up"], reporting["metric"]["world_size"]) == ("63", "64")
    firing = {(row["metric"]["alertname"], row["metric"].get("rank")) for row in answer("Firing now")}
    assert ("RankDead", "11") in firing
    table = next(panel["title"] for panel in panels if panel["title"].startswith("Ranks, "))
    rows = {row["metric"]["rank"] for row in answer(table)}
    assert {"11", "5"} <= rows
    assert len(rows) == 40
    states = {row["metric"]["rank"]: row["metric"]["state"] for row in answer(table, 1)}
    assert (states["11"], states["5"]) == ("dead", "running")


@pytest.mark.e2e
def test_choosing_one_rank_narrows_ranks_and_hardware_to_its_node(fleet: Any, panels: list[Json], fill: Fill) -> None:
    """The link in a page carries var-rank: the table shows that rank, hardware the GPUs of its node."""
    by_title = {panel["title"]: panel for panel in panels}
    table = next(panel for panel in panels if panel["title"].startswith("Ranks, "))
    rows = fleet.ask("query", query=fill(table["targets"][0]["expr"], rank="11"), time=fleet.now())["result"]
    assert [(row["metric"]["rank"], row["metric"]["instance"]) for row in rows] == [("11", "node-01")]
    read = by_title["GPUs read"]["targets"][1]["expr"]
    (gpus,) = fleet.ask("query", query=fill(read, rank="11"), time=fleet.now())["result"]
    assert gpus["value"][1] == "8"
