"""Each dashboard's JSON: what Grafana accepts silently, and what a person needs of every panel."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from functools import cache
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = sorted((ROOT / "tests/grafana/schema").glob("grafana-*.json"))
Json = dict[str, Any]
CORE = {"timeseries", "stat", "table", "state-timeline"}
"""Panels that Grafana 11, 12 and 13 bring: no Angular, no plugin to install."""
UNITS = set((ROOT / "tests/grafana/schema/units.txt").read_text(encoding="utf-8").split())
"""Ids of all units that Grafana knows, from @grafana/data 12.4; it shows an unknown one as a suffix."""
KUBERNETES_BYTES = 200_000
"""`kubectl apply` keeps a second copy of a ConfigMap in an annotation of at most 256 KiB."""
NAMES = {
    "fleet": "Tachograph / Fleet",
    "run": "Tachograph / Run",
    "ranks": "Tachograph / Ranks",
    "node": "Tachograph / Node and GPU",
    "storage": "Tachograph / Data and checkpoint",
    "monitoring": "Tachograph / Monitoring health",
    "incident": "Tachograph / Incident",
}
"""The end of each uid, and its title: alerts, runbooks and bookmarks link to them, so they never change."""


def test_committed_files_are_what_the_code_makes() -> None:
    """A dashboard is never edited by hand: the file and its source agree to the byte."""
    check = [sys.executable, ROOT / "grafana/build.py", "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_all_dashboards_are_there_under_names_of_their_own(dashboards: dict[str, Json]) -> None:
    """One uid or title twice, and Grafana writes none of a folder's dashboards."""
    assert {name: one["title"] for name, one in dashboards.items()} == NAMES
    assert all(one["uid"] == f"tachograph-{name}" for name, one in dashboards.items())


def test_identity_is_stable_and_format_is_classic(dashboard: Json) -> None:
    """A provisioned file with import-only parts would be dead in Grafana, and a uid of more than 40 letters refused."""
    assert 39 <= dashboard["schemaVersion"] <= 42
    assert not {"__inputs", "__requires", "__elements", "id", "version"} & dashboard.keys()
    assert dashboard["editable"] is False
    assert dashboard["tags"] == ["tachograph"]
    assert dashboard["timezone"] in ("utc", "browser")
    assert dashboard["graphTooltip"] == 1
    assert len(dashboard["uid"]) <= 40
    assert len(dashboard["description"]) > 40


def test_file_fits_into_a_config_map(dashboard: Json) -> None:
    """Each dashboard can be one ConfigMap that `kubectl apply` takes."""
    path = ROOT / f"grafana/dashboards/{dashboard['uid'].removeprefix('tachograph-')}.json"
    assert path.stat().st_size < KUBERNETES_BYTES


def known(unit: str) -> bool:
    """Whether Grafana knows a unit, or it is one with a symbol of our own, which it knows too."""
    return unit in UNITS or unit.startswith(("si:", "suffix:"))


def test_every_panel_says_what_it_is(dashboard: Json, panels: list[Json]) -> None:
    """A title of its own, what good looks like and what to do, a unit, and words for an empty panel."""
    for panel in panels:
        assert panel["type"] in CORE
        assert panel["title"]
        assert len(panel["description"]) > 40, panel["title"]
        defaults = panel["fieldConfig"]["defaults"]
        assert known(defaults["unit"]), f"{panel['title']}: {defaults['unit']}"
        assert defaults["noValue"], panel["title"]
        for override in panel["fieldConfig"]["overrides"]:
            for row in override["properties"]:
                assert row["id"] != "unit" or known(row["value"]), f"{panel['title']}: {row['value']}"
    names = [(panel["type"], panel["title"]) for panel in panels]
    assert len(set(names)) == len(names)


def test_limits_stand_in_the_rules_alone(panels: list[Json]) -> None:
    """A panel shows what ALERTS says: no threshold of its own, and no comparison with a number but presence."""
    for panel in panels:
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert steps == [{"color": "text", "value": None}], panel["title"]
        assert "thresholds" not in {row["id"] for o in panel["fieldConfig"]["overrides"] for row in o["properties"]}
        for target in panel["targets"]:
            limits = set(re.findall(r"[<>]=?\s*(?:bool\s+)?(-?[0-9.]+)", target["expr"]))
            assert limits <= {"0"}, f"{panel['title']} compares with {limits}"


def overlapping(panels: list[Json]) -> list[str]:
    """Return which panels lie over each other, or reach out of the grid."""
    found = []
    for panel in panels:
        place = panel["gridPos"]
        if place["x"] < 0 or place["w"] < 1 or place["h"] < 1 or place["x"] + place["w"] > 24:
            found.append(f"{panel['title']} leaves the grid")
    for one, other in combinations(panels, 2):
        a, b = one["gridPos"], other["gridPos"]
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        if not (apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]):
            found.append(f"{one['title']} lies over {other['title']}")
    return found


def test_ids_are_unique_and_panels_do_not_overlap(dashboard: Json, expressions: ModuleType) -> None:
    """Grafana gives no error for either: it draws one panel over the other."""
    everything = expressions.panels(dashboard)
    assert len({panel["id"] for panel in everything}) == len(everything)
    for panels in (dashboard["panels"], *(panel.get("panels", []) for panel in dashboard["panels"])):
        assert overlapping(panels) == []


@pytest.mark.parametrize(("key", "value"), [("w", 25), ("x", -1), ("y", 0)])
def test_a_panel_out_of_place_is_found(dashboards: dict[str, Json], key: str, value: int) -> None:
    """The check of panel positions can fail."""
    broken = copy.deepcopy(dashboards["run"]["panels"])
    broken[-1]["gridPos"][key] = value
    assert overlapping(broken)


def test_a_run_is_told_in_an_operators_order(dashboards: dict[str, Json]) -> None:
    """Alive before fast, fast before learning, then who and which part."""
    panels = dashboards["run"]["panels"]
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows == ["Efficiency", "Learning", "Rank activity", "Memory", "Inside the model", "Generation", "Failures"]
    top = [panel["title"] for panel in panels if panel["type"] != "row"]
    assert top[:5] == ["Run", "Ranks reporting", "Firing now", "What changed", "Progress"]
    assert top[5:7] == ["Ranks, worst first", "Nodes, worst first"]
    assert top[7:] == ["Step time", "MFU", "Where the time goes", "Loss"]


def test_the_first_screen_of_a_run_asks_little(dashboards: dict[str, Json]) -> None:
    """Thirty requests: variables, marks and open panels; what stands in a closed row asks when it is opened."""
    run = dashboards["run"]
    rows = [panel for panel in run["panels"] if panel["type"] == "row"]
    assert all(row["collapsed"] and row["panels"] for row in rows)
    asked = sum(len(panel.get("targets", [])) for panel in run["panels"])
    asked += sum(variable["type"] == "query" for variable in run["templating"]["list"])
    asked += sum(mark["enable"] for mark in run["annotations"]["list"])
    assert asked <= 30


@cache
def validator(schema: Path) -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(json.loads(schema.read_text(encoding="utf-8")))


def schema_errors(dashboard: Json, schema: Path) -> list[str]:
    found = validator(schema).iter_errors(dashboard)
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in found]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda path: path.stem)
def test_every_key_is_one_that_grafana_knows(dashboard: Json, schema: Path) -> None:
    """Grafana silently drops a key that it does not know: all are checked against the types each major publishes."""
    assert schema_errors(dashboard, schema) == []


def test_three_majors_are_checked() -> None:
    """Grafana 11, 12 and 13."""
    assert [path.stem for path in SCHEMAS] == ["grafana-11", "grafana-12", "grafana-13"]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("type",), "graph"),
        (("options", "legend", "position"), "bottom"),
        (("options", "tooltip", "mode"), "both"),
        (("fieldConfig", "defaults", "custom", "fillOpacity"), "10"),
        (("fieldConfig", "defaults", "units"), "s"),
    ],
)
def test_schema_finds_a_misspelt_option(
    dashboards: dict[str, Json], schema: Path, path: tuple[str, ...], value: str
) -> None:
    """Each schema is strict enough to be worth its bytes."""
    panel = copy.deepcopy(next(panel for panel in dashboards["run"]["panels"] if panel["type"] == "timeseries"))
    part = panel
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    assert schema_errors(dashboards["run"] | {"panels": [panel]}, schema)
