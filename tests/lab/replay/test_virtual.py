"""A small incident from the simulated ranks to the page, through the real exporter and the shipped rules and routes."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest

from tachograph_lab import binaries
from tachograph_lab.replay import input_series, recording, virtual
from tachograph_lab.replay.alertmanager import Firing
from tachograph_lab.replay.recording import record
from tachograph_lab.replay.scraped import MISSING, STALE, is_a
from tachograph_lab.replay.shipped_rules import shipped
from tachograph_lab.replay.verdict import ReplayVerdict
from tachograph_lab.scenario import Expected, Fleet, Scenario
from tachograph_lab.scenario.faults import (
    DuplicateTarget,
    ExporterDown,
    Fault,
    Kill,
    PrometheusRestart,
    ScrapeFailure,
    ScrapeLost,
    Vanish,
)

RUN = "small"


BOTH = pytest.mark.parametrize("suite", ["bookworm", pytest.param("sid", marks=pytest.mark.slow)])


def verdict(story: Scenario, suite: str) -> ReplayVerdict:
    """Return the verdict on an incident, replayed with one generation, if it is available."""
    try:
        return virtual.replay([story], suite)[0]
    except binaries.BinariesUnavailable as error:
        if suite == "bookworm":
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
EXPORTER_DOWN = replace(
    scenario(
        ExporterDown(at=60, node=1),
        expect=(
            Expected(
                alert="RunBlind", receiver="page", within=265, text=("1 of 2 nodes: node-1",), labels={"run": RUN},
            ),
            Expected(
                alert="ExporterDown", receiver="ticket", within=345, text=("The node is up",),
                labels={"instance": "node-1"},
            ),
        ),
    ),
    lasts=420,
)  # fmt: skip


@BOTH
def test_a_killed_rank_is_the_one_page(suite: str) -> None:
    """It names the rank, its node and its GPU; its consequences are inhibited."""
    found = verdict(KILLED, suite)
    assert found.ok, "\n".join(found.lines)


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


@pytest.mark.parametrize(("port", "instance"), [(None, "node-1"), (9108, "node-1:9108")])
def test_a_second_job_shows_everything_again(port: int | None, instance: str) -> None:
    """For as long as it has the exporter as a target; then its series end, and no scrape is missed."""
    fault = DuplicateTarget(at=60, lasts=30, nodes=(1,), job="pods", port=port)
    found = [*record(scenario(fault, expect=()), shipped().words).series()]
    again = {one.name: one for one in found if one.labels["job"] == "pods"}
    assert {one.labels["instance"] for one in again.values()} == {instance}
    first = [one for one in found if one.labels["job"] == "tachograph" and one.labels["instance"] == "node-1"]
    meanwhile = [(one.name, one.values[12:18]) for one in first]  # scraped every 5 s from second 1 on
    assert again.keys() == {name for name, each in meanwhile if not (is_a(MISSING, each) | is_a(STALE, each)).all()}
    ups = again["up"]
    assert ups.first == 61
    assert ups.values[:6].tolist() == [1.0] * 6
    assert is_a(STALE, ups.values[6:7]).all()
    assert is_a(MISSING, ups.values[7:]).all()


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
            found = record(replace(scenario(fault, expect=()), scrape=scrape, lasts=150), shipped().words)
            ups = [one for one in found.series() if one.name == "up"]
            lost = {(one.labels["job"], one.labels["instance"]): int((one.values == 0).sum()) for one in ups}
            assert lost == {
                ("tachograph", "node-0"): 0, ("node", "node-0"): 0, ("tachograph", "node-1"): 1, ("node", "node-1"): 1,
            }  # fmt: skip


def test_rules_are_evaluated_at_their_own_interval_or_more_rarely() -> None:
    """Every group has one; `evaluation` is that of rules made for rare scrapes; a long story has its own."""
    wanted = Expected(alert="MfuDropped", receiver="page", within=300)
    story = scenario(expect=(wanted,))
    assert virtual.interval(replace(story, evaluation=2)) == 5
    assert virtual.interval(replace(story, evaluation=30)) == 30
    assert virtual.interval(replace(story, lasts=86400, evaluation=5)) == 5
    assert virtual.interval(replace(story, lasts=86400)) == 15


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


@pytest.mark.slow
@BOTH
def test_an_exporter_that_is_down_is_that_and_no_dead_run(suite: str) -> None:
    """Its scrapes fail, its series end, and the node answers: the page says so."""
    found = verdict(EXPORTER_DOWN, suite)
    assert found.ok, "\n".join(found.lines)


def test_a_target_that_vanishes_is_not_missed() -> None:
    """Its series end, `up` included, and no scrape fails; the node's own page is still scraped; then it is back."""
    found = record(scenario(Vanish(at=60, lasts=20, nodes=(1,)), expect=()), shipped().words)
    ups = {(one.labels["job"], one.labels["instance"]): one for one in found.series() if one.name == "up"}
    gone = ups["tachograph", "node-1"].values
    assert is_a(STALE, gone).nonzero()[0].tolist() == [12]
    assert is_a(MISSING, gone).nonzero()[0].tolist() == [13, 14, 15]
    assert set(gone[:12]) | set(gone[16:]) == {1}
    assert set(ups["node", "node-1"].values) == {1}
    (state, *_) = [
        one for one in found.series() if one.name == "tachograph_rank_up" and one.labels["instance"] == "node-1"
    ]
    assert is_a(STALE, state.values).nonzero()[0].tolist() == [12]


def test_a_prometheus_that_is_new_has_a_past_of_its_own() -> None:
    """It knows nothing from before, so it is evaluated alone, and what fires on both sides has never ended."""
    story = scenario(PrometheusRestart(at=60), expect=())
    whole = record(story, shipped().words)
    known = [*virtual.KnownSince(whole, 60.0, 120.0).series()]
    assert {one.first for one in known} == {0, 1, 2, 3}
    for one in known:
        moments = one.first + 5.0 * np.arange(len(one.values))
        assert is_a(MISSING, one.values[moments < 60]).all(), one.name
    assert any(not is_a(MISSING, one.values).all() for one in known)

    def fires(name: str, start: float, end: float | None) -> Firing:
        return Firing({"alertname": name}, start, end, {"at": f"{start:g}"})

    before = [fires("Over", 10, 20), fires("Goes on", 30, None), fires("Healed", 40, None)]
    after = [fires("Blank", 0, 60), fires("Goes on", 90, 100), fires("New", 95, None)]
    assert virtual.after_restart(before, after, 60, 60) == [
        fires("Over", 10, 20), fires("Goes on", 30, 100), fires("Healed", 40, 300), fires("New", 95, None),
    ]  # fmt: skip
    assert virtual.after_restart(before, after, 20, 85)[1:3] == [fires("Goes on", 30, 100), fires("Healed", 40, 260)]
    assert virtual.after_restart(before, [fires("Goes on", 290, None)], 20, 280)[1:3] == [
        fires("Goes on", 30, 260), fires("Healed", 40, 260),
    ]  # fmt: skip


@pytest.mark.slow  # what is special about it, a past of its own, is asserted above
def test_a_restarted_prometheus_still_pages() -> None:
    """An exporter that was down before is down for the new one, too: one page, not two.

    Which run it served nobody can know who never saw it answer: when Alertmanager gives the page up, only a ticket for
    the run whose ranks are missing says that it is still not watched, and another one names the exporter.
    """
    blind, down = EXPORTER_DOWN.expect
    missing = Expected(
        alert="RanksMissing", receiver="ticket", of=2, not_before=240, within=265, text=("only 2 of its 4 ranks",),
        labels={"run": RUN},
    )  # fmt: skip
    again = replace(down, of=2, not_before=300)
    story = replace(
        scenario(ExporterDown(at=60, node=1), PrometheusRestart(at=450), expect=(blind, down, missing, again)),
        lasts=900,
    )
    (verdict,) = virtual.replay([story], "bookworm")
    assert verdict.ok, "\n".join(verdict.lines)
    assert [one.labels["alertname"] for one in verdict.resolved] == ["RunBlind", "ExporterDown"]


@pytest.mark.slow
def test_two_runs_on_one_cluster_are_judged_together() -> None:
    """The page names the run whose rank died, and its own node and GPU."""
    other = replace(
        scenario(Kill(at=61, rank=1), expect=()),
        fleet=Fleet(run="other", nodes=2, gpus_per_node=1, first_node=1, first_gpu=2, cluster_nodes=3),
    )
    named = {"run": "other", "rank": "1", "instance": "node-2", "gpu": "2"}
    story = replace(
        scenario(expect=(Expected(alert="RankDead", receiver="page", within=15, labels=named),)),
        fleet=Fleet(run=RUN, nodes=2, gpus_per_node=2, cluster_nodes=3), runs=(other,),
    )  # fmt: skip
    (verdict,) = virtual.replay([story], "bookworm")
    assert verdict.ok, "\n".join(verdict.lines)
