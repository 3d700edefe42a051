"""Goodput: every second of a rank is counted exactly once, and never taken back."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tachograph.catalog.rank import LOST_CAUSES, PHASES
from tachograph.client.core import phases
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.steps import StepRecord
from tachograph.client.signals.goodput import HANG_SECONDS, HANG_STEPS, LONGEST_GAP, MEDIAN_OF, UNDECIDED_STEPS, Goodput

EPOCH = 1_763_690_000.0


class Number:
    """Which step is next, and what came before the first one."""

    next = 0
    before: tuple[float, ...] | None = None


@dataclass
class Rank:
    """A rank that trains by hand: time passes in phases, steps are completed, and the sender asks now and then."""

    now: list[float]
    last_step: int | None = None
    ended: float | None = None
    wait: float = 0.0
    answered: bool = True
    told: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock, self.step = PhaseClock(), Number()
        self.began = self.completed = self.now[0]
        self.goodput = Goodput(
            self.clock,
            self.step,  # type: ignore[arg-type]
            lambda: self.last_step if self.answered else None,
            lambda: self.ended if self.answered else None,
            answered=lambda: self.answered,
            now=lambda: EPOCH + self.now[0] - self.began,
        )

    def spend(self, seconds: float, phase: str | None = None) -> None:
        if phase is None:
            self.now[0] += seconds
            return
        with self.clock.phases[phase]:
            self.now[0] += seconds

    def begin(self, number: int | None = None) -> None:
        """Enter a step, of this number or the next one."""
        if number is not None:
            self.step.next = number
        if self.step.before is None:
            if self.clock.current.name == "init":  # as Step does: init ends with the first step
                self.clock.phases["other"].__enter__()
            self.step.before = tuple(self.clock.phases[phase].seconds for phase in PHASES)

    def give_up(self) -> None:
        """Leave the first step without completing it."""
        self.step.before = None

    def complete(self, tag: str | None = None, wait: float = 0.0, number: int | None = None, **seconds: float) -> None:
        """Complete a step with the given seconds per phase, `wait` of them exposed."""
        self.begin(number)
        for phase, spent in seconds.items():
            self.spend(spent, phase)
        self.wait += wait
        self.record(tag, self.wait)

    def record(self, tag: str | None = None, wait: float = 0.0, **over: Any) -> None:
        booked = self.clock.read()[2]
        record = StepRecord(
            self.step.next, self.completed, self.now[0], tag, tuple(booked[phase] for phase in PHASES), wait
        )
        self.step.next += 1
        self.completed = self.now[0]
        self.goodput.observe(record._replace(**over))

    def ask(self) -> dict[str, float]:
        """The seconds reported so far: productive ones, and those lost by cause; without zeros."""
        metrics = dict(self.goodput.metrics())
        lost = metrics["lost_seconds_total"]
        assert isinstance(lost, dict)
        assert tuple(lost) == LOST_CAUSES
        told = {"productive": metrics["productive_seconds_total"], **lost}
        for before in self.told[-1:]:
            fell = {place for place in told if told[place] < before[place]}
            assert not fell, f"{fell} fell"
        self.told.append(told)
        return {place: pytest.approx(seconds) for place, seconds in told.items() if seconds}

    def total(self) -> float:
        return sum(self.told[-1].values())


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the phase clock sees."""
    moment = [100.0]
    monkeypatch.setattr(phases, "perf_counter", lambda: moment[0])
    return moment


@pytest.fixture
def rank(now: list[float]) -> Rank:
    return Rank(now)


def test_each_phase_has_its_place(rank: Rank) -> None:
    """Compute, copies, the optimizer and the rest of a step are productive; everything else is lost to its cause."""
    rank.spend(7.0)
    rank.complete(data=1.0, copy=0.5, forward=2.0, backward=3.0, optimizer=1.0, other=0.25, collective=0.75)
    rank.complete(data=1.0, forward=2.0, checkpoint=4.0, eval=5.0)
    assert rank.ask() == {
        "productive": 8.75, "init": 7.0, "data": 2.0, "collective": 0.75, "checkpoint": 4.0, "eval": 5.0,
    }  # fmt: skip
    assert rank.total() == pytest.approx(rank.now[0] - rank.began)


def test_nothing_is_known_before_anything_happened(rank: Rank) -> None:
    """All causes are there at 0 from the first frame on."""
    assert rank.ask() == {}


def test_exposed_wait_is_taken_from_the_compute_it_hides_in(rank: Rank) -> None:
    """DDP waits inside backward; a marked collective is in its phase already and counts once."""
    rank.complete(forward=1.0, backward=3.0, wait=2.0)
    assert rank.ask() == {"productive": 2.0, "collective": 2.0}
    rank.complete(forward=1.0, backward=3.0, collective=1.5, wait=1.5 + 0.5)
    assert rank.ask() == {"productive": 2.0 + 3.5, "collective": 2.0 + 2.0}


def test_more_wait_than_there_was_time(rank: Rank) -> None:
    """Waits on two threads may overlap: a step has no more seconds to lose than it took."""
    rank.complete(forward=1.0, data=1.0, wait=50.0)
    assert rank.ask() == {"collective": 1.0, "data": 1.0}


def test_a_step_under_way_is_booked_by_its_phases(rank: Rank) -> None:
    """A frame in the middle of a step accounts for every second until then."""
    rank.complete(forward=1.0)
    rank.spend(0.5, "data")
    assert rank.ask() == {"productive": 1.0, "data": 0.5}
    rank.spend(2.0)
    assert rank.ask() == {"productive": 3.0, "data": 0.5}


def test_a_wait_that_is_known_later_makes_nothing_fall(rank: Rank) -> None:
    """Counted as compute at first, it becomes a wait at the step's end: counters pause, and the sum is right.

    After one step like it, both are as if it had been known from the start.
    """
    rank.complete(forward=1.0)
    rank.spend(4.0, "backward")
    assert rank.ask() == {"productive": 5.0}
    rank.complete(wait=3.0)
    assert rank.ask() == {"productive": 5.0}
    rank.complete(data=1.0)
    rank.ask()
    assert rank.total() == pytest.approx(6.0)
    rank.complete(forward=4.0)
    assert rank.ask() == {"productive": 6.0, "collective": 3.0, "data": 1.0}


def test_repeated_steps_are_rework(now: list[float]) -> None:
    """Steps below the one an earlier process was at were done before; their loading and waiting are rework, too."""
    rank = Rank(now, last_step=402)
    rank.step.next = 400
    rank.spend(10.0)
    rank.complete(data=1.0, forward=2.0, wait=0.5)
    rank.complete(forward=2.0, eval=3.0)
    assert rank.ask() == {"init": 10.0, "rework": 8.0}
    rank.complete(data=1.0, forward=2.0, wait=0.5)
    assert rank.ask() == {"init": 10.0, "rework": 8.0, "productive": 1.5, "data": 1.0, "collective": 0.5}


def test_a_repeated_step_is_rework_while_it_lasts(now: list[float]) -> None:
    """Its number is known before it is completed."""
    rank = Rank(now, last_step=1)
    rank.complete(forward=1.0)
    rank.step.next = 0
    rank.spend(3.0, "backward")
    assert rank.ask() == {"rework": 4.0}


@pytest.mark.parametrize("asks", [True, False])
def test_what_precedes_the_first_step_is_what_its_phase_says(now: list[float], asks: bool) -> None:
    """A resumed loader that skips what was trained on waits for data, before a new step and before a repeated one."""
    for begin, repeated in ((40, 0), (35, 5), (0, 40), (55, 0)):
        rank = Rank(now, last_step=40)
        rank.spend(1.0)
        for _ in range(8):
            rank.spend(1.0, "data")
            if asks:
                rank.ask()
        rank.spend(2.0, "eval")
        if asks:
            rank.ask()
        rank.begin(begin)
        for step in range(80):
            rank.complete(number=begin + step, forward=0.1)
            if asks:
                rank.ask()
        rework = {"rework": repeated * 0.1} if repeated else {}
        assert rank.ask() == {"init": 1.0, "data": 8.0, "eval": 2.0, "productive": 8.0 - repeated * 0.1, **rework}


def test_a_first_step_that_is_given_up_repeats_nothing(now: list[float]) -> None:
    """A loop without marks begins a step with each batch, and trains on none of those that it skips."""
    rank = Rank(now, last_step=40)
    for _ in range(5):
        rank.begin()
        rank.spend(1.0, "data")
        rank.ask()
        rank.give_up()
        rank.spend(1.0, "data")
        rank.ask()
    rank.complete(number=35, forward=0.5)
    assert rank.ask() == {"data": 10.0, "rework": 0.5}


def test_a_first_step_whose_number_comes_late_is_no_rework(now: list[float]) -> None:
    """Until it is completed under its number it is booked by its phases: only then is it certain what it repeats."""
    rank = Rank(now, last_step=40)
    rank.begin()
    for _ in range(30):
        rank.spend(1.0, "forward")
        rank.ask()
    rank.complete(number=40)
    assert rank.ask() == {"productive": 30.0}


def test_an_answer_that_comes_late_finds_the_steps_it_is_about(now: list[float]) -> None:
    """What was completed before the exporter answered is judged by its answer: the earlier process had done 40."""
    rank = Rank(now, last_step=40, answered=False)
    for step in range(50):
        rank.complete(number=35 + step, forward=0.1)
    rank.answered = True
    assert rank.ask() == {"productive": 4.5, "rework": 0.5}


def test_steps_without_an_answer_are_new(now: list[float]) -> None:
    """A sink without an exporter is told of them at once, and none is lost or counted twice afterwards."""
    rank = Rank(now, last_step=40, answered=False)
    for step in range(3 * UNDECIDED_STEPS):
        rank.complete(number=100 + step, forward=0.1)
        if step % 100 == 0:
            assert rank.ask() == {"productive": 0.1 * (step + 1)}
    rank.answered = True
    assert rank.ask() == {"productive": 0.1 * 3 * UNDECIDED_STEPS}


def test_a_resume_without_lost_steps_is_no_rework(now: list[float]) -> None:
    """From the very step the earlier process was at, or with a step 0 that nobody did, all work is new."""
    for last_step in (None, 0, 400):
        rank = Rank(now, last_step=last_step)
        rank.step.next = 400
        rank.complete(forward=2.0)
        assert rank.ask() == {"productive": 2.0}


def hang_limit(step: float) -> float:
    return HANG_SECONDS + HANG_STEPS * step


def test_a_hang_shows_while_it_lasts(rank: Rank) -> None:
    """Heartbeats continue while the training thread is blocked: beyond 15 s and three steps, that is a hang."""
    for _ in range(5):
        rank.complete(forward=1.0, backward=1.0)
    with rank.clock.phases["backward"]:
        for _ in range(60):
            rank.spend(1.0)
            rank.ask()
    assert hang_limit(2.0) == 21.0
    assert rank.ask() == {"productive": 10.0 + 21.0, "hang": 39.0}
    rank.complete(wait=59.0)
    rank.complete(forward=100.0)  # as the wait was booked as compute first
    told = rank.ask()
    assert told["hang"] == 39.0 + 100.0 - 21.0
    assert rank.total() == pytest.approx(170.0)


@pytest.mark.parametrize("phase", ["data", "collective", "backward"])
def test_a_hang_is_one_wherever_it_sits(rank: Rank, phase: str) -> None:
    """Only time beyond the limit is moved out of its phase."""
    rank.complete(forward=2.0)
    rank.complete(forward=0.5, **{phase: 100.0})
    place = phase if phase in LOST_CAUSES else "productive"
    booked = {"productive": 2.5, "hang": 100.5 - 21.0}
    booked[place] = booked.get(place, 0.0) + 20.5
    assert rank.ask() == booked


@pytest.mark.parametrize("phase", ["checkpoint", "eval"])
def test_a_long_checkpoint_or_evaluation_is_no_hang(rank: Rank, phase: str) -> None:
    """They may take long, and say why."""
    rank.complete(forward=2.0)
    rank.spend(300.0, phase)
    assert rank.ask() == {"productive": 2.0, phase: 300.0}
    rank.complete(forward=2.0)
    assert rank.ask() == {"productive": 4.0, phase: 300.0}


def test_before_the_first_step_nobody_knows_a_hang(rank: Rank) -> None:
    """A first step compiles and connects for minutes, and there is no usual one yet."""
    rank.spend(600.0)
    rank.complete(forward=300.0)
    assert rank.ask() == {"init": 600.0, "productive": 300.0}


def test_the_usual_step_is_the_median_of_ordinary_ones(rank: Rank) -> None:
    """Neither tagged steps nor single slow ones make a hang come later, and old steps are forgotten."""
    for _ in range(9):
        rank.complete(forward=1.0)
        rank.complete(tag="compile", forward=14.0)
    rank.complete(forward=14.0)
    before = sum(rank.ask()[place].expected for place in ("productive",))
    rank.spend(100.0, "forward")
    assert rank.ask() == {"productive": before + hang_limit(1.0), "hang": 100.0 - hang_limit(1.0)}
    for _ in range(MEDIAN_OF):
        rank.complete(forward=4.0)
    hung = rank.ask()["hang"].expected
    rank.spend(100.0, "forward")
    assert rank.ask()["hang"] == hung + 100.0 - hang_limit(4.0)


def test_a_hang_in_a_repeated_step(now: list[float]) -> None:
    """Its seconds are a hang's, not rework: the step alone would not have taken them."""
    rank = Rank(now, last_step=100)
    rank.complete(forward=1.0)
    rank.complete(forward=100.0)
    assert rank.ask() == {"rework": 1.0 + hang_limit(1.0), "hang": 100.0 - hang_limit(1.0)}


def test_the_gap_to_an_earlier_process(rank: Rank) -> None:
    """From when it was last heard to when this recorder was made: once, also if it is known only later."""
    rank.spend(5.0)
    assert rank.ask() == {"init": 5.0}
    rank.ended = EPOCH - 90.0
    assert rank.ask() == {"init": 5.0, "restart": 90.0}
    rank.ended = EPOCH - 500.0
    rank.spend(5.0)
    assert rank.ask() == {"init": 10.0, "restart": 90.0}
    assert rank.total() == pytest.approx(90.0 + 10.0)


@pytest.mark.parametrize("gap", [-1.0, LONGEST_GAP + 1, math.nan, math.inf, -math.inf])
def test_a_gap_that_cannot_be(now: list[float], gap: float) -> None:
    """Beyond a day, before it began or no number at all: dropped, for good."""
    rank = Rank(now, ended=EPOCH - gap)
    rank.spend(2.0)
    assert rank.ask() == {"init": 2.0}
    rank.ended = EPOCH - 5.0
    assert rank.ask() == {"init": 2.0}


def test_a_gap_of_a_day_and_of_nothing(now: list[float]) -> None:
    """Both ends of what is taken."""
    assert Rank(now, ended=EPOCH - LONGEST_GAP).ask() == {"restart": LONGEST_GAP}
    assert Rank(now, ended=EPOCH).ask() == {}


@pytest.mark.parametrize("over", [
    {"wait": math.nan}, {"wait": -5.0}, {"wait": math.inf}, {"seconds": (math.nan,) * len(PHASES)},
    {"seconds": (-1.0,) * len(PHASES)}, {"seconds": (math.inf,) * len(PHASES)},
    {"began": math.nan, "ended": math.nan}, {"ended": -1e9}, {"number": -1}, {"number": 10**12},
])  # fmt: skip
def test_a_reading_that_is_none_costs_nothing(rank: Rank, over: dict[str, Any]) -> None:
    """NaN, or a clock that jumped: its seconds are booked with the next step's, nothing falls and nothing is lost."""
    rank.complete(data=1.0, forward=2.0)
    rank.spend(3.0, "forward")
    rank.record(**over)
    rank.ask()
    rank.complete(data=1.0, forward=2.0)
    assert rank.ask() == {"productive": 7.0, "data": 2.0}


def test_every_second_is_in_one_place(now: list[float]) -> None:
    """Whatever happens, the sum is the wall time since the recorder was made and the gap, at each frame."""
    chance = random.Random(4)
    rank = Rank(now, last_step=20, ended=EPOCH - 33.0)
    rank.spend(9.0)
    for step in range(300):
        for _ in range(chance.randrange(4)):
            rank.spend(chance.choice((0.0, 0.1, 1.0, 40.0)), chance.choice(PHASES[1:]))
            rank.ask()
            assert rank.total() == pytest.approx(33.0 + rank.now[0] - rank.began)
        rank.complete(tag=chance.choice((None, "gc")), forward=1.0, wait=chance.choice((0.0, 0.3, 2.0)))
        if step % 3 == 0:
            rank.ask()
            assert rank.total() == pytest.approx(33.0 + rank.now[0] - rank.began)
    assert all(rank.told[-1][place] > 0 for place in ("productive", *LOST_CAUSES))


def test_what_was_told_becomes_what_is_true(now: list[float]) -> None:
    """A rank that is asked at each moment ends up with the same as one that is asked once."""
    often, once = Rank(now), Rank(now)

    def both(act: Callable[[Rank], None]) -> None:
        start = now[0]
        act(once)
        now[0] = start
        act(often)

    for _ in range(50):
        both(lambda rank: rank.complete(data=0.2))
        both(lambda rank: rank.spend(1.5, "backward"))
        often.ask()
        both(lambda rank: rank.complete(forward=0.5, wait=0.7))
        often.ask()
    both(lambda rank: rank.complete(forward=5.0))
    assert often.ask() == once.ask()


def test_it_follows_a_real_clock() -> None:
    """With real phases on a real clock the sum is the time that passed, at whatever moment it was read."""
    earliest = phases.perf_counter()
    clock, step = PhaseClock(), Number()
    latest = phases.perf_counter()
    goodput = Goodput(clock, step, lambda: None, lambda: None)  # type: ignore[arg-type]
    for _ in range(200):
        with clock.phases["forward"]:
            sum(range(1000))
        with clock.phases["data"]:
            sum(range(1000))
        booked = clock.read()[2]
        goodput.observe(StepRecord(step.next, 0.0, 0.0, None, tuple(booked[phase] for phase in PHASES), 0.0))
        asked = phases.perf_counter()
        metrics: dict[str, Any] = dict(goodput.metrics())
        told = metrics["productive_seconds_total"] + sum(metrics["lost_seconds_total"].values())
        assert asked - latest - 1e-6 <= told <= phases.perf_counter() - earliest + 1e-6
