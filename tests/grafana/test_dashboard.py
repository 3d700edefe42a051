"""The dashboard's JSON: what Grafana will accept, and what a person needs of every panel."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]
KINDS = {"stat", "timeseries", "table"}  # no Angular panel, no plugin to install
UNITS = {"none", "locale", "s", "sci", "percentunit", "watt", "celsius", "hertz", "bytes", "si:tok/s"}


def test_committed_files_are_what_the_code_makes() -> None:
    """A dashboard is never edited by hand: the file and its source agree to the byte."""
    check = [sys.executable, ROOT / "grafana/build.py", "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_identity_is_stable_and_format_is_classic(dashboard: Json) -> None:
    """Alerts link to this uid, and a provisioned file with import-only parts would be dead in Grafana."""
    assert (dashboard["uid"], dashboard["title"]) == ("tachograph-run", "Run")
    assert 39 <= dashboard["schemaVersion"] <= 42
    assert not {"__inputs", "__requires", "__elements", "id", "version"} & dashboard.keys()
    assert dashboard["editable"] is False


def test_every_panel_says_what_it_is(panels: list[Json]) -> None:
    """Title, description that says what is good, known unit, and words for an empty panel."""
    for panel in panels:
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["type"] in KINDS
        assert panel["title"]
        assert len(panel["description"]) > 40, panel["title"]
        assert defaults["unit"] in UNITS, panel["title"]
        assert defaults["noValue"], panel["title"]
    assert len({panel["title"] for panel in panels}) == len(panels)


def test_limits_stand_in_the_rules_alone(panels: list[Json]) -> None:
    """A panel shows what ALERTS says: no threshold of its own, and no comparison with a number but presence."""
    for panel in panels:
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert steps == [{"color": "text", "value": None}], panel["title"]
        assert "thresholds" not in {row["id"] for o in panel["fieldConfig"]["overrides"] for row in o["properties"]}
        for target in panel["targets"]:
            limits = set(re.findall(r"[<>]=?\s*(-?[0-9.]+)", target["expr"]))
            assert limits <= {"0"}, f"{panel['title']} compares with {limits}"


def test_ids_are_unique_and_panels_do_not_overlap(dashboard: Json) -> None:
    """Grafana gives no error for either: it draws one panel over the other."""
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24, panel["title"]
    for one, other in combinations(panels, 2):
        a, b = one["gridPos"], other["gridPos"]
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart = apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart, f"{one['title']} lies over {other['title']}"


def test_sections_come_in_an_operators_order(dashboard: Json) -> None:
    """Alive before fast, fast before learning, then who and which part."""
    rows = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
    assert rows == ["Efficiency", "Learning", "Ranks", "Hardware"]
    first = min(panel["gridPos"]["y"] for panel in dashboard["panels"] if panel["type"] == "row")
    top = {panel["title"] for panel in dashboard["panels"] if panel["gridPos"]["y"] < first}
    assert {"Run", "Step", "Since last step", "Ranks reporting", "Alerts", "Firing now"} <= top


def test_data_source_is_always_the_variable(dashboard: Json) -> None:
    """A fixed uid would tie the file to one Grafana."""
    assert dashboard["templating"]["list"][0]["type"] == "datasource"
    found = set(re.findall(r"'uid': '([^']*)'", str(dashboard))) - {dashboard["uid"]}
    assert found == {"${datasource}"}


def test_every_variable_in_use_is_defined_and_every_one_defined_is_used(dashboard: Json) -> None:
    """A misspelt variable is sent to Prometheus as it stands and finds nothing."""
    defined = [variable["name"] for variable in dashboard["templating"]["list"]]
    text = str({key: part for key, part in dashboard.items() if key != "templating"})
    used = set(re.findall(r"\$\{?([a-z_]+)", text)) | set(re.findall(r"var-([a-z]+)=", text))
    assert used - {"__rate_interval", "__data", "__url_time_range"} == set(defined)
    assert defined == ["datasource", "run", "instance", "rank"]
    for variable in dashboard["templating"]["list"][2:]:
        assert variable["allValue"] == ".*"
        assert "$run" in variable["query"]["query"]


def test_links_keep_time_and_variables_and_lead_somewhere(dashboard: Json) -> None:
    """A click that loses the run or the hour costs more than no link."""
    for link in dashboard["links"]:
        assert link["keepTime"]
        assert link["includeVars"]
        assert set(link["tags"]) <= set(dashboard["tags"])
    properties = [row for panel in dashboard["panels"] if "fieldConfig" in panel
                  for o in panel["fieldConfig"]["overrides"] for row in o["properties"]]  # fmt: skip
    urls = [link["url"] for row in properties if row["id"] == "links" for link in row["value"]]
    inner = [url for url in urls if url.startswith("/")]
    assert inner
    for url in inner:
        assert url.startswith(f"/d/{dashboard['uid']}?"), url
        assert url.endswith("${__url_time_range}"), url
        assert "${run:queryparam}" in url


def test_runbook_links_are_the_rules_own(dashboard: Json, rules: list[Json]) -> None:
    """The table of firing alerts opens the same page as the notification."""
    found = set(re.findall(r"https://[^\"' ]*/runbooks/", str(dashboard)))
    assert found == {rule["annotations"]["runbook_url"].rsplit("/", 1)[0] + "/" for rule in rules if "alert" in rule}


def test_alerts_open_this_dashboard_with_variables_it_has(dashboard: Json, rules: list[Json]) -> None:
    """The link in a page lands on this dashboard, already filtered."""
    defined = {variable["name"] for variable in dashboard["templating"]["list"]}
    links = [rule["annotations"]["dashboard_url"] for rule in rules if "dashboard_url" in rule.get("annotations", {})]
    assert links
    for link in links:
        assert f"/d/{dashboard['uid']}/" in link
        assert set(re.findall(r"var-([a-z]+)=", link)) <= defined, link


def schema_errors(dashboard: Json) -> list[str]:
    schema = json.loads((ROOT / "tests/grafana/schema/classic.json").read_text(encoding="utf-8"))
    found = jsonschema.Draft7Validator(schema).iter_errors(dashboard)
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in found]


def test_every_key_is_one_that_grafana_knows(dashboard: Json) -> None:
    """Grafana drops a key it does not know without a word: options are checked against its own published types."""
    assert schema_errors(dashboard) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("options", "legend", "position"), "bottom"),
        (("options", "tooltip", "mode"), "both"),
        (("fieldConfig", "defaults", "custom", "fillOpacity"), "10"),
        (("fieldConfig", "defaults", "units"), "s"),
    ],
)
def test_schema_finds_a_misspelt_option(dashboard: Json, path: tuple[str, ...], value: str) -> None:
    """The schema is strict enough to be worth its bytes."""
    broken = copy.deepcopy(dashboard)
    part = next(panel for panel in broken["panels"] if panel["type"] == "timeseries")
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    assert schema_errors(broken)
