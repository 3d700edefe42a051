"""What all dashboards share around their panels: identity, variables, what they can mark, links from one to another."""

from __future__ import annotations

import json
import re
from urllib.parse import quote, unquote

from panels import BLUE, GREEN, PURPLE, RED, Json, annotation, placed, variable
from series import FIRING, RUNS, of_cluster, of_run
from tachograph.catalog import index as c

TITLES = {
    "fleet": "Tachograph / Fleet",
    "run": "Tachograph / Run",
    "ranks": "Tachograph / Ranks",
    "node": "Tachograph / Node and GPU",
    "storage": "Tachograph / Data and checkpoint",
    "monitoring": "Tachograph / Monitoring health",
    "incident": "Tachograph / Incident",
}
"""Every dashboard: the end of its uid and the name of its file -> its title."""

RUNBOOK = "https://github.com/tachograph/tachograph/blob/main/runbooks/${__data.fields.Alert}.md"
RUNBOOK_LINK = {"title": "Runbook", "url": RUNBOOK, "targetBlank": True}
BLACK_BOX = {
    "title": "Who holds it up, by its ranks' boxes",
    "url": "http://${__data.fields.Node}:10024/blackbox/${run:percentencode}",
    "targetBlank": True,
}
"""The page of the node's exporter, at exporter_url of prometheus/parameters.yml."""

MANY = {"multi": True, "includeAll": True, "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}}
ALL = {"includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}

SOURCE = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "current": {}}
CLUSTER = variable("cluster", "Cluster", f"label_values({RUNS}, cluster)", **ALL)
FIND = {
    "type": "textbox",
    "name": "find",
    "label": "Runs like",
    "description": "A regular expression: only runs whose name contains it are listed.",
    "query": "",
    "current": {"text": "", "value": ""},
}
"""Narrows a long list of runs: one of 100,000 is found by typing, not by scrolling."""
RUN = variable("run", "Run", f"label_values({of_cluster(RUNS, run='.*$find.*')}, run)")
NODE = variable("instance", "Node", f"label_values({of_run(c.RANK_INFO)}, instance)", **MANY)
RANK = variable("rank", "Rank", f"label_values({of_run(c.RANK_INFO, instance='$instance')}, rank)", **MANY)
OF_A_RUN = (FIND, RUN, NODE, RANK)


def _elsewhere(name: str, title: str, kind: str) -> Json:
    """Return the variable of a data source that only links lead to: hidden, and empty where there is none."""
    return {"type": "datasource", "name": name, "label": title, "query": kind, "current": {}, "hide": 2}


LOGS, TRACES = _elsewhere("logs", "Loki", "loki"), _elsewhere("traces", "Tempo", "tempo")


def marks(*, alerts: bool = True) -> list[Json]:
    """Return what a dashboard of one run can mark on every time axis; phases and checkpoints only when asked for."""
    attempts = f"group by (attempt) ({of_run('tachograph_run_restarts')})"
    before = f"group by (attempt) (last_over_time({of_run('tachograph_run_restarts')}[10m] offset 1m))"
    alerting = f"count by (alertname, severity) ({FIRING})"
    saved = f"max(changes({of_run('run:checkpoint_step:max')}[30s])) > 0"
    apart = f"group by (phase) ({of_run(c.RANK_PHASE, phase='|'.join(c.PAUSES))})"
    return [
        annotation("Alerts", RED, alerting, "{{alertname}}", "{{severity}}", on=alerts),
        annotation("Restarts", BLUE, f"{attempts} unless on (attempt) {before}", "attempt {{attempt}} began", on=True),
        annotation("Checkpoints", GREEN, saved, "checkpoint saved", on=False),
        annotation("Phases", PURPLE, apart, "{{phase}}", "some ranks are in {{phase}}", on=False),
    ]


def link(title: str, to: str, **values: str) -> Json:
    """Return a data link to another dashboard; it carries time, data source, cluster, and `values` as variables.

    A value is a field of the row (`field("Node")`), a label of the series (`label("rank")`), or `SAME`. Grafana itself
    would leave `&`, `#` and `+` of a run's name as they are.
    """
    encoded = {name: value.replace("}", ":percentencode}") for name, value in values.items()}
    kept = ["${datasource:queryparam}", "${cluster:queryparam}"]
    kept += [f"${{{name}:queryparam}}" if value == SAME else f"var-{name}={value}" for name, value in encoded.items()]
    return {"title": title, "url": f"/d/tachograph-{to}?{'&'.join(kept)}&${{__url_time_range}}"}


def explore(title: str, source: Json, **asked: str) -> Json:
    """Return a data link to Explore, which asks that source (LOGS, TRACES) over the time range that is shown."""
    uid = f"${{{source['name']}}}"
    query = {"refId": "A", "datasource": {"type": source["query"], "uid": uid}, **asked}
    pane = {"datasource": uid, "queries": [query], "range": {"from": "${__from}", "to": "${__to}"}}
    # All but the variables, which Grafana fills in before the link is followed.
    panes = re.sub(
        r"%24%7B.*?%7D", lambda found: unquote(found[0]), quote(json.dumps({"a": pane}, separators=(",", ":")))
    )
    return {"title": title, "url": f"/explore?schemaVersion=1&panes={panes}", "targetBlank": True}


SAME = "same"
"""The value of a link that hands a variable on as it is."""


def field(column: str) -> str:
    """Return what stands in that column of the row a person clicks; name it as it is shown."""
    return f'${{__data.fields["{column}"]}}' if " " in column else f"${{__data.fields.{column}}}"


def label(name: str) -> str:
    """Return what that label says of the series a person clicks."""
    return f"${{__field.labels.{name}}}"


POINTS = 120
"""Points of a line, 15 s apart in half an hour: no range and no screen makes a query over all GPUs expensive."""
DRAWN = ("timeseries", "state-timeline")


def _with_points(panels: list[Json]) -> list[Json]:
    """Return the panels, those in closed rows included, with the most points that a line of theirs has."""
    inside = [one | {"panels": _with_points(one["panels"])} if "panels" in one else one for one in panels]
    return [one | {"maxDataPoints": POINTS} if one["type"] in DRAWN else one for one in inside]


def dashboard(
    name: str,
    description: str,
    panels: list[Json],
    *,
    variables: tuple[Json, ...] = OF_A_RUN,
    annotations: list[Json] | None = None,
    since: str = "now-30m",
    refresh: str = "10s",
) -> Json:
    """Return the whole dashboard of that name (see TITLES); data source and cluster come before its `variables`."""
    linked = [one for one in (LOGS, TRACES) if f"${{{one['name']}}}" in str(panels)]
    return {
        "uid": f"tachograph-{name}",
        "title": TITLES[name],
        "description": description,
        "tags": ["tachograph"],
        "schemaVersion": 41,
        "editable": False,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": since, "to": "now"},
        "timepicker": {"refresh_intervals": ["5s", "10s", "30s", "1m", "5m", "15m"]},
        "refresh": refresh,
        "links": [{"type": "dashboards", "title": "Tachograph", "tags": ["tachograph"], "asDropdown": True, "url": "",
                   "includeVars": True, "keepTime": True, "targetBlank": False, "icon": "", "tooltip": ""}],
        "templating": {"list": [SOURCE, CLUSTER, *variables, *linked]},
        "annotations": {"list": marks() if annotations is None else annotations},
        "panels": placed(_with_points(panels)),
    }  # fmt: skip
