"""Shadow mode over incidents of the lab: what it would have done is right, and on a healthy day it is nothing."""

from __future__ import annotations

import pytest

from tachograph_lab.commands import supervised as command
from tachograph_lab.commands.healthy import day
from tachograph_lab.replay.supervised import on_one_node, precision, report, supervise
from tachograph_lab.scenario import Fleet, Scenario, StepTimes
from tachograph_lab.scenario.definition import Expected, Pause
from tachograph_lab.scenario.faults import ExporterDown, Fault, Freeze, Kill, Nan, PauseOnce, SlowPhase, Stuck

AT = 60.0
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


def story(fault: Fault, alert: str, **more: object) -> Scenario:
    """Return a run of two ranks, with steps of a second, whose page is expected."""
    expected = Expected(alert=alert, receiver="page", within=60.0)
    return Scenario(
        title="A fault", story="A fault.", lasts=AT + 240.0, fleet=Fleet(run="r", nodes=1, gpus_per_node=2),
        step=StepTimes(), faults=(fault,), expect=(expected,), **more,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_would_be_done_about_a_fault(name: str) -> None:
    """As the simulation goes on without it: a run that goes on by itself was to be left alone."""
    fault, alert, expected = FAULTS[name]
    outcome = supervise(story(fault, alert))
    assert [(one.trigger, one.verdict) for one in outcome.judged] == expected
    assert precision([outcome]) == (1.0 if not outcome.wrong else 0.0)


def test_an_action_where_none_was_needed_is_wrong() -> None:
    """Whatever became of the run: the story has no page to act upon."""
    quiet = story(FAULTS["stuck"][0], "StragglerRank")
    outcome = supervise(quiet)
    assert not outcome.needs_action
    assert [one.why for one in outcome.wrong] == ["nothing was to be acted upon"]
    assert report([outcome])[1].endswith("0 would have been right, 1 wrong: precision 0.000.")


def test_a_run_of_several_nodes_is_put_on_one() -> None:
    """With its faults of nodes; one of several runs, or of more ranks than a user may have, is left out."""
    wide = Scenario(
        title="Wide", story="Wide.", lasts=99.0, fleet=Fleet(run="r", nodes=4, gpus_per_node=4),
        faults=(ExporterDown(at=9.0, lasts=5.0, node=3),),
    )  # fmt: skip
    one = on_one_node(wide)
    assert one is not None
    assert (one.fleet.nodes, one.fleet.ranks) == (1, 16)
    assert one.faults == (ExporterDown(at=9.0, lasts=5.0, node=0),)
    assert on_one_node(Scenario(title="", story="", lasts=9.0, fleet=Fleet(nodes=16))) is None
    assert on_one_node(Scenario(title="", story="", lasts=9.0, runs=(wide,))) is None


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
