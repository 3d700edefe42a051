"""Random campaigns: reproducible, sound, and judged by name."""

from __future__ import annotations

import pytest

from tachograph_lab.commands import campaign, healthy
from tachograph_lab.replay.batch import Outcome
from tachograph_lab.replay.verdict import ReceivedAlert, judge
from tachograph_lab.scenario import random_seams
from tachograph_lab.scenario.checks import check
from tachograph_lab.scenario.faults import FAULTS
from tachograph_lab.scenario.random_incidents import KINDS
from tachograph_lab.scenario.random_scenario import generate


def test_a_campaign_can_be_run_again() -> None:
    """The same number and seed give the same scenario; another seed another one."""
    assert [generate(number, 1) for number in range(60)] == [generate(number, 1) for number in range(60)]
    assert generate(3, 1) != generate(3, 2)


def test_what_is_made_up_is_sound() -> None:
    """Every scenario passes the checks that files pass, for every kind of incident and fleet."""
    scenarios = [generate(number, seed) for seed in range(3) for number in range(len(KINDS) * 4)]
    assert not [problem for scenario in scenarios for problem in check(scenario)]
    assert {scenario.fleet.ranks for scenario in scenarios} >= {2, 8, 64, 256}


def test_a_campaign_of_the_field_draws_its_habits() -> None:
    """Any step, slower scrapes, basic loops, uneven stages: all of them, all sound, and budgets to match."""
    drawn = [generate(number, seed, field=True) for seed in range(3) for number in range(len(KINDS) * 4)]
    assert not [problem for scenario in drawn for problem in check(scenario)]
    assert {scenario.scrape for scenario in drawn} == {scenario.evaluation for scenario in drawn} == {5, 15, 30}
    assert {scenario.loop for scenario in drawn} == {"marked", "basic"}
    assert {round(scenario.step.seconds, 2) for scenario in drawn} >= {0.05, 1.0, 40.0, 200.0}
    uneven = [scenario for scenario in drawn if scenario.step.stages]
    assert 0.1 < len(uneven) / len(drawn) < 0.5
    for scenario in drawn:
        assert scenario.lasts >= max([0.0, *(scenario.began(one) + scenario.limit(one) for one in scenario.expect)])
    swift = [(story.scrape, one) for story in drawn for one in story.expect if one.alert == "RankDead"]
    assert {(scrape, one.within, one.plus_scrapes, one.plus_evaluations) for scrape, one in swift} == {
        (5, 10, 0, 0), (15, 2, 2, 2), (30, 2, 2, 2),
    }  # fmt: skip


def test_seams_are_sound_and_drawn_beside_every_incident() -> None:
    """The same number and seed give the same scenario; each incident meets each seam within 70 numbers."""
    drawn = [random_seams.generate(number, 1) for number in range(140)]
    assert drawn == [random_seams.generate(number, 1) for number in range(140)]
    assert not [problem for scenario in drawn for problem in check(scenario)]
    pairs = {tuple(scenario.title.split(": ")[1].split(", ")[:2]) for scenario in drawn[:70]}
    assert len(pairs) == len(random_seams.INCIDENTS) * len(random_seams.SEAMS)
    blind = [scenario for scenario in drawn if "killed, its exporter away," in scenario.title]
    assert blind
    assert all(not scenario.expect and scenario.may for scenario in blind)


def test_of_uneven_stages_one_of_the_last_is_to_blame() -> None:
    """A rank that is slower within a fast stage delays nobody."""
    for number in range(len(KINDS) * 4):
        scenario = generate(number, 1, field=True)
        rank = getattr(scenario.faults[0], "rank", None)
        if scenario.step.stages and rank is not None:
            assert scenario.fleet.stage_of(rank) == scenario.fleet.pipeline - 1


def test_faults_at_ranks_expect_that_rank() -> None:
    """The expectation names the rank, node and GPU of the fault."""
    for number in range(len(KINDS) * 3):
        scenario = generate(number, 5)
        rank = getattr(scenario.faults[0], "rank", None)
        if rank is None or not scenario.expect:
            continue
        node, gpu = divmod(rank, scenario.fleet.gpus_per_node)
        labels = scenario.expect[0].labels
        assert (labels["rank"], labels["gpu"]) == (str(rank), str(gpu))
        assert labels["instance"] == scenario.fleet.node_name(node)


def test_most_faults_come_in_campaigns() -> None:
    """The others have incidents of their own, which take hours or more than one fault, or belong to a healthy day."""
    used = {type(generate(number, 1).faults[0]).word for number in range(len(KINDS))}
    others = {
        "slow_checkpoint", "no_checkpoint", "batch_change", "finish", "pause", "exit", "sigterm", "leave_early", "gil",
        "scrape_lost", "vanish", "rollout", "prometheus_away", "prometheus_restart", "clock_skew", "idle_port_down",
        "recovery_action", "fail", "no_show", "turns", "slowing", "duplicate_target",
    }  # fmt: skip
    assert used | others == set(FAULTS)


def _received(alert: str, rank: str, time: float) -> ReceivedAlert:
    labels = {"alertname": alert, "run": "campaign", "rank": rank, "instance": "node-0", "gpu": rank}
    return ReceivedAlert(time, "page", "firing", labels, {"description": f"Rank {rank} holds its connection"})


def test_a_page_that_blames_another_rank_is_wrong() -> None:
    """It is neither missing nor extra, and a second page is extra."""
    scenario = generate(next(n for n, kind in enumerate(KINDS) if kind.word == "frozen"), 1)
    at, right = scenario.faults[0].at, scenario.expect[0].labels["rank"]
    other = "0" if right != "0" else "1"

    def kinds(*received: ReceivedAlert) -> list[str]:
        return sorted(finding.kind for finding in campaign.findings(Outcome(scenario, judge(scenario, received), 0.0)))

    assert kinds() == [campaign.MISSING]
    assert kinds(_received("RankFrozen", other, at + 5)) == [campaign.WRONG]
    assert kinds(_received("RankFrozen", other, at + 5), _received("RunHung", other, at + 30)) == [
        campaign.EXTRA,
        campaign.WRONG,
    ]


def test_a_healthy_day_of_any_fleet_is_sound() -> None:
    """A day's events are within its hours, whatever its length, and nothing is expected of it."""
    for ranks in healthy.FLEETS:
        for hours, rollout in ((1, False), (24, False), (24, True)):
            scenario = healthy.day(ranks, 3, hours * 3600, step_seconds=40.0, loop="basic", rollout=rollout)
            assert scenario.step.seconds == pytest.approx(40)
            assert scenario.fleet.ranks == ranks
            assert not scenario.expect
            assert not list(check(scenario))
