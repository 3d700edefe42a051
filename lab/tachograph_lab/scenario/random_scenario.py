"""Random scenarios: a fleet, its habits and one random incident, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tachograph.text.humanize import duration, plural
from tachograph_lab.scenario import Expected, Fleet, Learning, Pause, Scenario, StepTimes, Tolerated, Work
from tachograph_lab.scenario.definition import EVALUATION_SECONDS
from tachograph_lab.scenario.random_incidents import KINDS, RUN, FaultSite, IncidentKind

SHAPES = ((1, 2), (1, 4), (1, 8), (2, 8), (3, 4), (4, 8), (8, 8), (16, 8), (32, 8))
"""Nodes and GPUs per node, for 2 to 256 ranks."""

STEPS = (0.4, 1.0, 1.0, 2.5, 12.0)
"""Seconds per step; the last is a slow run, for which the rules use longer windows."""

FIELD_STEPS = (0.05, 0.4, 1.0, 2.5, 12.0, 40.0, 200.0)
FIELD_INTERVALS = (5.0, 15.0, 30.0)
FIELD_STAGES = 4
"""Drawn for a campaign with `field`, besides loops that mark everything or nothing: steps, intervals, uneven stages."""

FAST_STEP, FAST_RANKS = 0.1, 64
"""The largest fleet with steps below this: the simulation of each takes its time, however short it is."""

SWIFT = ("RankDead", "LossNotFinite", "GpuXidFatal", "GpuEccUncorrected", "GpuLost")
SWIFT_SECONDS = 10.0
"""Alerts whose usual budget is this; with slower scrapes it is 2 s, two scrapes and two evaluations."""


@dataclass(frozen=True)
class FieldHabits:
    """How the field runs a training: how long a step takes, how often Prometheus looks, what the loop marks."""

    step: float
    interval: float = EVALUATION_SECONDS
    loop: str = "marked"
    stages: tuple[float, ...] | None = None

    @property
    def words(self) -> str:
        """The unusual ones, for a title."""
        parts = [f"{self.interval:g} s scrapes"] * (self.interval != EVALUATION_SECONDS)
        parts += ["basic loop"] * (self.loop == "basic") + ["uneven stages"] * (self.stages is not None)
        return "".join(f", {part}" for part in parts)


def field_habits(dice: Random, kind: IncidentKind, fleet: Fleet) -> FieldHabits:
    """Draw habits that a kind of incident and a fleet allow."""
    slowest = kind.slowest if kind.slow_steps else 2.5
    steps = [step for step in FIELD_STEPS if step <= slowest and (step >= FAST_STEP or fleet.ranks <= FAST_RANKS)]
    # A node must lie within a stage: else a late one is late in one stage and not in the other.
    can_be_uneven = fleet.nodes % FIELD_STAGES == 0 or (fleet.nodes == 1 and fleet.ranks % FIELD_STAGES == 0)
    uneven = dice.random() < 0.5 and can_be_uneven and kind.uneven
    stages = (*[1.0] * (FIELD_STAGES - 1), round(dice.uniform(1.1, 1.3), 2)) if uneven else None
    return FieldHabits(
        step=dice.choice(steps),
        interval=dice.choice(FIELD_INTERVALS),
        loop=dice.choice(("marked", "basic")),
        stages=stages,
    )


def _patient(expected: Expected, habits: FieldHabits) -> Expected:
    """Return an expectation with the budget of these scrapes."""
    if habits.interval == EVALUATION_SECONDS:
        return expected
    if expected.alert in SWIFT:
        within = expected.within - SWIFT_SECONDS + 2
        return replace(expected, within=within, plus_scrapes=2, plus_evaluations=2)
    return replace(expected, plus_scrapes=3)


def step_times(seconds: float, noise: float, stages: tuple[float, ...] | None = None) -> StepTimes:
    """Return the phases of an ordinary step of this length."""
    shape = StepTimes(stages=stages)
    scale = seconds / shape.seconds
    return StepTimes(
        data=shape.data * scale, copy=shape.copy * scale, forward=shape.forward * scale,
        backward=shape.backward * scale, optimizer=shape.optimizer * scale, collective=shape.collective * scale,
        noise=noise, stages=stages,
    )  # fmt: skip


def generate(number: int, seed: int, field: bool = False) -> Scenario:
    """Return scenario `number` of a campaign; the same arguments always give the same scenario.

    `field`: with habits of the field, that is any step, slower scrapes, basic loops, and uneven pipeline stages.
    """
    dice = Random(f"{seed}/{number}")
    kind = KINDS[number % len(KINDS)]
    nodes, gpus = dice.choice([s for s in SHAPES if s[0] >= kind.nodes and s[0] * s[1] >= kind.ranks])
    habits = FieldHabits(dice.choice(STEPS if kind.slow_steps else STEPS[:-1]))
    fleet = Fleet(run=RUN, nodes=nodes, gpus_per_node=gpus)
    if field:
        habits = field_habits(Random(f"field/{seed}/{number}"), kind, fleet)
        fleet = replace(fleet, pipeline=FIELD_STAGES if habits.stages else 1)
    at = kind.warm_up + dice.uniform(0, 60) + 20 * habits.step
    place = FaultSite(dice, fleet, habits.step, at, _culprit(dice, fleet))
    incident = kind.make(place)
    drawn_seed = dice.randrange(2**31)
    scenario = Scenario(
        title=f"{number}: {kind.word}, {fleet.ranks} ranks on {plural(nodes, 'node')}, "
        f"{duration(habits.step)} per step{habits.words}",
        story=f"{kind.word} at {at:.0f} s; culprit rank {place.rank} on {fleet.node_name(place.node)}",
        seed=drawn_seed,
        lasts=at,
        scrape=habits.interval,
        evaluation=habits.interval if field else None,
        fleet=fleet,
        loop=habits.loop,
        step=step_times(habits.step, dice.choice((0.01, 0.02, 0.03)), habits.stages),
        work=Work(tokens=8192.0 * fleet.ranks * habits.step),
        learning=Learning(loss=replace(kind.loss, halves=max(350.0, 600 / habits.step))),
        checkpoint=Pause(every=7200.0, takes=30.0),
        faults=(incident.fault,),
        expect=tuple(_patient(expected, habits) for expected in incident.expect),
        may=incident.may + _made_so(fleet),
    )
    after = max(kind.after, *(scenario.limit(expected) + 120 for expected in scenario.expect), 0)
    return replace(scenario, lasts=round(at + after + place.steps(3)))


def _made_so(fleet: Fleet) -> tuple[Tolerated, ...]:
    """Return the ticket of a stage of one rank, slow by design, which may be a fault for six minutes."""
    if fleet.pipeline != fleet.ranks:
        return ()
    return (Tolerated(alert="StragglerRank", receiver="ticket", labels={"rank": str(fleet.ranks - 1)}),)


def _culprit(dice: Random, fleet: Fleet) -> int:
    """Draw a rank: of uneven stages one of the last, as only what makes the slowest slower is anybody's concern."""
    of_a_stage = fleet.ranks // fleet.pipeline
    return fleet.ranks - of_a_stage + dice.randrange(of_a_stage)
