"""Shadow mode over incidents of the lab: what it would have done is right, and on a healthy day it is nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tachograph_lab.commands import supervised as command
from tachograph_lab.commands.healthy import day
from tachograph_lab.replay.alertmanager import Firing
from tachograph_lab.replay.supervised import precision, report, supervise, supervise_all
from tachograph_lab.scenario import Fleet, Scenario, StepTimes
from tachograph_lab.scenario.definition import Expected, Pause
from tachograph_lab.scenario.faults import (
    Ecc,
    ExporterDown,
    Fault,
    Freeze,
    Kill,
    LinkDown,
    Nan,
    PauseOnce,
    SlowPhase,
    Stuck,
)

AT = 60.0
ONE_NODE, NODES = Fleet(run="r", nodes=1, gpus_per_node=2), Fleet(run="r", nodes=2, gpus_per_node=2)
FAULTS: dict[str, tuple[Fault, str, list[tuple[str, str]]]] = {
    "killed": (Kill(at=AT, rank=1, others="end"), "RankDead", [("dead", "right")]),
    "killed, and its peers hang": (Kill(at=AT, rank=1, others="hang"), "RankDead", [("dead", "right")]),
    "stuck": (Stuck(at=AT, rank=1, phase="data"), "RunHung", [("hung", "right")]),
    "frozen": (Freeze(at=AT, rank=1), "RankFrozen", [("frozen", "right")]),
    "NaN": (Nan(at=AT, rank=1), "LossNotFinite", [("loss_not_finite", "right")]),
    "slow": (SlowPhase(at=AT, ranks=(1,), phase="backward", factor=2.0), "StragglerRank", []),
    "a pause of two minutes": (PauseOnce(at=AT, lasts=120.0, ranks=(1,), phase="data"), "RunHung", [("hung", "wrong")]),
    "its exporter is away": (ExporterDown(at=AT, lasts=100.0, node=0), "ExporterDown", []),
}


def story(fault: Fault, alert: str, fleet: Fleet = ONE_NODE, **more: object) -> Scenario:
    """Return a run of two ranks, with steps of a second, whose page is expected."""
    expected = Expected(alert=alert, receiver="page", within=60.0)
    return Scenario(
        title="A fault", story="A fault.", lasts=AT + 240.0, fleet=fleet,
        step=StepTimes(), faults=(fault,), expect=(expected,), **more,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_would_be_done_about_a_fault(name: str) -> None:
    """As the simulation goes on without it: a run that goes on by itself was to be left alone."""
    fault, alert, expected = FAULTS[name]
    outcome = supervise(story(fault, alert))
    assert [(one.trigger, one.verdict) for one in outcome.judged] == expected
    assert precision([outcome]) == (1.0 if not outcome.wrong else 0.0)


ON_NODES: dict[str, tuple[Fault, list[tuple[str, str, str]]]] = {
    "NicLinkDown": (LinkDown(at=AT, node=1), [("hung", "restart", "right")]),
    "GpuEccUncorrected": (Ecc(at=AT, rank=3), [("gpu_fault", "exclude_node", "right")]),
}


@pytest.mark.parametrize("alert", ON_NODES)
def test_a_page_that_explains_others_is_one_to_act_upon(alert: str) -> None:
    """A link that the run stands still for, a GPU that must be reset: people get that page alone, and so would we."""
    fault, expected = ON_NODES[alert]
    outcome = supervise(story(fault, alert, NODES))
    assert [(one.trigger, one.action, one.verdict) for one in outcome.judged] == expected


def test_a_node_that_is_stuck_as_a_whole_is_acted_upon_in_time() -> None:
    """None of its ranks waits for another, as after a mount has hung; those of the other node do, for them."""
    stuck = tuple(Stuck(at=AT, rank=rank, phase="data") for rank in (2, 3))
    (one,) = supervise(replace(story(stuck[0], "RunHung", NODES), faults=stuck)).judged
    assert (one.trigger, one.action, one.verdict) == ("hung", "restart", "right")
    assert one.seconds - AT < 60.0


def test_an_action_where_none_was_needed_is_wrong() -> None:
    """Whatever became of the run: the story has no page to act upon."""
    quiet = story(FAULTS["stuck"][0], "DataStall")
    outcome = supervise(quiet)
    assert not outcome.needs_action
    assert [one.why for one in outcome.wrong] == ["nothing was to be acted upon"]
    assert report([outcome])[1].endswith("0 would have been right, 1 wrong: precision 0.000.")


TWO_NODES = Fleet(run="r", nodes=2, gpus_per_node=1)


def slow(start: float, end: float | None = None, **labels: str) -> Firing:
    """The page of a rank on node-1 of run r that is slow."""
    usual = {"alertname": "StragglerRank", "severity": "critical", "run": "r", "rank": "1"}
    usual["instance"] = TWO_NODES.node_name(1)
    return Firing(usual | labels, start, end, {"description": "Rank 1 is slow."})


LASTS = 2400.0
SLOW_NODES: dict[str, tuple[Fleet, list[Firing], list[tuple[str, str]]]] = {
    "for good": (TWO_NODES, [slow(120.0)], [("exclude_node", "right")]),
    "for half an hour": (TWO_NODES, [slow(120.0, 2100.0)], [("exclude_node", "wrong")]),
    "for a while": (TWO_NODES, [slow(120.0, 1500.0)], []),
    "a ticket, and a page of another run": (TWO_NODES, [slow(120.0, severity="warning"), slow(120.0, run="other")], []),
    "explained by another": (
        TWO_NODES, [slow(120.0), slow(60.0, alertname="NicLinkDown")], [],
    ),
    "on the only node": (ONE_NODE, [slow(120.0, instance=ONE_NODE.node_name(0))], []),
}  # fmt: skip


SHORT = ("for good", "for half an hour", "explained by another")
"""One of each outcome: each plays forty minutes; the others are for `make test-all`."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in SHORT else pytest.mark.slow) for case in SLOW_NODES]
)
def test_what_would_be_done_about_what_alerts_say(case: str) -> None:
    """A run of several nodes with a spare, and the alerts that are neither over nor inhibited."""
    fleet, firings, expected = SLOW_NODES[case]
    told = Expected(alert="StragglerRank", receiver="page", within=60.0)
    scenario = Scenario(title="Slow", story="Slow.", lasts=LASTS, fleet=fleet, step=StepTimes(), expect=(told,))
    assert [(one.action, one.verdict) for one in supervise(scenario, firings).judged] == expected


@pytest.mark.slow
@pytest.mark.prometheus
def test_what_the_rules_fire_is_acted_upon(programs: object) -> None:
    """A rank that is slow for good, by the shipped rules: its node would be left out, once half an hour is over."""
    fault = SlowPhase(at=AT, ranks=(3,), phase="backward", factor=2.0)
    told = Expected(alert="StragglerRank", receiver="page", within=60.0)
    scenario = Scenario(
        title="Slow", story="Slow.", lasts=LASTS, fleet=NODES, step=StepTimes(), faults=(fault,), expect=(told,),
        evaluation=15.0,
    )  # fmt: skip
    (outcome,) = supervise_all([scenario], "system")
    assert [(one.trigger, one.action, one.verdict) for one in outcome.judged] == [("slow", "exclude_node", "right")]
    assert outcome.judged[0].seconds > AT + 1800.0


@pytest.mark.slow
def test_nothing_is_done_on_a_healthy_hour() -> None:
    """Saves, an evaluation, a planned restart, another batch, a normal end."""
    outcome = supervise(day(2, 1, lasts=3600.0))
    assert outcome.judged == ()


@pytest.mark.slow
def test_a_long_save_is_left_alone() -> None:
    """A minute of every five: the exporter and the policy excuse it."""
    healthy = Scenario(
        title="Saves", story="Saves.", lasts=900.0, fleet=Fleet(run="r", nodes=1, gpus_per_node=2),
        checkpoint=Pause(every=300.0, takes=60.0),
    )  # fmt: skip
    assert supervise(healthy).judged == ()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    """Incidents of all kinds, drawn and shipped, on fleets of up to 8 ranks: the precision is at least 0.98."""
    given = ["--count", "40", "--ranks", "8", "--longest", "2400", "--healthy", "1", "--hours", "1", "--jobs", "2"]
    assert command.main(given) == 0, capsys.readouterr().out
