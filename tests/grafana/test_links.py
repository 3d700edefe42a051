"""From a page to the culprit: every link of a panel or an alert lands on a dashboard that takes what it carries."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

from tachograph.client.hello.identity import Identity
from tachograph.export.sinks.open_telemetry import resource

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]
GRAFANAS_OWN = {
    "__from",
    "__to",
    "__rate_interval",
    "__interval",
    "__range",
    "__data",
    "__field",
    "__url_time_range",
    "__value",
    "__all",
}


def variables(dashboard: Json) -> list[str]:
    """Return the names of the variables, in order."""
    return [variable["name"] for variable in dashboard["templating"]["list"]]


def urls(part: object) -> Iterator[str]:
    """Yield every link to a dashboard, however deep it lies."""
    yield from (url for url in links(part) if not url.startswith("/explore"))


def links(part: object) -> Iterator[str]:
    """Yield every link into Grafana, however deep it lies."""
    if isinstance(part, dict):
        if str(part.get("url", "")).startswith("/"):
            yield part["url"]
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from links(one)


def broken(url: str, panel: Json, dashboard: Json, dashboards: dict[str, Json]) -> list[str]:
    """Return what is wrong with a link in a panel."""
    found = re.fullmatch(r"/d/([a-z-]+)\?(.+)&\$\{__url_time_range\}", url)
    if not found:
        return [f"{url} is no link to a dashboard that carries the time range"]
    targets = {one["uid"]: one for one in dashboards.values()}
    if found[1] not in targets:
        return [f"{url}: no dashboard {found[1]}"]
    there, here = set(variables(targets[found[1]])), set(variables(dashboard))
    same, given = set(re.findall(r"\$\{(\w+):queryparam\}", url)), set(re.findall(r"var-(\w+)=", url))
    wrong = [f"{url}: {name} is unknown there" for name in (same | given) - there]
    wrong += [f"{url}: {name} is unknown here" for name in same - here]
    columns = {new for shape in panel.get("transformations", []) if shape["id"] == "organize"
               for new in shape["options"]["renameByName"].values()}  # fmt: skip
    asked = set(re.findall(r'__data\.fields(?:\.(\w+)|\["([^"]+)"\])', url))
    wrong += [f"{url}: no column {one or other}" for one, other in asked if (one or other) not in columns]
    wrong += [f"{url}: an ampersand ends {one}" for one in re.findall(r"\$\{__(?:data|field)[^}:]+\}", url)]
    needed = {"datasource", "cluster"} & there
    return wrong + [f"{url} loses {name}" for name in needed - same - given]


def test_links_keep_time_and_variables_and_lead_somewhere(dashboard: Json, dashboards: dict[str, Json]) -> None:
    """A click that loses the cluster, the run or the hour costs more than no link."""
    for link in dashboard["links"]:
        assert link["keepTime"]
        assert link["includeVars"]
        assert set(link["tags"]) <= set(dashboard["tags"])
    found = [wrong for panel in dashboard["panels"] for url in urls(panel)
             for wrong in broken(url, panel, dashboard, dashboards)]  # fmt: skip
    assert found == []


def test_every_dashboard_is_reached_by_a_click(dashboards: dict[str, Json]) -> None:
    """From the fleet to the rank and to the GPU in two clicks: pages are linked by what stands in their panels."""
    ways = {
        name: {url.split("?")[0].removeprefix("/d/tachograph-") for url in urls(one["panels"])}
        for name, one in dashboards.items()
    }
    one_click = ways["fleet"]
    assert "run" in one_click
    assert {"ranks", "node", "incident"} <= one_click | set().union(*(ways[name] for name in one_click))


@pytest.mark.parametrize(
    "url",
    [
        "/d/tachograph-run?${datasource:queryparam}&${cluster:queryparam}&var-run=x",
        "/d/tachograph-nowhere?${datasource:queryparam}&${cluster:queryparam}&${__url_time_range}",
        "/d/tachograph-run?${datasource:queryparam}&${cluster:queryparam}&var-gpu=1&${__url_time_range}",
        "/d/tachograph-run?${datasource:queryparam}&${cluster:queryparam}&${gpu:queryparam}&${__url_time_range}",
        "/d/tachograph-run?${datasource:queryparam}&${cluster:queryparam}&var-run=${__data.fields.Runn:percentencode}&${__url_time_range}",
        "/d/tachograph-run?${datasource:queryparam}&var-run=x&${__url_time_range}",
        "/d/tachograph-run?${datasource:queryparam}&${cluster:queryparam}&var-run=${__data.fields.Run}&${__url_time_range}",
    ],
    ids=["time lost", "no dashboard", "unknown there", "unknown here", "no column", "cluster lost", "not encoded"],
)
def test_a_broken_link_is_found(dashboards: dict[str, Json], url: str) -> None:
    """The check of links can fail."""
    panel = {"transformations": [{"id": "organize", "options": {"renameByName": {"run": "Run"}}}]}
    assert broken(url, panel, dashboards["run"], dashboards)


def explored(dashboard: Json) -> list[Json]:
    """Return what a dashboard's links ask in Explore, one query each."""
    panes = [parse_qs(url.partition("?")[2])["panes"] for url in links(dashboard["panels"]) if "/explore?" in url]
    return [query for (text,) in panes for query in json.loads(text)["a"]["queries"]]


def test_logs_and_traces_of_a_rank_are_one_click_away(dashboards: dict[str, Json]) -> None:
    """By the names under which they are sent; the variable that holds the data source is in nobody's way."""
    alloy = (ROOT / "deploy/alloy/training.alloy").read_text(encoding="utf-8")
    labels, metadata = (re.findall(rf"stage\.{stage} {{.*?\n\t}}", alloy, re.S)[0]
                        for stage in ("labels", "structured_metadata"))  # fmt: skip
    assert re.search(r"^\t+run += ", labels, re.M)
    assert re.search(r"^\t+rank += ", metadata, re.M)
    sent = resource(Identity("a", 3, 0, 4, 0, 0)).attributes
    assert (sent["tachograph.run"], sent["tachograph.rank"]) == ("a", 3)
    for name in ("run", "ranks", "incident"):
        logs, traces = explored(dashboards[name])
        assert logs["expr"] == '{run="${run:percentencode}"} | rank="${__data.fields.Rank}"'
        assert traces["query"] == (
            '{resource.tachograph.run="${run:percentencode}" && resource.tachograph.rank=${__data.fields.Rank}}'
        )
        sources = {one["name"]: one for one in dashboards[name]["templating"]["list"] if one["type"] == "datasource"}
        for query in (logs, traces):
            source = sources[query["datasource"]["uid"][2:-1]]
            assert (source["query"], source["hide"]) == (query["datasource"]["type"], 2)


def test_a_link_to_explore_is_a_url_but_for_its_variables(dashboard: Json) -> None:
    """Browsers and Grafana then agree about where it ends."""
    for url in links(dashboard["panels"]):
        if url.startswith("/explore"):
            assert unquote(url) != url
            assert re.fullmatch(r"[\w./?&=%~-]+", re.sub(r"\$\{[\w.:]+\}", "", url))


def undefined(dashboard: Json, expressions: ModuleType) -> set[str]:
    """Return the variables that are used and not defined, or defined and not used."""
    defined = variables(dashboard)
    text = str(dashboard)
    named = set(re.findall(r"\$\{(\w+)[.:\[}]", text)) | expressions.used(text)
    return (named - GRAFANAS_OWN) ^ set(defined)


def test_every_variable_in_use_is_defined_and_every_one_defined_is_used(
    dashboard: Json, expressions: ModuleType
) -> None:
    """A misspelt variable is sent to Prometheus as it stands and finds nothing."""
    assert undefined(dashboard, expressions) == set()


def test_a_misspelt_variable_is_found(dashboards: dict[str, Json], expressions: ModuleType) -> None:
    """The check of variables can fail."""
    text = copy.deepcopy(dashboards["run"])
    text["panels"][0]["targets"][0]["expr"] += " and up{run=~'$rnu'}"
    assert undefined(text, expressions) == {"rnu"}


def test_variables_narrow_from_cluster_to_part(dashboard: Json) -> None:
    """Each list shows only what the choices before it leave; "All" is one short pattern, however many there are."""
    order = ["datasource", "cluster", "find", "run", "instance", "rank", "gpu", "logs", "traces"]
    names = variables(dashboard)
    assert names == [name for name in order if name in names]
    assert names[:2] == ["datasource", "cluster"]
    for variable in dashboard["templating"]["list"][1:]:
        if variable.get("includeAll"):
            assert variable["allValue"] in (".*", "^$"), variable["name"]
        if variable["type"] != "query" or variable["name"] == "cluster":
            continue
        asks = variable["query"]["query"]
        assert "$cluster" in asks, variable["name"]
        if variable["name"] == "run":  # of 100,000 runs nobody scrolls to one
            assert "$find" in asks
        if variable["name"] in ("instance", "rank") and "run" in names:
            assert "$run" in asks
        if variable["name"] in ("rank", "gpu"):
            assert "$instance" in asks


def test_data_source_is_always_the_variable(dashboard: Json) -> None:
    """A fixed uid would tie the file to one Grafana."""
    found = set(re.findall(r"'uid': '([^']*)'", str(dashboard))) - {dashboard["uid"]}
    assert found == {"${datasource}"}


def test_runbook_links_are_the_rules_own(dashboard: Json, rules: list[Json]) -> None:
    """A table of firing alerts opens the same page as the notification."""
    found = set(re.findall(r"https://[^\"' ]*/runbooks/", str(dashboard)))
    pages = {rule["annotations"]["runbook_url"].rsplit("/", 1)[0] + "/" for rule in rules if "alert" in rule}
    assert found <= pages
    assert found or not any(panel["title"] == "Firing now" for panel in dashboard["panels"])


def test_every_alert_opens_a_dashboard_with_variables_it_has(dashboards: dict[str, Json], rules: list[Json]) -> None:
    """The link in a page lands on a dashboard that exists, already filtered, with its time range."""
    targets = {one["uid"]: set(variables(one)) for one in dashboards.values()}
    for rule in rules:
        if "alert" not in rule:
            continue
        link = rule["annotations"]["dashboard_url"]
        found = re.search(r"/d/([a-z-]+)(?:\?|$)", link)
        assert found, f"{rule['alert']}: {link}"
        assert found[1] in targets, f"{rule['alert']} opens {found[1]}"
        assert set(re.findall(r"var-([a-z]+)=", link)) <= targets[found[1]], f"{rule['alert']}: {link}"
        assert "?" not in link or "from=" in link, rule["alert"]
