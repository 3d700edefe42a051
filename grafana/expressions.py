"""What the committed dashboards ask Prometheus: every expression, with the values that Grafana would fill in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]
FOLDER = Path(__file__).parent / "dashboards"
BUILT_IN = {"__rate_interval": "20s", "__interval": "5s", "__range": "1800s"}
"""What Grafana puts in for half an hour of samples that are 5 s apart."""

_VARIABLE = re.compile(r"\$(?:\{([a-z_]+)(?::[a-z]+)?\}|([a-z_]+))")  # $1 in label_replace is not one
_VALUES = re.compile(r"label_values\((?:(.+),\s*)?(\w+)\)")


@dataclass(frozen=True)
class Asked:
    """One expression, where it stands and how it is asked."""

    dashboard: str
    place: str
    expression: str
    instant: bool
    legend: str = ""
    points: int | None = None
    """How many points a line has at most; None: as many as the panel is wide."""
    kind: str = "panel"
    """panel, annotation, or variable"""
    row: str = ""
    """The closed row it stands in, which has to be opened first."""
    on: bool = True
    """Whether it is asked without a click; some marks are not."""


def load() -> dict[str, Json]:
    """Return every committed dashboard by the name of its file."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}


def panels(dashboard: Json) -> list[Json]:
    """Return every panel, rows and what is folded into them included."""
    return [inner for panel in dashboard["panels"] for inner in (panel, *panel.get("panels", []))]


def asked(dashboard: Json) -> Iterator[Asked]:
    """Yield all that a dashboard asks: panels, annotations and variables."""
    name = dashboard["uid"].removeprefix("tachograph-")
    inside = {inner["id"]: outer["title"] for outer in dashboard["panels"] for inner in outer.get("panels", [])}
    for panel in panels(dashboard):
        for target in panel.get("targets", []):
            points, row = panel.get("maxDataPoints"), inside.get(panel["id"], "")
            asked_once = target["instant"]
            yield Asked(name, panel["title"], target["expr"], asked_once, target["legendFormat"], points, row=row)
    for mark in dashboard["annotations"]["list"]:
        yield Asked(name, mark["name"], mark["expr"], False, kind="annotation", on=mark["enable"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query" and (found := _VALUES.fullmatch(variable["query"]["query"])):
            yield Asked(name, variable["name"], found[1] or "up", True, found[2], kind="variable")


def used(text: str) -> set[str]:
    """Return the variables that a text uses, Grafana's own included."""
    return {found[1] or found[2] for found in _VARIABLE.finditer(text)}


def defaults(dashboard: Json, run: str) -> dict[str, str]:
    """Return the value of each variable as a person finds it: All if there is such a choice, otherwise this run."""
    values = dict(BUILT_IN)
    for variable in dashboard["templating"]["list"]:
        if variable.get("includeAll"):
            values[variable["name"]] = variable["allValue"]
        elif variable["type"] != "datasource":
            values[variable["name"]] = run if variable["type"] == "query" else variable["query"]
    return values


def filled(expression: str, values: Mapping[str, str]) -> str:
    """Return the expression with values for its variables; raise KeyError for one that has none."""
    return _VARIABLE.sub(lambda found: values[found[1] or found[2]], expression)
