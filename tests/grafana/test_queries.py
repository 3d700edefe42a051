"""Every query of every dashboard over a fleet of 64 ranks in a real Prometheus: it answers, in few series."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

Json = dict[str, Any]
Fill = Callable[..., str]
SERIES = 50  # what a person can read and a browser can draw every 10 s
ROWS = 50

ABSENT = {
    "no such trouble in this fleet": {
        "Monitoring alerts firing A", "Throttling by reason A", "Throttling by reason B", "NVLinks down B",
        "Network ports: errors and faults A", "Network ports: errors and faults B",
        "Network ports: errors and faults C", "Network errors per second by node, full red at 1 A",
        "Network errors per second by node, full red at 1 B", "Collectives behind A",
        "Stalled process groups A", "Ranks, worst first F",
        "Step time breakdown by rank E", "Runs, worst first I", "GPUs readable C",
        "Nodes, worst first B", "Nodes, worst first E",
        "Nodes, worst visibility first C", "Nodes, worst visibility first G", "Loss B",
        "Saving now A", "Saving now B", "Attempts, checkpoints and evaluations B",
        "Alertmanager notifications B", "Time until memory is full A", "Time until memory is full B",
        "Hardware events A", "Hardware events B",
    },
    "needs ten minutes or more of the past": {
        "Wait for data B", "Bus bandwidth B",
        "Checkpoint age B", "Checkpoint age C", "GPUs, worst first F",
        "Runs, worst first G", "Speed of the slowest runs A",
    },
    "a rank is dead: what the whole run draws is not told": {"Tokens per joule A", "fleet: Power B"},
    "only where a run sets limits of its own": {"Checkpoint age D", "Wait for data C"},
}  # fmt: skip
"""Queries, by panel and letter, that find nothing here, by the reason why that is right; and whatever is a baseline."""


def answer(fleet: Any, text: str, *, instant: bool) -> list[Json]:
    """Return the series that a panel would get for five minutes."""
    now = fleet.moment
    window = {"time": now} if instant else {"start": now - 300, "end": now, "step": 15}
    return list(fleet.ask("query" if instant else "query_range", query=text, **window)["result"])


def wanting(fleet: Any, dashboard: Json, panels: list[Json], fill: Fill) -> list[str]:
    """Return the panels that are empty and ought not to be, and those that draw or list too much."""
    expected, name = set().union(*ABSENT.values()), dashboard["uid"].removeprefix("tachograph-")
    found = []
    for panel in panels:
        total = 0
        for target in panel.get("targets", []):
            text = fill(dashboard, target["expr"])
            series = answer(fleet, text, instant=target["instant"])
            where = f"{panel['title']} {target['refId']}"
            excused = bool({where, f"{name}: {where}"} & expected) or target.get("legendFormat") == "baseline"
            labels = set(re.findall(r"{{(\w+)}}", target.get("legendFormat", "")))
            if labels and not all(labels & one["metric"].keys() for one in series):
                found.append(f"{where} has a series without a name")
            if not series and not excused:
                found.append(f"{where} is empty: {text}")
            if len(series) > ROWS:
                found.append(f"{where} has {len(series)} rows")
            total += 0 if target["instant"] else len(series)
        if total >= SERIES:
            found.append(f"{panel['title']} draws {total} series")
    return found


@pytest.mark.e2e
def test_every_panel_answers_with_few_series(fleet: Any, dashboard: Json, panels: list[Json], fill: Fill) -> None:
    """No panel is empty over a fleet's samples, and none draws 50 series or more, or 50 rows, for 64 ranks."""
    assert wanting(fleet, dashboard, panels, fill) == []


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("expression", "instant", "fault"),
    [
        ("tachograph_rank_up", False, "draws 64 series"),
        ("tachograph_rank_up", True, "has 64 rows"),
        ('tachograph_rank_up{run="other"}', True, "is empty"),
    ],
)
def test_a_panel_that_is_empty_or_crowded_is_found(
    fleet: Any, dashboards: dict[str, Json], fill: Fill, *, expression: str, instant: bool, fault: str
) -> None:
    """The check of answers can fail."""
    panel = {"title": "Broken", "targets": [{"refId": "A", "expr": expression, "instant": instant}]}
    assert any(fault in one for one in wanting(fleet, dashboards["run"], [panel], fill))


def by_title(dashboard: Json) -> dict[str, Json]:
    """Return the panels by their titles."""
    return {one["title"]: one for panel in dashboard["panels"] for one in (panel, *panel.get("panels", []))}


@pytest.mark.e2e
def test_top_names_the_state_and_the_culprit(fleet: Any, dashboards: dict[str, Json], fill: Fill) -> None:
    """One dead rank of 64: the run is "rank dead", 63 report, and table and alert name rank 11 first."""
    run = dashboards["run"]
    panels = by_title(run)

    def rows(title: str, number: int = 0) -> list[Json]:
        return answer(fleet, fill(run, panels[title]["targets"][number]["expr"]), instant=True)

    code = rows("Run")[0]["value"][1]
    words = panels["Run"]["fieldConfig"]["defaults"]["mappings"][0]["options"]
    assert words[code]["text"] == "rank dead"
    (reporting,) = rows("Ranks reporting")
    assert (reporting["metric"]["up"], reporting["metric"]["world_size"]) == ("63", "64")
    firing = {(row["metric"]["alertname"], row["metric"].get("rank")) for row in rows("Firing now")}
    assert ("RankDead", "11") in firing
    table = next(title for title in panels if title.startswith("Ranks, "))
    named = {row["metric"]["rank"] for row in rows(table)}
    assert {"11", "5"} <= named
    assert len(named) == 40
    states = {row["metric"]["rank"]: row["metric"]["state"] for row in rows(table, 1)}
    assert (states["11"], states["5"]) == ("dead", "stalled")


@pytest.mark.e2e
def test_choosing_one_rank_narrows_the_table_to_it(fleet: Any, dashboards: dict[str, Json], fill: Fill) -> None:
    """The link in a page carries var-rank: the table shows that rank."""
    run = dashboards["run"]
    panels = by_title(run)
    table = next(panel for title, panel in panels.items() if title.startswith("Ranks, "))
    rows = answer(fleet, fill(run, table["targets"][0]["expr"], rank="11"), instant=True)
    assert [(row["metric"]["rank"], row["metric"]["instance"]) for row in rows] == [("11", "node-01")]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("chosen", "gpus"),
    [({}, "64"), ({"run": "llama-7b"}, "64"), ({"run": "other"}, None), ({"instance": "node-01"}, "8"),
     ({"instance": "node-01", "gpu": "3"}, "1")],
)  # fmt: skip
def test_hardware_follows_run_node_and_gpu(
    fleet: Any, dashboards: dict[str, Json], fill: Fill, chosen: dict[str, str], gpus: str | None
) -> None:
    """All is every node; a run narrows to its own, a node and a GPU further; no run of that name shows nothing."""
    node = dashboards["node"]
    known = by_title(node)["GPUs readable"]["targets"][1]["expr"]
    found = answer(fleet, fill(node, known, **chosen), instant=True)
    assert [row["value"][1] for row in found] == ([gpus] if gpus else [])
