"""What scales, units, orders and titles say: nothing looks sick that is not, and nothing has two meanings."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tachograph.findings.limits import LIMITS

ROOT = Path(__file__).resolve().parents[2]

Json = dict[str, Any]
PIXELS = {"s": 76, "locale": 60, "dateTimeAsIso": 145, "dateTimeAsIsoNoDateIfToday": 145}
"""Width of a column for the widest text of that unit with one digit behind the point, as "270.6 ms", or a day."""


def properties(panel: Json) -> Iterator[dict[str, Any]]:
    """Yield what each override of a panel sets."""
    for override in panel["fieldConfig"]["overrides"]:
        yield {row["id"]: row["value"] for row in override["properties"]}


def test_a_bar_is_full_at_a_fixed_value(panels: list[Json]) -> None:
    """Scaled to the highest of them, 2.6 ms of lag would fill a bar or be drawn in full red."""
    for panel in panels:
        defaults = panel["fieldConfig"]["defaults"]
        if "continuous" in defaults.get("color", {}).get("mode", ""):
            assert defaults["max"] > defaults["min"] >= 0, panel["title"]
        for one in properties(panel):
            if one.get("custom.cellOptions", {}).get("type") == "gauge":
                assert one["max"] > one["min"] == 0, panel["title"]
                assert "fieldMinMax" not in one, panel["title"]


def test_full_bars_are_the_alerts_limits(dashboards: dict[str, Json]) -> None:
    """Lag fills a bar where StragglerRank pages, network errors where NicErrorsRising fires."""
    cells = {
        override["matcher"]["options"]: {row["id"]: row["value"] for row in override["properties"]}
        for panel in dashboards["run"]["panels"]
        if panel["type"] == "table"
        for override in panel["fieldConfig"]["overrides"]
    }
    assert cells["Lag per step"]["max"] == LIMITS["straggler_ratio"].default
    limit = f"node:nic_errors:increase1h) > {cells['Net errors, 1 h']['max']}\n"
    assert limit in (ROOT / "prometheus/src/network.yml").read_text(encoding="utf-8")


def test_an_axis_of_nothing_but_zero_is_short(panels: list[Json]) -> None:
    """Grafana draws a flat zero on an axis up to 100: 10,000 %, or 100 s."""
    for panel in panels:
        defaults = panel["fieldConfig"]["defaults"]
        if panel["type"] == "timeseries" and defaults["unit"] in ("percentunit", "s"):
            assert min(defaults.get("max", 9), defaults["custom"].get("axisSoftMax", 9)) <= 1, panel["title"]


def test_numbers_fit_into_their_columns(panels: list[Json]) -> None:
    """A column too narrow by one letter shows 270.6 ms as 270.6 m."""
    for panel in panels:
        for one in properties(panel):
            wide = one.get("custom.width", one.get("custom.minWidth"))
            if wide and one.get("unit") in PIXELS and one.get("decimals") != 0:
                assert wide >= PIXELS[one["unit"]], f"{panel['title']}: {one}"


def test_rows_of_ranks_and_nodes_are_in_numeric_order(panels: list[Json]) -> None:
    """As text, rank 10 would stand before rank 2; tests/grafana/test_answers.py has the order itself."""
    for panel in panels:
        if panel["type"] == "state-timeline":
            for target in panel["targets"]:
                if target["legendFormat"] in ("rank {{rank}}", "{{instance}}"):
                    assert target["expr"].startswith("label_replace(label_replace(label_replace("), panel["title"]


def test_lists_of_ranks_and_nodes_are_in_numeric_order(dashboard: Json) -> None:
    """In the menus at the top, 10 comes after 9."""
    for variable in dashboard["templating"]["list"]:
        assert variable["type"] != "query" or variable["sort"] == 3, variable["name"]


def test_every_series_has_a_name(panels: list[Json]) -> None:
    """Without one Grafana calls it Value, or shows all of its labels; a table and a lone number need none."""
    for panel in panels:
        alone = panel["type"] == "table" or panel.get("options", {}).get("textMode") == "value"
        for target in panel["targets"]:
            assert alone or target["legendFormat"] not in ("", "__auto"), panel["title"]


def test_a_title_means_one_thing(dashboards: dict[str, Json], expressions: ModuleType) -> None:
    """On whatever dashboard, a title stands for one unit, and for a figure made of the same series."""
    found = defaultdict(list)
    for name, dashboard in dashboards.items():
        for panel in expressions.panels(dashboard):
            if panel["type"] not in ("row", "table"):
                asked = " ".join(target["expr"] for target in panel["targets"])
                series = set(re.findall(r"([a-z_][\w:]*)\{", asked)) - {"ALERTS"}
                kind = panel["fieldConfig"]["defaults"]["unit"], re.search(r"\$run\b", asked) is None
                found[panel["title"]].append((name, kind, series))
    for title, uses in found.items():
        assert len({kind for _, kind, _ in uses}) == 1 or title in ALIKE, f"{title}: {uses}"
        common = set.intersection(*(series for *_, series in uses))
        assert common or len(uses) == 1 or title in ALIKE, f"{title}: {uses}"


ALIKE = {
    "Loss": "of a run; Run draws it with the band over nodes, Incident the median alone",
    "GPUs lost, by cause": "of all runs, or of the one that is looked at",
}
"""Titles of panels that differ and mean one thing, and why."""


def test_lost_gpus_are_those_of_the_charts(dashboards: dict[str, Json]) -> None:
    """A table said 0 GPUs lost, collectives left out, and the chart below it 7, collectives included."""
    for name, dashboard in dashboards.items():
        text = str(dashboard).replace("GPUs lost, by cause", "")
        assert "GPUs lost" not in text, name


def test_a_table_without_alerts_says_whose_it_is(panels: list[Json]) -> None:
    """During a hang there stood "Nothing fires.", on a dashboard that looked at something else."""
    for panel in panels:
        if panel["type"] == "table" and "ALERTS_FOR_STATE" in panel["targets"][0]["expr"]:
            words = panel["fieldConfig"]["defaults"]["noValue"]
            assert re.search(r"\b(run|nodes|monitoring|window)\b", words), panel["title"]


def test_an_incident_has_one_time_axis(dashboards: dict[str, Json]) -> None:
    """One moment stands above the other: panels over time are as wide as the page, their plots begin at one place."""
    timed = [one for one in dashboards["incident"]["panels"] if one["type"] in ("timeseries", "state-timeline")]
    assert len(timed) > 10
    for panel in timed:
        assert panel["gridPos"]["w"] == 24, panel["title"]
    assert {panel["fieldConfig"]["defaults"]["custom"].get("axisWidth") for panel in timed} == {240}


def test_no_figure_comes_from_coarse_buckets(dashboards: dict[str, Json], expressions: ModuleType) -> None:
    """Buckets of the step time are 41 % apart: of steps of 1.02 s they said that the p90 is 1.37."""
    for dashboard in dashboards.values():
        for one in expressions.asked(dashboard):
            assert "histogram_quantile" not in one.expression, one.place
