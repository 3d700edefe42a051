"""Triage half a minute after a fault began, and 2, 5, 10 and 20 minutes: it says the same, and nothing against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from tachograph.triage.conclusion import conclude
from tachograph.triage.facts import gather
from tachograph.triage.findings import Triage
from tachograph_lab.replay.moment import answers_at
from tachograph_lab.scenario import Fleet, Scenario
from tachograph_lab.scenario.definition import Pause
from tachograph_lab.scenario.faults import (
    Fault,
    Freeze,
    Kill,
    Nan,
    SlowCheckpoint,
    SlowLoader,
    SlowPhase,
    Stuck,
    ThrottledGpus,
)

pytestmark = [pytest.mark.prometheus, pytest.mark.slow, pytest.mark.timeout(3600)]

BEGINS = 1500.0
"""After which the run knows what is usual for it."""

AGES = (30.0, 120.0, 300.0, 600.0, 1200.0)


@dataclass(frozen=True)
class Case:
    """A fault, the failure mode that triage finds, from which age on, and whether the run makes steps."""

    fault: Fault
    mode: str
    since: float = 30.0
    steps: bool = False
    saves: Pause | None = None


CASES: Mapping[str, Case] = {
    "stuck in its loader": Case(Stuck(at=BEGINS, rank=5, phase="data"), "communication_stall"),
    "stuck in backward": Case(Stuck(at=BEGINS, rank=5, phase="backward"), "communication_stall"),
    "frozen": Case(Freeze(at=BEGINS, rank=5), "frozen"),
    "killed": Case(Kill(at=BEGINS, rank=5, others="hang"), "rank_died"),
    "NaN": Case(Nan(at=BEGINS, rank=5), "not_finite", steps=True),
    "late": Case(SlowPhase(at=BEGINS, ranks=(5,), phase="backward", factor=1.6), "straggler", 120.0, steps=True),
    "hot": Case(ThrottledGpus(at=BEGINS, ranks=(5,), to=0.6), "gpu_straggler", 120.0, steps=True),
    "data come late": Case(SlowLoader(at=BEGINS, adds=0.5), "data_stall", 120.0, steps=True),
    "saves grow from 40 ms to 45 s": Case(
        SlowCheckpoint(at=BEGINS - 100, takes=45.0), "slow_save", steps=True, saves=Pause(every=120.0, takes=0.04)
    ),
}


def at_all_ages(case: Case) -> Mapping[float, Triage]:
    """Return what triage says of eight ranks on two nodes at each age of a fault."""
    story = Scenario(
        title="A fault", story="A fault.", lasts=BEGINS + AGES[-1] + 60,
        fleet=Fleet(run="r", nodes=2, gpus_per_node=4), faults=(case.fault,), checkpoint=case.saves,
    )  # fmt: skip
    asked: list[str] = []
    gather("r", 0.0, lambda query: asked.append(query) or [])
    found = answers_at(story, [BEGINS + age for age in AGES], asked)
    return {age: conclude(gather("r", BEGINS + age, found[BEGINS + age].__getitem__)) for age in AGES}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_the_same_at_every_age(name: str) -> None:
    """The mode and the rank stand from the age on at which it is known, and no answer contradicts the first line."""
    case = CASES[name]
    for age, said in at_all_ages(case).items():
        finding, answers = said.finding, {one.name: one for one in said.answers}
        if age < case.since:
            assert not finding.wrong, age
            continue
        assert finding.mode == case.mode, age
        assert finding.ranks in ((), ("5",)), age
        if hasattr(case.fault, "rank"):
            assert finding.ranks == ("5",), age
        assert answers["progress"].answer == ("yes" if case.steps else "no"), age
        if not case.steps:
            assert answers["speed"].answer != "yes", age
        if case.mode.endswith("straggler"):
            assert finding.ranks == ("5",), age
            speed = "; ".join(answers["speed"].evidence)
            assert "communication" not in speed, age
            assert "take turns" not in speed, age
