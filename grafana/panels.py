"""The forms of Grafana's Classic JSON: queries, panels, overrides, variables, and their places on the grid."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tachograph.catalog import index as c

Json = dict[str, Any]
GRID = 24
GREEN, RED, ORANGE, BLUE, PURPLE, GREY = "green", "red", "orange", "blue", "purple", "#8e8e8e"
TEAL = "#45a29e"
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
_COLOURS = (
    GREY, ORANGE, "#ffcb7d", BLUE, PURPLE, GREEN, TEAL, "#e0b400", "#5794f2", "#5c5c5c",
    "#ff85c0", "#a16a3b", "#c0e25a",
)  # fmt: skip
PHASES = dict(zip(c.PHASES, _COLOURS, strict=True))

CAUSES = dict(
    zip(
        ("work", *c.LOST_CAUSES),
        (GREEN, GREY, ORANGE, TEAL, "#e0b400", "#5794f2", PURPLE, "#ffcb7d", RED),
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


NO_BREAK = "\N{NO-BREAK SPACE}"
LINE = "{{line}}"
"""The legend of a query that `named` made."""


def named(lines: Mapping[str, str], *, instant: bool = False) -> Json:
    """Return one query for several lines or numbers, by their names: one request asks for all of them."""
    parts = (f'label_replace({expression}, "line", "{name}", "", "")' for name, expression in lines.items())
    return query(" or ".join(parts), LINE, instant=instant)


def in_order(expression: str, label: str) -> str:
    """Return the series in the order of the numbers in a label: as text, which Prometheus sorts by, 10 precedes 2.

    It is the last number of a host's own name that counts; without one, and of equals, the text does.
    """
    host = "([^.:]*?)([0-9]+)[^0-9.:]*([.:].*)?"
    split = f'label_replace({expression}, "a", "$1", "{label}", "{host}")'  # `a` and `b`: before all other labels
    long = f'label_replace({split}, "b", "00000$2", "{label}", "{host}")'
    return f'label_replace({long}, "b", "$1", "b", "0*([0-9]{{5}})")'


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
    few = [query(f"{expression} and {worst}(3, {at_end(expression)})", legend)] if worst else []
    return [named(band(expression)), *few]


def band(expression: str) -> dict[str, str]:
    """Return max, median and min over all series, by the names that BAND draws."""
    return {"max": f"max({expression})", "median": f"quantile(0.5, {expression})", "min": f"min({expression})"}


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

    `soft_max`: how far the axis reaches where all values are lower; by itself a flat zero has an axis up to 100, which
    are 10,000 % or 100 s. `axis`: pixels left of the plot, where panels stand one above the other.
    """
    stacked = more.pop("stack", False)
    custom: Json = {
        "lineWidth": 1,
        "fillOpacity": 70 if stacked else 0,
        "showPoints": "never",
        "spanNulls": 15_000,  # milliseconds: two scrapes may be missed before a line breaks
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
    }
    if reach := more.pop("soft_max", None if "max" in more else REACH.get(unit)):
        custom["axisSoftMax"] = reach
    if wide := more.pop("axis", None):
        custom["axisWidth"] = wide
    several = len(queries) > 3 or any("{{" in one["legendFormat"].replace(LINE, "") for one in queries)
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
        "wideLayout": False,  # a name stands above its number, however wide the screen
    }
    if show == "value_and_name":  # left to itself, Grafana makes the names too small to read in a low panel
        options["text"] = {"titleSize": 12, "valueSize": more.pop("size", 24)}
    more = {"w": 5, "h": 3, "color": {"mode": "thresholds"}, **more}
    return panel("stat", title, text, unit, queries, absent=absent, options=options, **more)


REACH = {"percentunit": 0.1, "s": 0.1, "Bps": 1e3, "bytes": 1e3, "watt": 10, "locale": 4}
"""Unit -> how far an axis reaches at least, unless a panel says it."""


BLANK_ROWS = 3
"""Grafana stretches the rows of a timeline over the whole panel: a single one would be a slab."""
BLANK = {"type": "special", "options": {"match": "nan", "result": {"text": "", "color": "transparent", "index": 99}}}
"""The mapping that leaves their cells empty."""


def timeline(title: str, unit: str, text: str, queries: list[Json], absent: str, **more: object) -> Json:
    """Return one row for each series, coloured by its state over time; `mappings` give states words and colours.

    `shown`: what has samples while there are rows; then blank ones follow them.
    """
    mappings: Any = more.pop("mappings", [])
    has_words = bool(mappings)
    if shown := more.pop("shown", ""):
        blank = (f'label_replace(vector(NaN), "line", "{i * NO_BREAK}", "", "")' for i in range(1, BLANK_ROWS + 1))
        queries = [*queries, query(f"({' or '.join(blank)}) and on () group({shown})", LINE)]
        mappings = [*mappings, BLANK]
    custom: Json = {"lineWidth": 0, "fillOpacity": 80, "spanNulls": 15_000}
    if wide := more.pop("axis", None):
        custom["axisWidth"] = wide
    options = {
        "mergeValues": more.pop("merge", True),
        "showValue": more.pop("show", "auto"),
        "alignValue": "left",
        "rowHeight": 0.85,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": has_words},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    more = {"color": {"mode": "thresholds"}, "mappings": mappings, **more}
    return panel("state-timeline", title, text, unit, queries, absent=absent, custom=custom, options=options, **more)


def heat(title: str, unit: str, text: str, queries: list[Json], absent: str, *, full: float, **more: object) -> Json:
    """Return one row for each series, from the background to red as its value rises to `full`: who is worst.

    The title says what full red is, as no legend does.
    """
    colour = {"mode": "continuous-reds"}
    more = {"color": colour, "merge": False, "show": "never", "min": 0, "max": full, **more}
    return timeline(title, unit, text, queries, absent, **more)


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


def bar_cells(column: str, full: float, **more: object) -> Json:
    """Return the override that draws the numbers of a column as bars; `full` fills one, and so does all above."""
    cell = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
    colour = {"mode": "fixed", "fixedColor": BLUE}
    return override(column, custom__cellOptions=cell, color=colour, min=0, max=full, **more)


def marked(column: str, colour: str = RED, **more: object) -> Json:
    """Return the override that colours whatever stands in a column."""
    mappings = [{"type": "regex", "options": {"pattern": ".+", "result": {"color": colour, "index": 0}}}]
    return override(column, mappings=mappings, custom__cellOptions={"type": "color-text"}, **more)


def row(title: str, *closed: Json) -> Json:
    """Return the heading of a section; panels that are given stand in it and ask nothing until it is opened."""
    place = {"w": GRID, "h": 1}
    return {"type": "row", "title": title, "collapsed": bool(closed), "panels": list(closed), "gridPos": place}


def placed(panels: list[Json]) -> list[Json]:
    """Return the panels with ids and places: each goes to the highest spot that is free, leftmost first."""
    _place(panels, 0)
    everything = [one for outer in panels for one in (outer, *outer.get("panels", []))]
    for number, one in enumerate(everything, start=1):
        one["id"] = number
    return panels


def _place(panels: Sequence[Json], top: int) -> None:
    filled = [top] * GRID
    for one in panels:
        place = one["gridPos"]
        y, x = min((max(filled[x : x + place["w"]]), x) for x in range(GRID - place["w"] + 1))
        place.update(x=x, y=y)
        filled[x : x + place["w"]] = [y + place["h"]] * place["w"]
        _place(one.get("panels", []), y + 1)


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
