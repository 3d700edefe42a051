"""Figures of a rank's last ordinary steps, however long steps take, from what its frames count."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from tachograph.catalog.rank import PHASES, RECENT_STEPS
from tachograph.client.core.counters import Counter as Count
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.steps import Step, StepRecord, step_record
from tachograph.client.signals.ordinary_totals import OrdinaryTotals
from tachograph.client.signals.wait_by_lengths import Length, WaitByLengths
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.recent_steps import RecentSteps
from tachograph.node.ranks.series import RankSeries

SHARES = {"data": 0.05, "forward": 0.3, "backward": 0.5, "optimizer": 0.15}
KEYS = {"recent_step_seconds", "recent_steps", "recent_phase_seconds", "recent_wait_seconds"}
OWN = SHARES | {"backward": 0.4}
"""With the tenth of a step that is waiting taken out of backward."""


class Node:
    """Takes a rank's frames, as the exporter does."""

    def __init__(self) -> None:
        self.series = RankSeries(Limits(), Counter())
        self.recent = RecentSteps()

    def shows(self, metrics: dict[str, object], now: float, ended: float | None) -> dict[str, Any]:
        """Take a frame; return the figures, without the label of plain numbers."""
        self.series.take(metrics)
        self.recent.take(self.series, now, ended)
        shown = {key: values for key, values in self.series.gauges.items() if key in KEYS}
        assert all(math.isfinite(each) for values in shown.values() for each in values.values())
        return {key: values.get("", values) for key, values in shown.items()}


class Rank:
    """A rank whose steps take `length`, a tenth of it waiting in backward, and that sends a frame each second."""

    def __init__(self, length: float, wait: float = 0.1, *, plain: bool = False) -> None:
        self.now = self._sent = 1000.0
        self.node = Node()
        self.plain = plain
        self.ordinary = OrdinaryTotals()
        self.length = length
        self.wait_share = wait
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.wait = 0.0
        self.number = self.tagged = 0
        self.ended: float | None = None
        self.figures: dict[str, Any] = {}
        self.step(tag="warm-up", init=5.0, forward=30.0)

    def step(self, tag: str | None = None, wait: float = 0.0, skip: int = 0, **more: float) -> None:
        """Complete a step with `more` seconds in some phases, and `wait` more of exposed wait in backward."""
        began = self.now
        spent = dict.fromkeys(PHASES, 0.0) | {name: share * self.length for name, share in SHARES.items()}
        for name, seconds in (spent | {name: spent[name] + each for name, each in more.items()}).items():
            self.seconds[name] += seconds
            self.now += seconds
        self.wait += self.wait_share * self.length + wait
        self.number += skip
        self.tagged += tag is not None
        self.ended = self.now
        self.ordinary.observe(StepRecord(self.number, began, self.now, tag, tuple(self.seconds.values()), self.wait))
        self.number += 1
        if self.now >= self._sent + 1:
            self.sends()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def sends(self) -> dict[str, Any]:
        """Send a frame now; return the node's figures."""
        self._sent = self.now
        plain: dict[str, object] = {"steps_total": self.number, "phase_seconds_total": self.seconds}
        if self.wait > 0:
            plain["collective_wait_seconds_total"] = {"all_reduce": self.wait}
        if self.tagged:
            plain["tagged_steps_total"] = {"gc": self.tagged}
        counted = plain if self.plain else {"steps_total": self.number, **self.ordinary.metrics()}
        return self.node.shows(counted, self.now, self.ended)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(("length", "steps"), [(0.005, 4000), (1.0, 20), (6.0, 4), (40.0, 3), (200.0, 3)])
def test_the_figures_of_any_length_of_step(length: float, steps: int, plain: bool) -> None:
    """They rest on the last 20 s, and on three steps where those take longer; the wait is taken out of backward."""
    rank = Rank(length, plain=plain)
    rank.steps(10 + math.ceil(30 / length))
    figures = rank.sends()
    assert figures["recent_steps"] == pytest.approx(steps, abs=1 + 1.1 / length)
    assert figures["recent_step_seconds"] == pytest.approx(length)
    assert figures["recent_wait_seconds"] == pytest.approx(0.1 * length)
    assert figures["recent_phase_seconds"] == pytest.approx({name: share * length for name, share in OWN.items()})


def test_nothing_before_three_ordinary_steps() -> None:
    """Two steps are no habit."""
    rank = Rank(1.0)
    rank.steps(RECENT_STEPS - 1)
    assert rank.sends() == {}
    rank.step()
    assert rank.sends()["recent_steps"] == RECENT_STEPS


def test_a_change_of_pace_is_seen_within_the_window() -> None:
    """The median follows after half of the window, the mean bit by bit."""
    rank = Rank(1.0)
    rank.steps(30)
    rank.length = 2.0
    rank.steps(4)
    assert rank.sends()["recent_step_seconds"] == pytest.approx(1.0)
    rank.steps(6)
    assert rank.sends()["recent_step_seconds"] == pytest.approx(2.0)
    assert rank.sends()["recent_steps"] == pytest.approx(10, abs=1)


@pytest.mark.parametrize("length", [1.0, 6.0])
def test_an_odd_step_does_not_move_the_usual_one(length: float) -> None:
    """One long step in three is in the means, not in the median."""
    rank = Rank(length)
    for number in range(10 * math.ceil(30 / length)):
        rank.step(other=length if number % 3 == 0 else 0.0)
    figures = rank.sends()
    assert figures["recent_step_seconds"] == pytest.approx(length)
    assert figures["recent_phase_seconds"]["other"] == pytest.approx(length / 3, rel=0.2)


@pytest.mark.parametrize("plain", [False, True])
def test_steps_right_behind_a_standstill_are_as_usual(plain: bool) -> None:
    """The frame that shows the step which stood still shows others, too: what its frames before saw is its own."""
    rank = Rank(0.3, plain=plain)
    rank.steps(100)
    rank.sends()
    for second in range(1200):
        rank.node.shows({}, rank.now + second, rank.ended)
    rank._sent = math.inf
    rank.step(other=1200.0)
    rank.steps(2)
    assert rank.sends()["recent_step_seconds"] == pytest.approx(0.3, rel=0.1)
    rank.steps(3)
    figures = rank.sends()
    assert figures["recent_step_seconds"] == pytest.approx(0.3, rel=0.1)
    assert rank.node.recent.rates["steps"] == pytest.approx(1 / 0.3, rel=0.1)
    assert rank.node.recent.stood_still


def test_a_program_of_two_seconds() -> None:
    """Its first steps, which are slow, are few: between two frames of which one has many."""
    rank = Rank(0.05)
    for _ in range(3):
        rank.step(forward=0.3)
    rank.steps(18)
    assert rank.sends()["recent_step_seconds"] == pytest.approx(0.05)


@pytest.mark.parametrize("length", [0.02, 0.2])
def test_a_long_pause_among_short_steps_does_not_move_the_usual_one(length: float) -> None:
    """As an unmarked save: it lies between two frames of many."""
    rank = Rank(length)
    rank.steps(math.ceil(30 / length))
    rank.step(other=9.0)
    rank.steps(math.ceil(3 / length))
    assert rank.sends()["recent_step_seconds"] == pytest.approx(length, rel=0.05)


@pytest.mark.parametrize("length", [0.02, 0.2, 6.0])
def test_one_wait_that_outweighs_all_others_is_known(length: float) -> None:
    """A mean of it says nothing of the usual step, until it has left the window; waits of a second each do."""
    rank = Rank(length)
    rank.steps(math.ceil(30 / length))
    for _ in range(12):
        rank.step(data=1.0)
        assert not rank.node.recent.stood_still
    rank.step(data=45.0)
    rank.steps(math.ceil(3 / length))
    assert rank.sends()["recent_phase_seconds"]["data"] > length / 2
    assert rank.node.recent.stood_still
    rank.steps(math.ceil(25 / length))
    assert rank.sends()["recent_phase_seconds"]["data"] == pytest.approx(0.05 * length)
    assert not rank.node.recent.stood_still


@pytest.mark.parametrize("plain", [False, True])
def test_pauses_and_tagged_steps_are_left_out(plain: bool) -> None:
    """Checkpoints and evaluations between steps, tagged steps, and gaps in the numbers are no ordinary step."""
    rank = Rank(1.0, plain=plain)
    rank.steps(20)
    usual = rank.sends()
    for pause in ({"checkpoint": 3.0}, {"eval": 1.0, "forward": 2.0}, {"tag": "gc", "forward": 2.0}):
        rank.step(**pause)  # type: ignore[arg-type]
        rank.step()
    if not plain:
        rank.step(skip=3, forward=3.0)
        rank.step()
    rank.steps(2)
    figures = rank.sends()
    assert figures.pop("recent_steps") < usual.pop("recent_steps")
    assert figures == {key: pytest.approx(value) for key, value in usual.items()}


def test_a_phase_that_pauses_nothing_is_no_pause() -> None:
    """A loop may enter `checkpoint` after every step and save once an hour."""
    for plain in (False, True):
        rank = Rank(1.0, plain=plain)
        for _ in range(11):
            rank.step(checkpoint=0.001)
        assert rank.sends()["recent_steps"] == pytest.approx(10, abs=1)
        assert set(rank.sends()["recent_phase_seconds"]) == set(SHARES)


@pytest.mark.parametrize(("length", "lasts"), [(0.005, 20.0), (1.0, 22.0), (40.0, 200.0), (200.0, 1000.0)])
def test_what_is_over_is_absent(length: float, lasts: float) -> None:
    """The figures hold for the window's length and two more steps; with the next ordinary step they are back."""
    rank = Rank(length)
    rank.steps(math.ceil(10 + 2 / length))
    rank.sends()
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
    for plain in (False, True):
        rank = Rank(1.0, plain=plain)
        rank.steps(10)
        for _ in range(30):
            rank.step(tag="compile")
        assert rank.sends() == {}


@pytest.mark.parametrize("plain", [False, True])
def test_a_rank_whose_waits_are_not_measured_has_none(plain: bool) -> None:
    """0 would make it the one that waits least; backward then holds whatever waits there are."""
    rank = Rank(1.0, wait=0.0, plain=plain)
    rank.steps(10)
    figures = rank.sends()
    assert set(figures) == KEYS - {"recent_wait_seconds"}
    assert figures["recent_phase_seconds"]["backward"] == pytest.approx(0.5)


def test_where_lengths_are_waits_nothing_else_is() -> None:
    """All ranks of a run have to measure alike: what one of them happens to measure as well is left out."""
    rank = Rank(1.0, wait=0.0)
    lengths = WaitByLengths(lambda: True, lambda: rank.now, lambda: rank.now)
    rank.ordinary, rank.node = OrdinaryTotals(lengths), Node()
    lengths.read(())
    rank.steps(11)
    assert lengths.chosen
    rank.wait_share = 0.1
    rank.steps(19)
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
    rank.wait_share = 0.0
    rank.steps(30)
    assert rank.sends()["recent_wait_seconds"] == pytest.approx(0)


@pytest.mark.parametrize("plain", [False, True])
def test_marked_collectives_are_waits_and_no_work(plain: bool) -> None:
    """They have a phase of their own, which is not the rank's own time."""
    rank = Rank(1.0, plain=plain)
    for _ in range(10):
        rank.step(collective=0.4, wait=0.4)
    figures = rank.sends()
    assert figures["recent_wait_seconds"] == pytest.approx(0.5)
    assert figures["recent_phase_seconds"] == pytest.approx(OWN)


def test_a_marked_collective_is_a_wait_where_no_other_is_counted() -> None:
    """A client of few counters measures its waits as the phase."""
    rank = Rank(1.0, wait=0.0, plain=True)
    for _ in range(10):
        rank.step(collective=0.4)
    assert rank.sends()["recent_wait_seconds"] == pytest.approx(0.4)


def test_waits_that_are_known_late_even_out() -> None:
    """On a GPU a step's wait may be booked on the next; a total that falls makes no figure negative."""
    rank = Rank(1.0, wait=0.0)
    for number in range(40):
        rank.step(wait=0.8 * (number % 2))
    figures = rank.sends()
    assert figures["recent_wait_seconds"] == pytest.approx(0.4, abs=0.05)
    assert figures["recent_phase_seconds"]["backward"] == pytest.approx(0.1, abs=0.05)
    for _ in range(25):
        rank.step(wait=-5.0)
    assert rank.sends()["recent_wait_seconds"] == 0


def test_the_window_is_bounded() -> None:
    """However short the steps, it holds what the frames of 20 s counted."""
    rank = Rank(0.0003)
    rank.steps(100_000)
    assert len(rank.node.recent._window) <= 24


def test_figures_of_a_rank_with_a_window_of_its_own_stand() -> None:
    """As of a client from before this release."""
    node = Node()
    for second in range(10):
        sent = {"steps_total": second, "recent_step_seconds": 0.7, "recent_wait_seconds": 0.1, "recent_steps": 30}
        assert node.shows(sent, 1000.0 + second, 1000.0 + second) == {
            "recent_step_seconds": 0.7, "recent_wait_seconds": 0.1, "recent_steps": 30,
        }  # fmt: skip


def test_after_an_exporter_that_knew_more() -> None:
    """Of a process that is first seen late, all its ordinary steps so far are what is usual: as in a hang."""
    rank = Rank(1.0)
    rank.steps(50)
    rank.node = Node()
    figures = rank.sends()
    assert figures["recent_step_seconds"] == pytest.approx(1.0)
    assert figures["recent_steps"] == 50
    rank.now += 23
    assert rank.sends() == {}


@pytest.mark.parametrize("plain", [False, True])
def test_what_an_earlier_exporter_saw_is_not_recent(plain: bool) -> None:
    """The first frame that a new one sees has all that the process ever did: waits of its best times are no lag now."""
    rank = Rank(1.0, plain=plain)
    rank.steps(300)
    rank.wait_share = 0.4
    rank.steps(60)
    rank.node = Node()
    figures = rank.sends()
    assert figures.get("recent_step_seconds") == (None if plain else pytest.approx(1.0))
    assert "recent_wait_seconds" not in figures
    rank.steps(25)
    assert rank.sends()["recent_wait_seconds"] == pytest.approx(0.4)


def test_gradient_accumulation_is_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the end of an optimizer step to the end of the next, whatever lies in between."""
    moment = [100.0]
    monkeypatch.setattr("tachograph.client.core.phases.perf_counter", lambda: moment[0])
    monkeypatch.setattr("tachograph.client.core.steps.perf_counter", lambda: moment[0])
    clock = PhaseClock()
    step, ordinary = Step(clock, Count()), OrdinaryTotals()
    for micro in range(20):
        with clock.phases["data"]:
            moment[0] += 0.25
        step.accumulating = micro % 4 != 3
        with step, clock.phases["forward"]:
            moment[0] += 1
    for fields in step.records:
        ordinary.observe(step_record(fields))
    assert ordinary.metrics() == {
        "ordinary_steps_total": 4, "ordinary_step_seconds_total": 20.0,
        "ordinary_phase_seconds_total": {"data": 4.0, "forward": 16.0},
    }  # fmt: skip
