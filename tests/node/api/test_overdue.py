"""A run without a step is a problem as soon as it is longer than usual, whoever would be paged for it, and when."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tachograph.node.api.answer import NodeAnswer
from tachograph.node.api.runs import RunAnswer
from tachograph.node.status_page.page import Sections, status_page

STEPS = {"steps_total": 2000, "phase_seconds_total": {"forward": 60.0, "backward": 40.0, "init": 900.0}}
"""Steps of 0.05 s."""


class Stalled:
    """A run whose ranks complete a step and then none, each in a phase."""

    def __init__(self, table: Any, hand: Any) -> None:
        self.table, self.hand = table, hand
        self.seq = 0

    def stand(
        self, seconds: float, *phases: str | None, step: bool = False, still: float = 0.0, **metrics: Any
    ) -> RunAnswer:
        """Let time pass, have every rank say its phase, and return what is concluded."""
        before = self.hand.clock.wall() if step else None
        self.hand.turn(seconds)
        wall = self.hand.clock.wall()
        self.seq += 1
        for rank, phase in enumerate(phases):
            if self.seq == 1:
                self.table.greet(rank, rank=rank, world_size=len(phases))
            self.progress = before or self.progress
            said = {
                "phase": phase,
                "phase_seconds": wall - self.progress if phase else None,
                "time": wall,
                "still": still,
            }
            self.table.tell(rank, self.seq, metrics=STEPS | metrics, progress_time=self.progress, **said)
        (run,) = self.judged().runs
        return run

    def judged(self) -> NodeAnswer:
        return NodeAnswer("node-27", self.table, (), None, self.hand.clock)

    def page(self) -> str:
        return status_page(self.judged(), self.table, {}, Sections(self.hand.clock))


@pytest.fixture
def run(table: Any, hand: Any) -> Stalled:
    return Stalled(table, hand)


def test_one_rank_that_has_been_in_its_loader_for_40_seconds(run: Stalled) -> None:
    """A step usually takes 0.05 s: that nobody is paged before 300 s have passed does not make it well."""
    well = run.stand(10.0, "data", step=True)
    assert (well.state, well.sentence) == ("running", "")
    assert ">None<" in run.page()
    found = run.stand(30.0, "data")
    assert (found.state, found.seconds_without_step, found.step_seconds) == ("overdue", 40.0, 0.05)
    assert found.hang_limit_seconds == pytest.approx(300.15)
    assert found.sentence == "no step for 40 s, usually 50 ms; rank 0 in data for 40 s"
    (problem,) = run.judged().problems
    assert (problem.kind, problem.urgent, problem.run) == ("No step", False, "r")
    assert problem.sentence == f"Run r: {found.sentence}."
    page = run.page()
    assert ">None<" not in page
    assert "<bdi>r</bdi>: no step for 40 s, usually 50 ms; rank 0 in data for 40 s." in page
    assert json.loads(run.judged().as_json())["problems"][0]["text"] == problem.sentence
    hung = run.stand(261.0, "data")
    assert (hung.state, run.judged().problems[0].urgent) == ("hung", True)


def test_a_rank_of_a_run_that_stands_still_is_not_running(run: Stalled) -> None:
    """From 10 s and ten usual steps on: it was a green `running` below a sentence that said that there is no step."""
    (well,) = run.stand(9.0, "data", step=True).ranks
    (still,) = run.stand(9.0, "data").ranks
    assert (well.marks, still.marks, still.state) == ((), ("stalled",), "running")
    assert '<span class="state warn">stalled</span>' in run.page()
    assert '<span class="state good">running</span>' not in run.page()


def test_the_usual_step_does_not_grow_with_the_overdue_one(run: Stalled) -> None:
    """A phase that lasts is counted while it does; what is usual are the steps that ended, however long ago."""
    ordinary = [{"ordinary_steps_total": done, "ordinary_step_seconds_total": 0.05 * done} for done in (100, 120, 140)]
    for made in ordinary:
        run.stand(1.0, "data", step=True, **made)
    late = run.stand(60.0, "data", **ordinary[-1], phase_seconds_total={"data": 60.0, "forward": 5.0}, steps_total=140)
    assert (late.state, late.step_seconds) == ("overdue", pytest.approx(0.05))


def test_overdue_begins_where_a_hang_would_without_pauses(run: Stalled) -> None:
    """After 15 s and three usual steps, or what the run itself sets, of any of its ranks."""
    assert run.stand(15.1, "data", step=True).state == "running"
    assert run.stand(0.1, "data").state == "overdue"
    assert run.stand(0.0, "data", threshold={"hang_seconds": 60.0}).state == "running"
    assert run.stand(45.0, "data", threshold={"hang_seconds": 60.0}).state == "overdue"


@pytest.mark.parametrize("phase", ["init", "checkpoint", "eval"])
def test_phases_without_steps_excuse_a_run(run: Stalled, phase: str) -> None:
    """While a rank saves or evaluates nothing is overdue, however the others wait for it; `other` is no excuse.

    After it the run has the time again that it may go without a step.
    """
    assert run.stand(200.0, "collective", phase, "collective", step=True).state == "running"
    assert run.stand(0.0, "collective", "other", "collective").state == "overdue"
    assert run.stand(15.0, "collective", None, "collective").state == "running"
    assert run.stand(0.3, "collective", None, "collective").state == "hung"


def test_before_the_first_steps_nothing_is_usual(table: Any, hand: Any) -> None:
    """A run that has not completed a step is left alone; one whose usual step is not known hangs after half an hour.

    One that does not say what it does either, after four minutes.
    """
    table.greet("a")
    table.tell("a", 1, phase="forward", phase_since=hand.clock.wall(), time=hand.clock.wall())
    hand.turn(900.0)
    table.heard("a")
    assert [run.state for run in NodeAnswer("n", table, (), None, hand.clock).runs] == ["running"]
    saying = {"phase": "forward", "phase_since": hand.clock.wall()}
    table.tell("a", 2, progress_time=hand.clock.wall(), **saying)
    for seconds, state in ((239.0, "running"), (1560.0, "overdue"), (2.0, "hung")):
        hand.turn(seconds)
        table.heard("a")
        assert [run.state for run in NodeAnswer("n", table, (), None, hand.clock).runs] == [state]
    table.tell("a", 3, progress_time=hand.clock.wall())
    for seconds, state in ((239.0, "running"), (2.0, "hung")):
        hand.turn(seconds)
        table.heard("a")
        assert [run.state for run in NodeAnswer("n", table, (), None, hand.clock).runs] == [state]


def test_ranks_that_all_fell_silent_before_their_first_step(table: Any, hand: Any) -> None:
    """A run of which nobody runs has hung after half an hour, too, and both pages have it."""
    for rank in (0, 1):
        table.greet(rank, rank=rank, world_size=2)
        table.tell(rank, 1, phase="init", phase_since=hand.clock.wall(), time=hand.clock.wall())
    hand.turn(1900.0)
    answer = NodeAnswer("n", table, (), None, hand.clock)
    assert [(run.state, run.sentence) for run in answer.runs] == [("hung", "no step so far; no rank here stands out")]
    page = status_page(answer, table, {}, Sections(hand.clock))
    assert "no step so far" in page
    assert "could not be drawn" not in page


def test_who_is_blamed(run: Stalled) -> None:
    """Who lacks a collective, else who is in a phase of its own, else nobody; an overdue rank is behind."""
    entered = {"collective_enqueued": {"0": 812}}
    run.stand(42.0, "collective", "collective", "collective", step=True, **entered)
    run.table.tell(1, 9, metrics=STEPS | {"collective_enqueued": {"0": 811}}, progress_time=run.progress, phase="data")
    (found,) = run.judged().runs
    assert (found.state, found.culprit, found.behind) == ("hung", 1, 1.0)
    assert found.sentence == (
        "no step for 42 s, usually 50 ms; rank 1 is 1 collective behind the others here, in data for 0.0 s"
    )
    assert [(each.marks, each.cause) for each in found.ranks] == [
        (("stalled",), ""),
        (("culprit",), "1 collective behind"),
        (("stalled",), ""),
    ]
    run.seq = 9
    odd = run.stand(0.0, "collective", "other", "collective")
    assert (odd.state, odd.culprit, odd.ranks[1].marks) == ("overdue", 1, ("behind",))
    assert odd.sentence.endswith("; rank 1 is not where the others are, in other for 42 s")
    none = run.stand(16.0, "collective", "collective", "collective")
    assert (none.state, none.culprit) == ("hung", None)
    assert none.sentence.endswith("; no rank here stands out, all are in collective")


def test_a_rank_that_stands_still_says_where(run: Stalled) -> None:
    """Its process and its line, in words and as data, until it makes a step again; not that of a process that ended."""
    run.stand(42.0, "data", step=True)
    line = "data.py:88 load_shard, in socket.py:706 readinto"
    run.table.tell(0, 9, metrics=STEPS, progress_time=run.progress, phase="data", where=line)
    (found,) = run.judged().runs
    assert (found.ranks[0].pid, found.ranks[0].where) == ("4242", line)
    assert found.sentence.endswith(f"rank 0 in data for 42 s, at {line} (pid 4242)")
    assert f"pid 4242 at {line}" in run.page()
    run.table.tell(0, 10, metrics=STEPS, progress_time=run.progress, phase="data")
    assert "pid 4242 at" not in run.page()
    run.table.tell(0, 11, metrics=STEPS, progress_time=run.progress, phase="data", where=line)
    run.table.lost(0)
    assert run.judged().runs[0].ranks[0].where == ""
    assert "pid 4242" not in run.page()


def test_most_in_a_pause_have_half_an_hour(run: Stalled) -> None:
    """As RunHung has it: prometheus/src/progress.yml."""
    assert run.stand(1799.0, "checkpoint", "checkpoint", "backward", step=True).state == "running"
    found = run.stand(2.0, "checkpoint", "checkpoint", "backward")
    assert (found.state, found.hang_limit_seconds) == ("hung", pytest.approx(1800.15))


def test_a_save_that_is_stuck_is_no_excuse(run: Stalled) -> None:
    """Three have taken at most 4 s: beyond five times as long it is a hang if nothing moves."""
    for saved in range(4):
        last = {"phase_seconds_total": STEPS["phase_seconds_total"] | {"checkpoint": 4.0 * saved}}
        run.stand(1.0, "backward", "backward", step=True, **last)
    assert run.stand(19.0, "checkpoint", "backward", still=19.0, **last).state == "running"
    found = run.stand(1.0, "checkpoint", "backward", still=0.0, **last)
    assert (found.state, found.hang_limit_seconds) == ("running", pytest.approx(300.15))
    found = run.stand(1.0, "checkpoint", "backward", still=22.0, **last)
    assert (found.state, found.culprit, found.hang_limit_seconds) == ("hung", 0, pytest.approx(15.15))


def test_a_rank_that_is_frozen_is_the_one_that_is_behind(run: Stalled) -> None:
    """It says nothing any more; what it said last is evidence all the same."""
    run.stand(1.0, "collective", "collective", "collective", step=True, collective_enqueued={"0": 812})
    run.table.tell(2, 9, metrics=STEPS | {"collective_enqueued": {"0": 811}}, progress_time=run.progress, phase="data")
    run.hand.turn(30.0)
    for rank in range(2):
        run.table.heard(rank)
    (found,) = run.judged().runs
    assert [each.state for each in found.ranks] == ["running", "running", "frozen"]
    assert (found.culprit, found.state) == (2, "frozen")
