"""Runs as the field writes them: loops that mark nothing, pauses, ranks without waits, uneven stages, any step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tachograph_lab.scenario import Fleet, Pause, StepTimes
from tachograph_lab.scenario.faults import Gil, PauseOnce, PlannedRestart, Slowing, Stuck, TakingTurns
from tachograph_lab.scenario.random_scenario import step_times

Play = Callable[..., Any]
QUIET = {"checkpoint": None, "eval": None}


def phases(played: Any, rank: int) -> dict[str, float]:
    """Return a rank's seconds by phase as it said them last."""
    told: dict[str, float] = played.said("phase_seconds_total", rank)
    return told


def test_a_basic_loop_marks_no_start_save_or_evaluation(play: Play) -> None:
    """They are phase `other`, for as long as a marked loop says what they are; and nothing is said of a checkpoint."""
    basic, marked = play(until=110, loop="basic"), play(until=110)
    for rank in (0, 5):
        told, true = phases(basic, rank), phases(marked, rank)
        assert {name: told[name] for name in ("init", "checkpoint", "eval")} == {"init": 0, "checkpoint": 0, "eval": 0}
        assert told["other"] == pytest.approx(true["init"] + true["checkpoint"] + true["eval"])
        assert told["forward"] == true["forward"]
        assert basic.rank("train_checkpoint_step", rank) is None
    assert marked.rank("train_checkpoint_step", 0) is not None
    lost = basic.series("train_lost_seconds_total")
    assert lost.get(("init",), 0) == lost.get(("checkpoint",), 0) == 0
    assert {frame["phase"] for frame in basic.frames(rank=0)} >= {"other", "backward"}


@pytest.mark.parametrize(("phase", "shown"), [("other", "other"), ("checkpoint", "checkpoint"), ("data", "data")])
def test_a_pause_holds_everyone_up_once(play: Play, phase: str, shown: str) -> None:
    """One rank pauses in its phase; the others wait in their next collective; then all continue."""
    played = play(PauseOnce(at=30, lasts=20, ranks=(2,), phase=phase), until=45, **QUIET)
    assert (shown,) in played.rank("rank_phase_seconds", 2)
    assert ("backward",) in played.rank("rank_phase_seconds", 3)
    enqueued = [played.rank("train_collective_enqueued", rank)["0",] for rank in range(8)]
    assert [number - enqueued[0] for number in enqueued] == [0, 0, -1, 0, 0, 0, 0, 0]
    steps = played.rank("train_steps_total", 2)
    played.until(70)
    assert played.rank("train_steps_total", 2) >= steps + 10
    usual = phases(play(until=70, **QUIET), 2)[shown]
    assert phases(played, 2)[shown] - usual == pytest.approx(20, abs=0.5)


def test_a_rank_is_aside_from_the_first_step_of_an_attempt(play: Play) -> None:
    """A pause alone goes on in the next attempt, whose steps the rank has no part in: it has done no work there."""
    aside = PauseOnce(at=20, lasts=100, ranks=(2,), phase="eval", alone=True)
    played = play(aside, PlannedRestart(at=40, takes=5), until=45, **QUIET)
    for second in range(46, 80):
        played.until(second)
    assert played.rank("train_steps_total", 2) == played.rank("train_tokens_total", 2) == 0
    assert played.rank("train_steps_total", 3) > 0


def test_a_pause_in_the_start_comes_with_the_first_step(play: Play) -> None:
    """At second 0 the run has not begun a step: it begins it so much later."""
    first = [frame["step"] for frame in play(PauseOnce(at=0, lasts=30, ranks=tuple(range(8))), until=40).frames(rank=0)]
    assert max(first) == 0
    assert max(frame["step"] for frame in play(until=40).frames(rank=0)) > 10


def test_a_standing_evaluator_is_not_waited_for(play: Play) -> None:
    """Its step and counters pause in `eval` while the others continue; then it is back, and nothing has fallen."""
    evaluator = PauseOnce(at=20, lasts=60, ranks=(8,), phase="eval", alone=True)
    nine = Fleet(run="llama", nodes=3, gpus_per_node=3)
    played = play(evaluator, until=30, fleet=nine, **QUIET)

    def last(rank: int) -> dict[str, Any]:
        frame: dict[str, Any] = played.frames(rank=rank)[-1]
        return frame

    early, peers = last(8), last(0)
    assert early["phase"] == "eval"
    assert 20 <= early["phase_since"] - 1_763_690_000 <= 22
    played.until(75)
    late = last(8)
    assert last(0)["metrics"]["steps_total"] > peers["metrics"]["steps_total"] + 30
    for key in ("steps_total", "batches_total", "collective_enqueued", "collective_completed"):
        assert late["metrics"][key] == early["metrics"][key], key
    assert (late["step"], late["phase_since"]) == (early["step"], early["phase_since"])
    assert late["progress_time"] <= late["phase_since"]
    played.until(100)
    assert last(8)["metrics"]["steps_total"] == last(0)["metrics"]["steps_total"]
    assert phases(played, 8)["eval"] == pytest.approx(60, abs=2)
    assert sum(phases(played, 8).values()) == pytest.approx(sum(phases(played, 0).values()), abs=0.01)
    for node in range(3):
        assert set(played.series("exporter_frames_rejected_total", node).values()) == {0}


def test_a_rank_that_is_stuck_in_its_save(play: Play) -> None:
    """INCIDENTS 27: all are in phase checkpoint; the others have entered the barrier behind it, and it has not."""
    stuck = Stuck(at=30, rank=5, phase="checkpoint")
    played = play(stuck, until=52, checkpoint=Pause(every=50, takes=6), eval=None)
    enqueued = {played.rank("train_collective_enqueued", rank)["0",] for rank in range(8)}
    assert len(enqueued) == 1  # all of them write
    played.until(90)
    assert all(("checkpoint",) in played.rank("rank_phase_seconds", rank) for rank in range(8))
    waiting = [played.rank("train_collective_enqueued", rank)["0",] for rank in range(8)]
    assert [number - waiting[0] for number in waiting] == [0, 0, 0, 0, 0, -1, 0, 0]
    steps = played.rank("train_steps_total", 0)
    assert played.until(120).rank("train_steps_total", 0) == steps
    again = play(Stuck(at=30, lasts=60, rank=5, phase="checkpoint"), until=89, eval=None)
    steps = again.rank("train_steps_total", 5)
    assert again.until(110).rank("train_steps_total", 5) > steps


def test_ranks_take_turns(play: Play) -> None:
    """INCIDENTS 54: on each step another rank is late; nobody is on average, and each counts its own turns."""
    turns = TakingTurns(at=30, phase="data", adds=0.4)
    shape = StepTimes(noise=0.0)
    played, healthy = play(turns, until=100, step=shape, **QUIET), play(until=100, step=shape, **QUIET)
    steps = played.rank("train_steps_total", 0)
    assert steps < 0.85 * healthy.rank("train_steps_total", 0)
    late = [phases(played, rank)["data"] - phases(healthy, rank)["data"] for rank in range(8)]
    assert max(late) - min(late) < 0.5
    assert sum(late) == pytest.approx(0.4 * (steps - 18), abs=4)
    excess = [played.said("phase_excess_seconds_total", rank)["data"] for rank in range(8)]
    assert sum(excess) == pytest.approx(sum(late), rel=0.3)


def test_a_run_that_gets_slower_and_slower(play: Play) -> None:
    """INCIDENTS 52: every phase takes longer by a share of its first length each minute, until it is over."""
    shape = StepTimes(noise=0.0, collective=0.0)
    slowing = Slowing(at=20, lasts=120, per_minute=0.5)
    played = play(slowing, until=130, step=shape, lasts=300.0, **QUIET)
    first = phases(played, 3)
    played.until(138)
    last = phases(played, 3)
    assert last["forward"] - first["forward"] == pytest.approx(1.95 * (8 * 0.32 / 1.95), rel=0.35)
    slow = played.rank("train_recent_step_seconds", 3)
    assert slow == pytest.approx(1.9 * shape.seconds, rel=0.1)
    played.until(200)
    assert played.rank("train_recent_step_seconds", 3) == pytest.approx(shape.seconds, rel=0.02)


@pytest.mark.parametrize(("waits", "ranks"), [((), set()), ((0, 3), {0, 3}), (None, set(range(8)))])
def test_which_ranks_report_waits(play: Play, waits: tuple[int, ...] | None, ranks: set[int]) -> None:
    """The others say nothing of collectives: neither waits nor sequence numbers; their steps take as long."""
    played = play(until=40, waits=waits, **QUIET)
    for key in ("collective_wait_seconds_total", "collective_enqueued"):
        assert {rank for rank in range(8) if played.said(key, rank) is not None} == ranks
    assert played.rank("train_steps_total", 5) == play(until=40, **QUIET).rank("train_steps_total", 5)


def test_uneven_stages_compute_for_longer(play: Play) -> None:
    """Of four stages the last is 30 % slower by construction: everyone's step is, and the others wait."""
    shape = StepTimes(noise=0.0, stages=(1, 1, 1, 1.3))
    played = play(until=60, step=shape, fleet=Fleet(run="llama", nodes=2, gpus_per_node=4, pipeline=4), **QUIET)
    steps = played.rank("train_steps_total", 0)
    compute = [phases(played, rank)["optimizer"] for rank in range(8)]
    assert compute[6] == compute[7] == pytest.approx(1.3 * compute[0])
    waits = [played.said("collective_wait_seconds_total", rank)["all_reduce"] for rank in range(8)]
    assert waits[0] - waits[7] == pytest.approx(0.3 * 0.86 * steps, rel=0.1)


def test_a_first_step_that_compiles(play: Play) -> None:
    """It takes as long as the scenario says, and is the first of each attempt alone."""
    played = play(until=90, step=StepTimes(first=80), **QUIET)
    assert played.rank("train_steps_total", 0) == 0
    assert ("forward",) in played.rank("rank_phase_seconds", 0)
    assert played.until(110).rank("train_steps_total", 0) > 5


@pytest.mark.parametrize(("seconds", "until", "steps"), [(0.005, 32.0, 3500), (40.0, 400.0, 8), (200.0, 2100.0, 9)])
def test_steps_of_any_length(play: Play, seconds: float, until: float, steps: int) -> None:
    """Nothing is refused, dropped or lost, from 5 ms to minutes, and the time adds up."""
    one_node = Fleet(run="llama", gpus_per_node=2)
    played = play(until=until, fleet=one_node, step=step_times(seconds, 0.0), lasts=until, **QUIET)
    assert played.rank("train_steps_total", 0) == pytest.approx(steps, rel=0.15)
    assert sum(phases(played, 0).values()) == pytest.approx(until)
    for name in ("exporter_frames_rejected_total", "exporter_client_dropped_total"):
        assert set(played.series(name).values()) <= {0}


def test_the_interpreters_lock(play: Play) -> None:
    """INCIDENTS 37: no frame while it is held, the connection open, also during the start; nothing is computed."""
    played = play(Gil(at=5, lasts=4, ranks=(2,)), Gil(at=40, lasts=30, ranks=(2, 3)), until=60, **QUIET)
    times = [frame["time"] - 1_763_690_000 for frame in played.frames(rank=2)]
    assert not [time for time in times if 5 < time < 9 or 40 < time < 70]
    assert played.rank("rank_state", 2)["frozen",] == played.rank("rank_state", 3)["frozen",] == 1
    assert played.rank("rank_up", 2) == 1
    steps = played.rank("train_steps_total", 1)
    assert played.until(85).rank("train_steps_total", 2) > steps
    assert played.rank("rank_state", 2)["running",] == 1


def test_the_plan_of_a_run(play: Play) -> None:
    """Every rank says at which step it is to end."""
    played = play(until=20, total_steps=10_000)
    assert {played.rank("train_total_steps", rank) for rank in range(8)} == {10_000}
