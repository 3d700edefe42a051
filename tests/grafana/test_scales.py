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


SCREEN, GAPS, LETTER = 1400, 24, 7.2
"""Pixels: of a laptop's window, of what is left and right of a row of panels or of a panel's content, of a letter."""
UNSET = 150
"""What Grafana gives at least to a column without a width."""


def inner_width(panel: Json) -> float:
    """Return the pixels that a panel has for its content on a laptop."""
    return (SCREEN - GAPS) * panel["gridPos"]["w"] / 24 - GAPS


def test_columns_fit_beside_each_other_on_a_laptop(panels: list[Json]) -> None:
    """The last column of the ranks, how far one is behind, was cut at 1,400 pixels."""
    for panel in panels:
        if panel["type"] != "table":
            continue
        (columns,) = (one["options"]["renameByName"] for one in panel["transformations"] if one["id"] == "organize")
        wide = dict.fromkeys(columns.values(), UNSET)
        for override in panel["fieldConfig"]["overrides"]:
            for row in override["properties"]:
                if row["id"] in ("custom.width", "custom.minWidth"):
                    assert override["matcher"]["options"] in wide, f"{panel['title']}: no such column: {override}"
                    wide[override["matcher"]["options"]] = row["value"]
        assert sum(wide.values()) <= inner_width(panel), f"{panel['title']}: {wide}"


def test_headings_fit_into_their_columns(panels: list[Json]) -> None:
    """Of `Thermal headroom` the last letter was missing."""
    for panel in panels:
        if panel["type"] == "table":
            for override in panel["fieldConfig"]["overrides"]:
                for row in override["properties"]:
                    if row["id"] == "custom.width":
                        name = override["matcher"]["options"]
                        assert row["value"] >= LETTER * len(name) + 12, f"{panel['title']}: {name}"


def test_names_of_numbers_stay_on_one_line(panels: list[Json]) -> None:
    """`since checkpoint` took two lines in a panel that has room for one."""
    for panel in panels:
        if panel.get("options", {}).get("textMode") != "value_and_name":
            continue
        names = [one["legendFormat"] for one in panel["targets"] if "{{" not in one["legendFormat"]]
        names += [name for one in panel["targets"] for name in re.findall(r'"line", "([^"]+)"', one["expr"])]
        assert panel["options"]["wideLayout"] is False, panel["title"]  # else some names stand beside their numbers
        for name in names:
            assert LETTER * len(name) <= inner_width(panel) / len(names), f"{panel['title']}: {name}"


def test_one_row_is_no_slab(panels: list[Json]) -> None:
    """Grafana stretches the rows of a timeline over the panel: a low one, or blank rows below the first few."""
    for panel in panels:
        if panel["type"] == "state-timeline" and panel["gridPos"]["h"] > 4:
            blank = panel["targets"][-1]["expr"]
            assert blank.count("vector(NaN)") >= 3, panel["title"]
            (mapping,) = (one for one in panel["fieldConfig"]["defaults"]["mappings"] if one["type"] == "special")
            assert mapping["options"] == {"match": "nan", "result": {"text": "", "color": "transparent", "index": 99}}


def test_a_scale_of_colours_begins_at_the_background_and_says_where_it_ends(panels: list[Json]) -> None:
    """A healthy rank was a bright yellow bar, and nothing said what the colours stand for."""
    for panel in panels:
        mode = panel["fieldConfig"]["defaults"].get("color", {}).get("mode", "")
        if "continuous" in mode:
            assert mode == "continuous-reds", panel["title"]
            assert re.search(r"full red at \d", panel["title"]), panel["title"]


def test_words_of_a_timeline_have_a_legend(panels: list[Json]) -> None:
    """A cell of a few pixels has no room for its word."""
    for panel in panels:
        if panel["type"] == "state-timeline":
            mapped = any(one["type"] == "value" for one in panel["fieldConfig"]["defaults"].get("mappings", ()))
            assert panel["options"]["legend"]["showLegend"] == mapped, panel["title"]


def test_red_is_no_part_of_a_healthy_step(panels: list[Json]) -> None:
    """Waits for other ranks are a quarter of many a good step."""
    healthy = {"work", "data", "copy", "forward", "backward", "optimizer", "collective", "checkpoint", "eval", "init"}
    for panel in panels:
        for override in panel["fieldConfig"]["overrides"]:
            colours = [one["value"].get("fixedColor") for one in override["properties"] if one["id"] == "color"]
            assert override["matcher"]["options"] not in healthy or "red" not in colours, panel["title"]


def test_what_a_default_job_leaves_empty_is_folded(dashboards: dict[str, Json]) -> None:
    """Five of the first eleven panels of Ranks had nothing to show."""
    for name, dashboard in dashboards.items():
        for panel in dashboard["panels"]:
            absent = panel.get("fieldConfig", {}).get("defaults", {}).get("noValue", "")
            assert not re.search(r"--rank\.series|--gpu\.detail|mesh", absent), f"{name}: {panel['title']}"


def test_few_gpus_are_not_rounded_away(dashboards: dict[str, Json]) -> None:
    """Of two GPUs, 1.4 were productive, and the panel said 1."""
    panels = {panel["title"]: panel for panel in dashboards["fleet"]["panels"]}
    for title in ("GPUs productive", "GPU-hours delivered"):
        assert panels[title]["fieldConfig"]["defaults"]["decimals"] == 1
