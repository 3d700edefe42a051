"""Figures of a rank's last ordinary steps, however long steps take."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tachograph.catalog.rank import PHASES, TRAIN_METRICS
from tachograph.client.core.counters import Counter
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.steps import Step, StepRecord, step_record
from tachograph.client.signals.recent_steps import RecentSteps
from tachograph.client.signals.wait_by_lengths import Length, WaitByLengths

SHARES = {"data": 0.05, "forward": 0.3, "backward": 0.5, "optimizer": 0.15}
KEYS = {"recent_step_seconds", "recent_steps", "recent_phase_seconds", "recent_wait_seconds"}


class Rank:
    """A rank whose steps take `length`, a tenth of it waiting in backward; `now` is its time."""

    def __init__(self, length: float, wait: float = 0.1) -> None:
        self.now = 1000.0
        self.recent = RecentSteps(lambda: self.now)
        self.length = length
        self._wait_share = wait
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._wait = 0.0
        self._number = 0
        self.step(tag="warm-up", init=5.0, forward=30.0)

    def step(self, tag: str | None = None, wait: float = 0.0, skip: int = 0, **more: float) -> None:
        """Complete a step with `more` seconds in some phases, and `wait` more of exposed wait in backward."""
        began = self.now
        spent = dict.fromkeys(PHASES, 0.0) | {name: share * self.length for name, share in SHARES.items()}
        for name, seconds in (spent | {name: spent[name] + each for name, each in more.items()}).items():
            self._seconds[name] += seconds
            self.now += seconds
        self._wait += self._wait_share * self.length + wait
        self._number += skip
        self.recent.observe(StepRecord(self._number, began, self.now, tag, tuple(self._seconds.values()), self._wait))
        self._number += 1

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def sends(self) -> Any:
        """Return the figures after a check that a frame can carry them."""
        figures = self.recent.metrics()
        assert set(figures) <= KEYS <= TRAIN_METRICS.keys()
        for value in figures.values():
            assert all(map(math.isfinite, value.values() if isinstance(value, dict) else [value]))
        return figures


@pytest.mark.parametrize(("length", "steps"), [(0.005, 4000), (1.0, 20), (6.0, 4), (40.0, 3), (200.0, 3)])
def test_the_figures_of_any_length_of_step(length: float, steps: int) -> None:
    """They rest on the last 20 s, and on three steps where those take longer; the wait is taken out of backward."""
    rank = Rank(length)
    rank.steps(10 + math.ceil(30 / length))
    figures = rank.sends()
    assert figures["recent_steps"] == pytest.approx(steps, abs=0.1 / length)
    assert figures["recent_step_seconds"] == pytest.approx(length)
    assert figures["recent_wait_seconds"] == pytest.approx(0.1 * length)
    own = {name: share * length for name, share in SHARES.items()}
    own["backward"] -= 0.1 * length
    assert figures["recent_phase_seconds"] == pytest.approx(own)


def test_nothing_before_there_are_three() -> None:
    """The first step compiles and connects; what comes after it counts."""
    rank = Rank(1.0)
    assert rank.sends() == {}
    rank.steps(2)
    assert rank.sends() == {}
    rank.step()
    assert rank.sends()["recent_steps"] == 3


def test_only_the_last_twenty_seconds_count() -> None:
    """Earlier steps do not enter the figures, whether steps became longer or shorter."""
    rank = Rank(1.0)
    rank.steps(30)
    rank.length = 2.0
    rank.steps(4)
    assert rank.sends()["recent_step_seconds"] == pytest.approx(1.0)
    rank.steps(8)
    assert rank.sends()["recent_step_seconds"] == pytest.approx(2.0)
    assert rank.sends()["recent_steps"] == pytest.approx(10, abs=1)
    rank.length = 0.01
    rank.steps(2000)
    assert rank.sends()["recent_step_seconds"] == pytest.approx(0.01)
    assert rank.sends()["recent_wait_seconds"] == pytest.approx(0.001)


@pytest.mark.parametrize("length", [0.005, 1.0, 200.0])
def test_an_odd_step_does_not_move_the_usual_one(length: float) -> None:
    """One long step in three is in the means, not in the median."""
    rank = Rank(length)
    for number in range(10 * math.ceil(30 / length)):
        rank.step(other=length if number % 3 == 0 else 0.0)
    figures = rank.sends()
    assert figures["recent_step_seconds"] == pytest.approx(length)
    assert figures["recent_phase_seconds"]["other"] == pytest.approx(length / 3, rel=0.05)


def test_pauses_and_tagged_steps_are_left_out() -> None:
    """Checkpoints and evaluations between steps, tagged steps, and gaps in the numbers are no ordinary step."""
    rank = Rank(1.0)
    rank.steps(20)
    usual = rank.sends()
    for pause in ({"checkpoint": 3.0}, {"eval": 1.0, "forward": 2.0}, {"skip": 3, "forward": 3.0}, {"tag": "gc"}):
        rank.step(**pause)  # type: ignore[arg-type]
        rank.step()
    rank.steps(2)
    figures = rank.sends()
    assert figures.pop("recent_steps") < usual.pop("recent_steps")
    assert figures == {key: pytest.approx(value) for key, value in usual.items()}


def test_a_phase_that_pauses_nothing_is_no_pause() -> None:
    """A loop may enter `checkpoint` after every step and save once an hour."""
    rank = Rank(1.0)
    for _ in range(10):
        rank.step(checkpoint=0.001)
    assert rank.sends()["recent_steps"] == 10
    assert set(rank.sends()["recent_phase_seconds"]) == set(SHARES)


@pytest.mark.parametrize(("length", "lasts"), [(0.005, 20.0), (1.0, 22.0), (40.0, 200.0), (200.0, 1000.0)])
def test_what_is_over_is_absent(length: float, lasts: float) -> None:
    """The figures hold for the window's length and two more steps; with the next ordinary step they are back."""
    rank = Rank(length)
    rank.steps(10)
    last = rank.now
    rank.now = last + 0.99 * lasts
    assert set(rank.sends()) == KEYS
    rank.now = last + 1.01 * lasts
    assert rank.sends() == {}
    rank.now = last
    rank.step(checkpoint=1.01 * lasts)
    assert rank.sends() == {}
    rank.step()
    assert set(rank.sends()) == KEYS
    assert rank.sends()["recent_step_seconds"] == pytest.approx(length)


def test_tagged_steps_alone_keep_nothing_alive() -> None:
    """A loop that continues without an ordinary step has no usual one."""
    rank = Rank(1.0)
    rank.steps(10)
    for _ in range(30):
        rank.step(tag="compile")
    assert rank.sends() == {}


def test_a_rank_whose_waits_are_not_measured_has_none() -> None:
    """0 would make it the one that waits least; backward then holds whatever waits there are."""
    rank = Rank(1.0, wait=0.0)
    rank.steps(10)
    figures = rank.sends()
    assert set(figures) == KEYS - {"recent_wait_seconds"}
    assert figures["recent_phase_seconds"]["backward"] == pytest.approx(0.5)


def test_where_lengths_are_waits_nothing_else_is() -> None:
    """All ranks of a run have to measure alike: what one of them happens to measure as well is left out."""
    rank = Rank(1.0)
    lengths = WaitByLengths(lambda: True, lambda: rank.now, lambda: rank.now)
    rank.recent = RecentSteps(lambda: rank.now, lengths)
    lengths.read(())
    rank.steps(30)
    assert lengths.chosen
    assert set(rank.sends()) == KEYS - {"recent_wait_seconds"}
    for _ in range(2):
        began = rank.now
        rank.steps(10)
        lengths.read([Length(began + 0.5 + number, 0.3) for number in range(-5, 10)])
    assert rank.sends()["recent_wait_seconds"] == pytest.approx(0.3)


def test_no_wait_lately_is_zero() -> None:
    """The last rank to arrive does not wait: its zero is a value, and the one that matters."""
    rank = Rank(1.0)
    rank.steps(10)
    rank._wait_share = 0.0
    rank.steps(30)
    assert rank.sends()["recent_wait_seconds"] == 0


def test_marked_collectives_are_waits_and_no_work() -> None:
    """They have a phase of their own, which is not the rank's own time."""
    rank = Rank(1.0)
    for _ in range(10):
        rank.step(collective=0.4, wait=0.4)
    figures = rank.sends()
    assert figures["recent_wait_seconds"] == pytest.approx(0.5)
    assert figures["recent_phase_seconds"] == pytest.approx(SHARES | {"backward": 0.4})


def test_waits_that_are_known_late_even_out() -> None:
    """On a GPU a step's wait may be booked on the next; a total that falls makes no figure negative."""
    rank = Rank(1.0, wait=0.0)
    for number in range(40):
        rank.step(wait=0.8 * (number % 2))
    figures = rank.sends()
    assert figures["recent_wait_seconds"] == pytest.approx(0.4)
    assert figures["recent_phase_seconds"]["backward"] == pytest.approx(0.1)
    for _ in range(3):
        rank.step(wait=-5.0)
    assert rank.sends()["recent_wait_seconds"] == 0


@pytest.mark.parametrize("length", [1e-6, 0.0003, 0.005, 0.07])
def test_memory_is_bounded(length: float) -> None:
    """However short the steps, the window is kept in 202 slices, each with the lengths of five steps at most."""
    rank = Rank(length)
    rank.steps(min(int(50 / length), 100_000))
    slices = rank.recent._slices
    assert len(slices) <= 202
    assert max(len(each.lengths) for each in slices) <= 5
    assert rank.sends()["recent_step_seconds"] == pytest.approx(length)


def test_gradient_accumulation_is_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the end of an optimizer step to the end of the next, whatever lies in between."""
    moment = [100.0]
    monkeypatch.setattr("tachograph.client.core.phases.perf_counter", lambda: moment[0])
    monkeypatch.setattr("tachograph.client.core.steps.perf_counter", lambda: moment[0])
    clock = PhaseClock()
    step, recent = Step(clock, Counter()), RecentSteps(lambda: moment[0])
    for micro in range(20):
        with clock.phases["data"]:
            moment[0] += 0.25
        step.accumulating = micro % 4 != 3
        with step, clock.phases["forward"]:
            moment[0] += 1
    for fields in step.records:
        recent.observe(step_record(fields))
    assert recent.metrics() == {
        "recent_steps": 4, "recent_step_seconds": 5.0, "recent_phase_seconds": {"data": 1.0, "forward": 4.0},
    }  # fmt: skip
