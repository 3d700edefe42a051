"""A small incident from the simulated ranks to the page, through the real exporter and the shipped rules and routes."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from tachograph_lab import binaries
from tachograph_lab.replay import input_series, recording, virtual
from tachograph_lab.replay.recording import record
from tachograph_lab.replay.shipped import shipped
from tachograph_lab.replay.verdict import ReplayVerdict
from tachograph_lab.scenario import Expected, Fleet, Scenario
from tachograph_lab.scenario.faults import ExporterDown, Fault, Kill, ScrapeFailure, ScrapeLost

RUN = "small"


@pytest.fixture(scope="module", params=["bookworm", pytest.param("sid", marks=pytest.mark.slow)])
def verdicts(request: pytest.FixtureRequest) -> list[ReplayVerdict]:
    """The verdicts on both incidents below, replayed with one generation, if it is available."""
    try:
        return virtual.replay([KILLED, EXPORTER_DOWN], request.param)
    except binaries.BinariesUnavailable as error:
        if request.param == "bookworm":
            pytest.fail(str(error))
        pytest.skip(str(error))


def scenario(*faults: Fault, expect: tuple[Expected, ...]) -> Scenario:
    """Return a run on two nodes of two GPUs that goes wrong after a minute."""
    fleet = Fleet(run=RUN, nodes=2, gpus_per_node=2)
    return Scenario(title="Small", story="Small.", lasts=120, fleet=fleet, faults=faults, expect=expect)


KILLED = scenario(
    Kill(at=61, rank=3),
    expect=(
        Expected(
            alert="RankDead", receiver="page", within=15, text=("rank 3",),
            labels={"run": RUN, "rank": "3", "instance": "node-1", "gpu": "1"},
        ),
    ),
)  # fmt: skip
EXPORTER_DOWN = scenario(
    ExporterDown(at=60, node=1),
    expect=(
        Expected(
            alert="ExporterDown", receiver="page", within=55, text=("The node is up",), labels={"instance": "node-1"}
        ),
    ),
)


def test_a_killed_rank_is_the_one_page(verdicts: list[ReplayVerdict]) -> None:
    """It names the rank, its node and its GPU; its consequences are inhibited."""
    assert verdicts[0].ok, "\n".join(verdicts[0].lines)


@pytest.mark.parametrize(("there", "jobs"), [(True, {"tachograph", "node"}), (False, {"tachograph"})])
def test_a_cluster_can_be_without_node_exporters(there: bool, jobs: set[str]) -> None:
    """`node_exporter: false`: Prometheus has no such target, `up` of it included."""
    one = replace(KILLED, lasts=30, node_exporter=there)
    assert {series.labels["job"] for series in record(one, shipped().words).series()} == jobs


def test_the_same_scenario_records_the_same() -> None:
    """No clock, no process and no order of a set influences a series."""
    written = []
    for _ in range(2):
        file = io.StringIO()
        input_series.write(record(scenario(Kill(at=21, rank=3), expect=()), shipped().words), file)
        written.append(file.getvalue())
    assert written[0] == written[1]
    assert "tachograph_rank_up" in written[0]


def test_nodes_are_scraped_one_after_the_other() -> None:
    """As in Prometheus: a rule must cope with nodes scraped before a fault beside nodes scraped after it."""
    found = record(scenario(ExporterDown(at=60, lasts=10, node=1), expect=()), shipped().words)
    ups = {(one.labels["job"], one.labels["instance"]): one for one in found.series() if one.name == "up"}
    assert {target: one.first for target, one in ups.items()} == {
        ("tachograph", "node-0"): 0, ("tachograph", "node-1"): 1, ("node", "node-0"): 2, ("node", "node-1"): 3,
    }  # fmt: skip
    assert len(ups["tachograph", "node-0"].values) == 25
    assert (1 - ups["tachograph", "node-1"].values).nonzero()[0].tolist() == [12, 13]  # at 61 s and 66 s


@pytest.mark.parametrize(("scrape", "moments"), [(15, [0, 11, 7]), (30, [0, 11, 22]), (60, [0, 11, 22])])
def test_slower_scrapes_are_spread_over_their_interval(scrape: float, moments: list[int]) -> None:
    """A node's two pages are scraped apart, and its ranks are no more silent than with fast scrapes."""
    story = replace(scenario(expect=()), scrape=scrape, lasts=300, fleet=Fleet(nodes=3, gpus_per_node=1))
    found = [*record(story, shipped().words | {"tachograph_rank_silent_seconds"}).series()]
    first = {(one.labels["job"], one.labels["instance"]): one.first for one in found if one.name == "up"}
    assert [first["tachograph", f"node-{number}"] for number in range(3)] == moments
    assert [first["node", f"node-{number}"] for number in range(3)] == [
        (moment + round(0.4 * scrape)) % scrape for moment in moments
    ]
    assert {len(one.values) for one in found if one.name == "up"} <= {300 // scrape, 300 // scrape + 1}
    states = [one for one in found if one.name == "tachograph_rank_state" and one.labels["state"] != "running"]
    assert not [one for one in states if one.values[1:].max() > 0]


def test_a_failed_scrape_is_one_scrape_at_any_interval() -> None:
    """It lasts until the target's next one."""
    for scrape in (5.0, 15.0, 30.0):
        for fault in (ScrapeLost(at=61, nodes=(1,)), ScrapeFailure(at=61, node=1)):
            found = record(replace(scenario(fault, expect=()), scrape=scrape, lasts=300), shipped().words)
            ups = [one for one in found.series() if one.name == "up"]
            lost = {(one.labels["job"], one.labels["instance"]): int((one.values == 0).sum()) for one in ups}
            assert lost == {
                ("tachograph", "node-0"): 0, ("node", "node-0"): 0, ("tachograph", "node-1"): 1, ("node", "node-1"): 1,
            }  # fmt: skip


def test_a_given_evaluation_interval_is_kept() -> None:
    """Whatever is due when, and however long the scenario is."""
    wanted = Expected(alert="RankDead", receiver="page", within=10)
    for lasts in (120, 86400):
        assert virtual.interval(replace(scenario(expect=(wanted,)), lasts=lasts, evaluation=30)) == 30


def test_a_large_story_is_scraped_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing has gaps, and promtool's grid is the interval."""
    monkeypatch.setattr(recording, "STAGGERED_RANK_SECONDS", 0)
    found = record(scenario(expect=()), shipped().words)
    assert (found.grid_seconds, {one.first for one in found.series()}) == (5.0, {0})
    slow = record(replace(scenario(expect=()), scrape=30.0), shipped().words)
    assert (slow.grid_seconds, slow.spacing, {one.first for one in slow.series()}) == (30.0, 1, {0})
    assert [len(one.values) for one in slow.series() if one.name == "up"] == [5] * 4


@pytest.mark.parametrize(
    ("within", "lasts", "nodes", "seconds"), [(16, 120, 2, 2.5), (17, 120, 2, 5), (16, 120, 200, 5), (16, 86400, 2, 15)]
)
def test_the_rules_are_evaluated_as_often_as_a_time_asks_for(
    within: float, lasts: float, nodes: int, seconds: float
) -> None:
    """Often where seconds count and the fleet is small; rarely in long scenarios."""
    wanted = Expected(alert="RankDead", receiver="page", within=within)
    story = replace(scenario(expect=(wanted,)), lasts=lasts, fleet=Fleet(nodes=nodes, gpus_per_node=2))
    assert virtual.interval(story) == seconds


def test_an_exporter_that_is_down_is_that_and_no_dead_run(verdicts: list[ReplayVerdict]) -> None:
    """Its scrapes fail, its series end, and the node answers: the page says so."""
    assert verdicts[1].ok, "\n".join(verdicts[1].lines)
