"""The time of single steps beyond the usual time of their rank, by phase."""

from __future__ import annotations

import random

import pytest

from tachograph.catalog.rank import PHASES, USUAL_PHASES
from tachograph.client.core.steps import StepRecord
from tachograph.client.signals.phase_excess import LEAST_STEPS, WINDOW, PhaseExcess

USUAL = {"data": 0.01, "forward": 0.1, "backward": 0.2, "optimizer": 0.05}


class Rank:
    """Makes one rank's records, a step at a time."""

    def __init__(self) -> None:
        self.excess = PhaseExcess()
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._wait = 0.0
        self._number = 0
        self.step(tag="warm-up", init=5.0)

    def step(self, tag: str | None = None, wait: float = 0.0, skip: int = 0, **more: float) -> None:
        """Complete a usual step with `more` seconds in some phases, and `wait` of exposed wait."""
        before = sum(self._seconds.values())
        for name, seconds in {**USUAL, **{name: USUAL.get(name, 0.0) + each for name, each in more.items()}}.items():
            self._seconds[name] += seconds
        self._wait += wait
        self._number += skip
        now = sum(self._seconds.values())
        self.excess.observe(StepRecord(self._number, before, now, tag, tuple(self._seconds.values()), self._wait))
        self._number += 1

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def told(self) -> dict[str, float]:
        ((key, seconds),) = self.excess.metrics().items()
        assert key == "phase_excess_seconds_total"
        assert isinstance(seconds, dict)
        assert set(seconds) == set(USUAL_PHASES)
        return {name: each for name, each in seconds.items() if each}


def test_every_phase_is_there_from_the_start() -> None:
    """A counter born at its first value would hide it from `increase`."""
    ((_, seconds),) = PhaseExcess().metrics().items()
    assert seconds == dict.fromkeys(USUAL_PHASES, 0.0)


def test_a_slow_step_is_named_by_its_phase() -> None:
    """Only what lies above the usual time counts, and only in the phase where it lies."""
    rank = Rank()
    rank.steps(20)
    for phase in ("backward", "data", "copy"):
        rank.step(**{phase: 0.08})
        rank.steps(5)
    assert rank.told() == {name: pytest.approx(0.08) for name in ("backward", "data", "copy")}


def test_nothing_before_there_is_a_usual_time() -> None:
    """The first steps are no measure of themselves."""
    rank = Rank()
    for _ in range(LEAST_STEPS):
        rank.step(forward=random.Random(1).random())
    assert rank.told() == {}


def test_small_differences_are_noise() -> None:
    """Up to 5 % of a step adds nothing, in any number of steps and phases."""
    rank, noise = Rank(), random.Random(2)
    for _ in range(500):
        rank.step(**{name: noise.uniform(0, 0.017) for name in USUAL})
    assert rank.told() == {}


def test_the_wait_for_others_is_not_ours() -> None:
    """When another rank is late, backward is longer by the exposed wait in it: that adds nothing here."""
    rank = Rank()
    rank.steps(20)
    rank.step(backward=0.3, wait=0.3)
    rank.step(collective=0.4, wait=0.4)  # marked: the wait has a phase of its own
    rank.step(backward=0.1, collective=0.4, wait=0.5)  # both
    assert rank.told() == {}
    rank.step(backward=0.5, wait=0.3)
    assert rank.told() == {"backward": pytest.approx(0.2)}
    rank.step(backward=0.2, collective=0.4, wait=0.4)  # the marked wait is not taken from backward's own slowness
    assert rank.told() == {"backward": pytest.approx(0.4)}


def test_a_wait_that_comes_late_or_falls_adds_nothing_false() -> None:
    """On a GPU waits are known steps later; busy time is never below zero, and a wait that ends is no negative one."""
    rank = Rank()
    rank.steps(20)
    rank.step(wait=5.0)
    rank.step(wait=-5.0)
    assert rank.told() == {}
    for _ in range(WINDOW):
        rank.step(wait=5.0)
    rank.step()
    assert rank.told() == {"backward": pytest.approx(USUAL["backward"])}


def test_tagged_steps_and_gaps_are_left_out() -> None:
    """A checkpoint's step, and steps that were lost on the way, are neither excess nor baseline."""
    rank = Rank()
    rank.steps(20)
    for tag in ("checkpoint", "gc", "eval"):
        rank.step(tag=tag, forward=3.0)
    rank.step(skip=900, forward=400.0)
    rank.steps(3)
    assert rank.told() == {}
    rank.step(forward=0.1)
    assert rank.told() == {"forward": pytest.approx(0.1)}


def test_numbers_may_go_in_any_stride() -> None:
    """A loop that numbers its steps 0, 10, 20 is measured like any other."""
    rank = Rank()
    for _ in range(20):
        rank.step(skip=9)
    rank.step(skip=9, forward=0.2)
    assert rank.told() == {"forward": pytest.approx(0.2)}


def test_checkpoints_and_evaluation_between_steps_are_no_excess() -> None:
    """They come when they are due; the step after one is ordinary."""
    rank = Rank()
    rank.steps(20)
    rank.step(checkpoint=30.0, eval=60.0)
    assert rank.told() == {}


def test_what_an_evaluation_does_is_no_excess() -> None:
    """It runs forward and waits for data as training does; phases inside `eval` are not the next step's."""
    rank = Rank()
    rank.steps(20)
    rank.step(eval=1.0, forward=9.0, data=3.0)
    assert rank.told() == {}
    rank.step(forward=0.1)
    assert rank.told() == {"forward": pytest.approx(0.1)}


def test_slow_for_good_becomes_the_usual() -> None:
    """Within the window the median has moved; from then on it adds nothing more."""
    rank = Rank()
    rank.steps(WINDOW)
    for _ in range(WINDOW):
        rank.step(forward=0.1)
    added = rank.told()["forward"]
    assert added == pytest.approx(0.1 * WINDOW / 2, rel=0.1)
    for _ in range(200):
        rank.step(forward=0.1)
    assert rank.told() == {"forward": added}


def test_rotating_stragglers_are_invisible_in_averages_and_visible_here() -> None:
    """Four ranks, each 20 % slow in backward on every fourth step: equal sums, and excess that names the phase."""
    ranks = [Rank() for _ in range(4)]
    for number in range(400):
        for index, rank in enumerate(ranks):
            late = number % 4 == index
            rank.step(backward=0.07, wait=0.0 if late else 0.07)
    assert len({round(sum(rank._seconds.values()), 6) for rank in ranks}) == 1
    for rank in ranks:
        assert set(rank.told()) == {"backward"}
        assert rank.told()["backward"] == pytest.approx(0.07 * (400 - LEAST_STEPS) / 4, rel=0.05)
