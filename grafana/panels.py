"""The forms of Grafana's Classic JSON: queries, panels, overrides, variables, and their places on the grid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tachograph.catalog import index as c

Json = dict[str, Any]
GRID = 24
GREEN, RED, ORANGE, BLUE, PURPLE, GREY = "green", "red", "orange", "blue", "purple", "#8e8e8e"
UNITS = {
    "": "none",
    "seconds": "s",
    "bytes": "bytes",
    "celsius": "celsius",
    "watts": "watt",
    "hertz": "hertz",
    "ratio": "percentunit",
}
"""The catalog's base unit -> Grafana's."""

STATES = dict(zip(c.STATES, (GREEN, ORANGE, RED, RED, BLUE), strict=True))
SEVERITIES = {"critical": RED, "warning": ORANGE, "info": BLUE}
PHASES = dict(
    zip(c.PHASES, (GREY, ORANGE, "#ffcb7d", BLUE, PURPLE, GREEN, RED, "yellow", "#5794f2", "#5c5c5c"), strict=True)
)

CAUSES = dict(
    zip(
        ("goodput", *c.LOST_CAUSES),
        (GREEN, GREY, ORANGE, RED, "yellow", "#5794f2", PURPLE, "#ffcb7d", "dark-red"),
        strict=True,
    )
)
"""What becomes of a rank's time: new work, or lost to a cause."""

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def query(expression: str, legend: str = "__auto", *, instant: bool = False, table: bool = False) -> Json:
    """Return one Prometheus target; a table is asked once, for now."""
    once = instant or table
    form = "table" if table else "time_series"
    return {"expr": expression, "legendFormat": legend, "format": form, "instant": once, "range": not once}


def one_by_one(asked: Sequence[str], label: str, chosen: str) -> list[Json]:
    """Return a table's queries: the first tells which rows there are, the others are asked for the `chosen` alone."""
    return [query(f"({one}) and on ({label}) {chosen}" if i else one, table=True) for i, one in enumerate(asked)]


def at_end(expression: str) -> str:
    """Return the expression as of the right edge of the range: `@ end()` behind each selector with braces."""
    return re.sub(r"\}(?:\[[^]]*\])?", lambda found: f"{found[0]} @ end()", expression)


def spread(expression: str, worst: str = "", legend: str = "") -> list[Json]:
    """Return max, median and min over all series, and the worst few: at most 6 lines for 8 ranks or for 16,384.

    The few are chosen once, at the right edge; a plain topk would choose anew at each step and add lines.
    """
    bands = {"max": f"max({expression})", "median": f"quantile(0.5, {expression})", "min": f"min({expression})"}
    few = [query(f"{expression} and {worst}(3, {at_end(expression)})", legend)] if worst else []
    return [query(band, name) for name, band in bands.items()] + few


def panel(kind: str, title: str, text: str, unit: str, queries: list[Json], *, absent: str, **more: object) -> Json:
    """Return a panel without place and id; `absent` is what it says where there is no sample at all.

    `more`: w, h, options, overrides, transformations, and any field default. No limit is drawn in any panel: limits
    stand in the rules, and what they found comes from `ALERTS`.
    """
    targets = [{"refId": chr(ord("A") + i), "datasource": _SOURCE, **target} for i, target in enumerate(queries)]
    return {
        "type": kind,
        "title": title,
        "description": text,
        "datasource": _SOURCE,
        "gridPos": {"w": more.pop("w", 6), "h": more.pop("h", 8)},
        "options": more.pop("options", {}),
        "transformations": more.pop("transformations", []),
        "targets": targets,
        "fieldConfig": {
            "overrides": more.pop("overrides", []),
            "defaults": {
                "unit": unit,
                "noValue": absent,
                "thresholds": {"mode": "absolute", "steps": [{"color": "text", "value": None}]},
                **more,
            },
        },
    }


def lines(title: str, unit: str, text: str, queries: list[Json], absent: str, **more: object) -> Json:
    """Return a time series panel: a gap stays a gap, zero is drawn as zero; `stack=True` piles the series.

    `soft_max`: how far the axis reaches where all values are lower, so that a flat zero does not stand on "100".
    """
    stacked = more.pop("stack", False)
    custom: Json = {
        "lineWidth": 1,
        "fillOpacity": 70 if stacked else 0,
        "showPoints": "never",
        "spanNulls": 15_000,  # milliseconds: two scrapes may be missed before a line breaks
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
    }
    if reach := more.pop("soft_max", None):
        custom["axisSoftMax"] = reach
    several = len(queries) > 3 or any("{{" in one["legendFormat"] for one in queries)
    calcs = [] if several else ["lastNotNull"]  # with values, a long legend would fill half of a narrow panel
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": calcs},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    colour = {"mode": "palette-classic"}
    return panel(
        "timeseries", title, text, unit, queries, absent=absent, custom=custom, options=options, color=colour, **more
    )


def stat(title: str, unit: str, text: str, queries: list[Json], absent: str, **more: object) -> Json:
    """Return one big number; `show`: value, name (the legend) or value_and_name."""
    show = more.pop("show", "value")
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "graphMode": "none",
        "colorMode": "value",
        "textMode": show,
        "justifyMode": "center",
        "orientation": "vertical",
    }
    if show == "value_and_name":  # left to itself, Grafana makes the names too small to read in a low panel
        options["text"] = {"titleSize": 12, "valueSize": 24}
    more = {"w": 5, "h": 3, "color": {"mode": "thresholds"}, **more}
    return panel("stat", title, text, unit, queries, absent=absent, options=options, **more)


def bars(title: str, unit: str, text: str, queries: list[Json], absent: str, **more: object) -> Json:
    """Return one horizontal bar for each series, in the order in which the queries return them.

    Of one colour: the longest is not bad because it is the longest.
    """
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "horizontal",
        "displayMode": "basic",
        "valueMode": "text",
        "namePlacement": "left",
        "showUnfilled": True,
        "sizing": "auto",
        "minVizWidth": 8,
        "minVizHeight": 16,
        "maxVizHeight": 36,
        "text": {"titleSize": 13, "valueSize": 13},
    }
    more = {"color": {"mode": "fixed", "fixedColor": BLUE}, "min": 0, **more}
    return panel("bargauge", title, text, unit, queries, absent=absent, options=options, **more)


def timeline(title: str, unit: str, text: str, queries: list[Json], absent: str, **more: object) -> Json:
    """Return one row for each series, coloured by its state over time; `mappings` give states words and colours."""
    custom = {"lineWidth": 0, "fillOpacity": 80, "spanNulls": 15_000}
    options = {
        "mergeValues": more.pop("merge", True),
        "showValue": more.pop("show", "auto"),
        "alignValue": "left",
        "rowHeight": 0.85,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    more = {"color": {"mode": "thresholds"}, **more}
    return panel("state-timeline", title, text, unit, queries, absent=absent, custom=custom, options=options, **more)


def heat(title: str, unit: str, text: str, queries: list[Json], absent: str, **more: object) -> Json:
    """Return one row for each series, from pale to red as its value rises: who stands out, and since when."""
    more = {"color": {"mode": "continuous-YlRd"}, "merge": False, "show": "never", "min": 0, **more}
    made = timeline(title, unit, text, queries, absent, **more)
    return made | {"maxDataPoints": 150}


def table(
    title: str,
    text: str,
    queries: list[Json],
    absent: str,
    columns: dict[str, str],
    *,
    overrides: list[Json],
    **more: object,
) -> Json:
    """Return a table with these fields, in this order, under these names.

    Several queries join on the field `join`; the first one's value orders the rows, highest first.
    """
    shaping: list[Json] = []
    if join := more.pop("join", None):
        shaping = [
            {"id": "joinByField", "options": {"byField": join, "mode": "outer"}},
            {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": "Value #A", "desc": True}]}},
        ]
        if join == "rank":  # a label is text, and 10 would stand before 9 when a person sorts
            number = {"conversions": [{"targetField": join, "destinationType": "number"}]}
            shaping.insert(1, {"id": "convertFieldType", "options": number})
    order = {name: i for i, name in enumerate(columns)}
    keep = {"includeByName": dict.fromkeys(columns, True), "indexByName": order, "renameByName": columns}
    shaping.append({"id": "organize", "options": {"excludeByName": {}, **keep}})
    options = {"showHeader": True, "cellHeight": "sm", "sortBy": more.pop("sort", [])}
    # The panel's own noValue speaks for an empty table; an empty cell is a dash.
    cells = {"matcher": {"id": "byRegexp", "options": ".*"}, "properties": [{"id": "noValue", "value": "–"}]}
    more = {"color": {"mode": "thresholds"}, "custom": {"align": "left"}, **more, "overrides": [cells, *overrides]}
    return panel("table", title, text, "none", queries, absent=absent, transformations=shaping, options=options, **more)


def override(name: str, **properties: object) -> Json:
    """Return what differs for the series or column of that name; a double underscore stands for a dot."""
    rows = [{"id": key.replace("__", "."), "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": rows}


def coloured(colours: dict[str, str]) -> list[Json]:
    """Return overrides that give each named series its own colour in every panel."""
    return [override(name, color={"mode": "fixed", "fixedColor": colour}) for name, colour in colours.items()]


def words(column: str, colours: dict[str, str], **more: object) -> Json:
    """Return the override that colours the words of a column."""
    options = {word: {"color": colour, "index": i} for i, (word, colour) in enumerate(colours.items())}
    mappings = [{"type": "value", "options": options}]
    return override(column, mappings=mappings, custom__cellOptions={"type": "color-text"}, **more)


def bar_cells(column: str, **more: object) -> Json:
    """Return the override that draws the numbers of a column as bars, the longest for the column's highest."""
    cell = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
    colour = {"mode": "fixed", "fixedColor": BLUE}
    return override(column, custom__cellOptions=cell, color=colour, min=0, fieldMinMax=True, **more)


def marked(column: str, colour: str = RED, **more: object) -> Json:
    """Return the override that colours whatever stands in a column."""
    mappings = [{"type": "regex", "options": {"pattern": ".+", "result": {"color": colour, "index": 0}}}]
    return override(column, mappings=mappings, custom__cellOptions={"type": "color-text"}, **more)


def row(title: str) -> Json:
    """Return the heading of a section."""
    return {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"w": GRID, "h": 1}}


def placed(panels: list[Json]) -> list[Json]:
    """Return the panels with ids and places: each goes to the highest spot that is free, leftmost first."""
    filled = [0] * GRID
    for number, one in enumerate(panels, start=1):
        place = one["gridPos"]
        y, x = min((max(filled[x : x + place["w"]]), x) for x in range(GRID - place["w"] + 1))
        place.update(x=x, y=y)
        filled[x : x + place["w"]] = [y + place["h"]] * place["w"]
        one["id"] = number
    return panels


def variable(name: str, label: str, values: str, **more: object) -> Json:
    """Return a query variable that follows the time range."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": _SOURCE,
        "query": {"qryType": 1, "query": values, "refId": name},
        "definition": values,
        "refresh": 2,
        "sort": 3,
        "current": {},
        "multi": False,
        "includeAll": False,
        **more,
    }


def annotation(name: str, colour: str, expression: str, title: str, text: str = "", *, on: bool) -> Json:
    """Return a toggle that marks the times at which an expression has samples."""
    return {
        "name": name,
        "datasource": _SOURCE,
        "enable": on,
        "iconColor": colour,
        "expr": expression,
        "step": "10s",
        "titleFormat": title,
        "textFormat": text,
    }


BASELINE = override("baseline", color={"mode": "fixed", "fixedColor": GREY}, custom__lineStyle={"fill": "dash"})
SPIKE = override("spike", color={"mode": "fixed", "fixedColor": RED}, custom__drawStyle="points", custom__pointSize=7)
BAND = [
    override("max", color={"mode": "fixed", "fixedColor": GREY}, custom__fillBelowTo="min", custom__lineWidth=0),
    override("median", color={"mode": "fixed", "fixedColor": BLUE}, custom__lineWidth=2),
    override("min", color={"mode": "fixed", "fixedColor": GREY}, custom__lineWidth=0),
]
"""How the lines of `spread` look: a grey band from min to max, the median drawn through it."""
