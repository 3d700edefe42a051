"""A simulated run does what a real one would, second by second."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tachograph.catalog.metric import COUNTER
from tachograph.catalog.train import TRAIN_METRICS
from tachograph.client.hello.identity import Identity, discover
from tachograph.client.hello.workload import Workload
from tachograph.client.transport.rank_state import RankState
from tachograph_lab.fleet.pauses import PauseSchedule
from tachograph_lab.scenario import Fleet, Pause, Scenario, StepTimes
from tachograph_lab.scenario.definition import ScenarioLimits, Work
from tachograph_lab.scenario.faults import (
    BatchChange,
    ExporterDown,
    Fault,
    Finish,
    Freeze,
    Kill,
    NoCheckpoint,
    NodeDown,
    PlannedRestart,
    RestartLoop,
    ScrapeBlocked,
    ScrapeFailure,
    SkipCollective,
    SlowCheckpoint,
    SlowCollective,
    SlowLoader,
    SlowPhase,
    Stuck,
)

Play = Callable[..., Any]


def test_the_same_scenario_says_the_same_words(play: Play) -> None:
    """A replay is repeatable to the byte; another seed is another run."""
    stuck = Stuck(at=20, lasts=5, rank=2, phase="data")
    first, second = play(stuck, until=30), play(stuck, until=30)
    assert first.messages == second.messages
    assert first.messages != play(stuck, until=30, seed=8).messages


def test_all_that_ranks_say_is_taken(busy_day: Any) -> None:
    """The exporter accepts simulated frames completely: none is refused, no series is dropped."""
    for node in (0, 1):
        assert set(busy_day.series("exporter_frames_rejected_total", node).values()) == {0}
        assert set(busy_day.series("exporter_series_dropped_total", node).values()) == {0}
        assert busy_day.series("exporter_frames_total", node)[()] > 100


def test_counters_never_fall_within_an_attempt(busy_day: Any) -> None:
    """A decreasing counter would be refused, and would look like a restart to Prometheus."""
    last: dict[tuple[Any, ...], float] = {}
    for frame in busy_day.frames():
        for key, value in frame["metrics"].items():
            if TRAIN_METRICS[key].kind == COUNTER:
                for label, number in (value if isinstance(value, dict) else {"": value}).items():
                    series = (*frame["connection"], key, label)
                    assert number >= last.get(series, 0), series
                    last[series] = number


def test_sequence_numbers_and_times_rise(busy_day: Any) -> None:
    """Each rank's frames follow one another, across a restart of the exporter too."""
    for rank in range(8):
        frames = [frame for frame in busy_day.frames(rank=rank) if frame["connection"][2] == 0]
        assert all(b["seq"] == a["seq"] + 1 and b["time"] > a["time"] for a, b in itertools.pairwise(frames))


def test_every_second_is_in_one_phase(play: Play) -> None:
    """Phases add up to the time since the process began, and so do goodput's causes over a node's ranks."""
    played = play(until=110)
    for rank in range(8):
        assert sum(played.frames(rank=rank)[-1]["metrics"]["phase_seconds_total"].values()) == pytest.approx(110)
    booked = sum(played.series("train_productive_seconds_total").values())
    booked += sum(played.series("train_lost_seconds_total").values())
    assert booked == pytest.approx(4 * 110, rel=0.02)


def test_frames_have_the_fields_of_real_ones(play: Play) -> None:
    """A simulated rank reports the same metrics as a real one, no more and no fewer."""
    real = RankState(
        discover({"run": "llama"}, {}), Workload(1, tokens_per_step=1, samples_per_step=1), device_time=False
    )
    assert isinstance(real.identity, Identity)
    played = play(until=30)
    frame, simulated = real.frame(), played.frames(rank=1)[-1]
    assert set(simulated) - {"connection", "progress_time", "progress_seconds"} == set(frame)
    given = frame["metrics"]
    assert isinstance(given, dict)
    assert set(given) - set(simulated["metrics"]) <= {"checkpoint_seconds_total"} - set(simulated["metrics"])
    assert set(played.frames("hello")[0]) - {"connection", "uuid", "coordinates"} <= set(real.hello())


def test_a_straggler_makes_all_steps_long_and_its_own_wait_short(play: Play) -> None:
    """Synchronous all-reduces give every rank the same step time; the rank that waits least arrived last."""
    played = play(SlowPhase(at=20, ranks=(5,), phase="backward", factor=2.0), until=45)
    waits = [played.said("collective_wait_seconds_total", rank)["all_reduce"] for rank in range(8)]
    assert min(waits) == waits[5]
    assert waits[5] < 0.5 * sorted(waits)[1]
    assert len({played.rank("train_steps_total", rank) for rank in range(8)}) == 1
    healthy = play(until=45)
    assert played.rank("train_steps_total", 0) < 0.85 * healthy.rank("train_steps_total", 0)


def test_each_rank_says_what_its_last_steps_were_like(play: Play) -> None:
    """The straggler waits least and works most in its phase, and its waits are its own, not those of its class."""
    played = play(SlowPhase(at=20, ranks=(5,), phase="backward", factor=2.0), until=15)
    assert not played.series("train_recent_step_seconds")
    played.until(45)
    waits = [played.rank("train_recent_wait_seconds", rank) for rank in range(8)]
    backward = [played.rank("train_recent_phase_seconds", rank)["backward",] for rank in range(8)]
    assert min(waits) == waits[5] < 0.5 * sorted(waits)[1]
    assert max(backward) == backward[5] > 1.5 * sorted(backward)[-2]
    assert len(set(waits)) == 8
    for rank in range(8):
        length = played.rank("train_recent_step_seconds", rank)
        own = sum(played.rank("train_recent_phase_seconds", rank).values())
        assert own + waits[rank] == pytest.approx(length, rel=0.05)


def test_recent_steps_end_with_a_hang(play: Play) -> None:
    """20 s and two steps after the last step there is nothing that would still be judged."""
    played = play(Stuck(at=30, rank=5, phase="data"), until=50)
    assert len(played.series("train_recent_step_seconds")) == 4
    assert not played.until(60).series("train_recent_step_seconds")


def test_the_textbook_steps(play: Play) -> None:
    """INCIDENTS 1: from step 7 on rank 5 computes for 2.7 × 0.50 s and imposes 0.83 s of wait on the median rank."""
    late = SlowPhase(at=3.5, ranks=(5,), phase="backward", takes=1.35)
    played = play(late, until=0, step=StepTimes(formula="textbook"), fleet=Fleet(run="llama", gpus_per_node=8))
    played.until(15, every=0.05)
    began = {frame["step"]: frame["progress_time"] for frame in reversed(played.frames(rank=5)) if frame["step"]}
    lasts = {step: began[step + 1] - began[step] for step in list(began) if step + 1 in began}
    assert all(lasts[step] == pytest.approx(0.54, abs=0.05) for step in range(1, 7))
    assert all(lasts[step] == pytest.approx(1.35, abs=0.05) for step in range(7, 12))
    waits = {
        rank: {frame["step"]: frame["metrics"]["collective_wait_seconds_total"]["all_reduce"] for frame in frames}
        for rank in range(8)
        if (frames := [each for each in played.frames(rank=rank) if each["step"] > 0])
    }
    imposed = [(waits[rank][11] - waits[rank][8]) / 3 for rank in range(8)]
    assert imposed[5] == pytest.approx(0, abs=1e-6)
    assert sorted(imposed)[4] == pytest.approx(0.83, abs=0.02)


def test_a_stuck_rank_is_one_collective_behind(play: Play) -> None:
    """INCIDENTS 2: the culprit is stuck in its phase, all others in backward, one all-reduce ahead; no step ends."""
    played = play(Stuck(at=30, rank=5, phase="data"), until=60)
    enqueued = {rank: played.rank("train_collective_enqueued", rank)["0",] for rank in range(8)}
    assert {rank for rank, number in enqueued.items() if number < max(enqueued.values())} == {5}
    assert max(enqueued.values()) - enqueued[5] == 1
    assert played.rank("rank_phase_seconds", 5)["data",] == pytest.approx(30, abs=1.5)
    assert all("backward" in key for rank in (0, 4, 7) for key in played.rank("rank_phase_seconds", rank))
    before = played.rank("train_steps_total", 0)
    assert played.until(70).rank("train_steps_total", 0) == before


def test_a_skipped_collective(play: Play) -> None:
    """INCIDENTS 12: all wait in backward; the rank that skipped an all-reduce is one behind."""
    played = play(SkipCollective(at=30, rank=3), until=50)
    enqueued = [played.rank("train_collective_enqueued", rank)["0",] for rank in range(8)]
    assert [number - enqueued[0] for number in enqueued] == [0, 0, 0, -1, 0, 0, 0, 0]
    assert all(played.rank("rank_phase_seconds", rank)["backward",] > 15 for rank in range(8))


def test_slow_and_missing_checkpoints() -> None:
    """INCIDENTS 17: from `at` on a checkpoint takes as long as the fault says, or is not saved at all."""
    every = Pause(every=50, takes=6)
    faults = SlowCheckpoint(at=90, takes=30), NoCheckpoint(at=140, lasts=30)
    calendar = PauseSchedule(Scenario(title="t", story="s", lasts=200, checkpoint=every, faults=faults))
    began = {at: float(np.max(calendar.checkpoint(at))) for at in range(10, 200, 10)}
    assert {at: takes for at, takes in began.items() if takes} == {50: 6, 100: 30, 170: 30}


def test_a_stuck_rank_that_comes_back_goes_on(play: Play) -> None:
    """With `for`, training continues where it stopped."""
    played = play(Stuck(at=30, lasts=20, rank=5, phase="data"), until=45, checkpoint=None)
    stuck_at = played.rank("train_steps_total", 0)
    assert played.until(60).rank("train_steps_total", 5) >= stuck_at + 6


def test_a_frozen_rank_is_silent(play: Play) -> None:
    """INCIDENTS 11: a connected, silent rank is frozen, however rarely the exporter is scraped; then it continues."""
    story = Freeze(at=30, lasts=30, rank=2)
    for every in (2.0, 5.0):
        played = play(story, until=29).until(55, every)
        assert played.rank("rank_state", 2)["frozen",] == 1
        assert played.rank("rank_up", 2) == 1
        assert played.rank("rank_state", 1)["running",] == 1
        assert played.until(65, every).rank("rank_state", 2)["running",] == 1


@pytest.mark.parametrize(("others", "state"), [("hang", "running"), ("abort", "dead"), ("end", "failed")])
def test_a_killed_rank(play: Play, others: str, state: str) -> None:
    """INCIDENTS 10: end of file without a bye at once; the others wait, abort or fail 10 s later."""
    played = play(Kill(at=30, rank=3, others=others), until=31)
    assert played.rank("rank_state", 3)["dead",] == 1
    assert played.rank("rank_state", 4)["running",] == 1
    assert played.until(45).rank("rank_state", 4)[state,] == 1
    assert played.host("node_vmstat_oom_kill") == [({}, 1.0)]


def test_a_planned_restart_goes_on_from_the_checkpoint(play: Play) -> None:
    """The next attempt repeats the steps since the last checkpoint, and reports that."""
    played = play(PlannedRestart(at=80, takes=10), until=79)
    saved = int(played.rank("train_checkpoint_step", 0))
    at = played.rank("train_step", 0)
    assert 0 < saved < at
    assert played.until(88).rank("train_failures_total", 1)["preemption",] == 1
    played.until(115)
    assert played.rank("train_resume_step", 1) == saved
    assert saved < played.rank("train_step", 0)
    assert {frame["attempt"] for frame in played.frames("hello")} == {0, 1}
    assert played.series("train_lost_seconds_total")["rework",] > 0
    assert played.series("train_lost_seconds_total")["restart",] == pytest.approx(40, rel=0.1)


def test_a_restart_loop_gains_no_step(play: Play) -> None:
    """INCIDENTS 18: attempts follow one another, each ends by one rank's failure, none gets beyond the first step."""
    played = play(RestartLoop(at=60, every=40, attempts=2, category="oom"), until=59)
    at = played.rank("train_step", 0)
    played.until(139)
    assert played.rank("train_restarts_total", 0) == 2
    assert max(frame["step"] for frame in played.frames()) <= at + 1
    for attempt in (0, 1):
        byes = [frame["category"] for frame in played.frames("bye") if frame["connection"][2] == attempt]
        assert byes == ["oom", *["collective"] * 7]
    assert played.until(190).rank("rank_state", 0)["running",] == 1


def test_a_finished_run_says_bye(play: Play) -> None:
    """A normal end is not a death: state, bye, and only then the end of the connection."""
    played = play(Finish(at=30), until=31)
    last = [message for message in played.messages if message.connection[1] == 3][-3:]
    assert [b"state" in (last[0].frame or b""), b"finished" in (last[1].frame or b""), last[2].frame] == [
        True,
        True,
        None,
    ]
    assert all(played.rank("rank_state", rank)["finished",] == 1 for rank in range(8))


def test_a_new_exporter_knows_every_count(play: Play) -> None:
    """INCIDENTS 20: after an exporter's restart, counters are what they would have been."""
    undisturbed, played = play(until=80), play(ExporterDown(at=40, lasts=20, node=1), until=45)
    assert not played.simulation.nodes[1].exporter_up
    played.until(80)
    for family in ("train_steps_total", "train_collective_seconds_total", "train_tokens_total"):
        for rank in range(8):
            assert played.rank(family, rank) == undisturbed.rank(family, rank)


def test_a_dead_node_takes_its_ranks_along(play: Play) -> None:
    """INCIDENTS 20: nothing reports the node's ranks any longer; ranks elsewhere wait."""
    played = play(NodeDown(at=30, node=1), until=40)
    node = played.simulation.nodes[1]
    assert (node.up, node.exporter_up) == (False, False)
    assert played.rank("rank_phase_seconds", 0)["backward",] > 8


def test_a_node_out_of_reach_goes_on(play: Play) -> None:
    """INCIDENTS 20: a node that Prometheus cannot reach trains as before; a failed scrape is a single one."""
    played = play(ScrapeBlocked(at=30, lasts=10, node=1), ScrapeFailure(at=20, node=0, every=20), until=35)
    assert [node.reachable for node in played.simulation.nodes] == [True, False]
    reached = []
    for second in range(40, 60, 5):
        reached.append(played.until(second).simulation.nodes[0].reachable)
    assert reached == [False, True, True, True]
    assert played.simulation.nodes[1].reachable


@pytest.mark.parametrize(
    ("fault", "phase", "least", "most"),
    [
        (SlowLoader(at=20, share=0.35), "data", 0.32, 0.38),
        (SlowLoader(at=20, adds=0.5), "data", 0.30, 0.40),
        (SlowCollective(at=20, nodes=(1,), factor=5.0), "backward", 0.70, 0.80),
    ],
)
def test_slowness_of_the_whole_run_shows_in_its_phase(
    play: Play, fault: Fault, phase: str, least: float, most: float
) -> None:
    """INCIDENTS 3 and 5: the time goes where the cause is, on every rank."""
    played = play(fault, until=25)
    before = played.frames(rank=0)[-1]["metrics"]["phase_seconds_total"][phase]
    after = played.until(45).frames(rank=0)[-1]["metrics"]
    assert least < (after["phase_seconds_total"][phase] - before) / 20 < most
    assert after["data_queue_size"] == (0 if phase == "data" else pytest.approx(15, abs=1))


def test_checkpoints_and_evaluations_are_phases_of_all_ranks(play: Play) -> None:
    """Between steps all ranks save, then continue; rank 0 reports it. On one node rank 0 saves alone."""
    played = play(until=66)
    assert [played.said("phase_seconds_total", rank)["checkpoint"] for rank in (0, 7)] == [6, 6]
    assert played.rank("train_checkpoint_duration_seconds", 0) == 6
    assert played.rank("train_checkpoint_step", 7) is None
    alone = play(until=66, fleet=Fleet(run="llama", gpus_per_node=4))
    assert alone.said("phase_seconds_total", 0)["checkpoint"] == 6
    assert not alone.said("phase_seconds_total", 1)["checkpoint"]
    assert alone.said("collective_wait_seconds_total", 1)["all_reduce"] > 6


def test_a_change_of_batch_is_told_again(play: Play) -> None:
    """A changed fact is sent in a new hello, and tokens grow by the new batch."""
    played = play(BatchChange(at=30, factor=2), until=29)
    assert played.series("train_config_info")["0", "bf16", "1024", "pytorch 2.13.0", "causal", ""] == 1
    before = played.frames(rank=0)[-1]["metrics"]
    after = played.until(49).frames(rank=0)[-1]["metrics"]
    assert played.series("train_config_info")["0", "bf16", "2048", "pytorch 2.13.0", "causal", ""] == 1
    per_step = (after["tokens_total"] - before["tokens_total"]) / (after["steps_total"] - before["steps_total"])
    assert per_step == pytest.approx(2 * 65536 / 8, rel=0.1)
    assert after["invariant"]["global_batch"] == 2048


def test_longer_sequences_are_more_tokens_of_the_same_batch(play: Play) -> None:
    """Tokens, FLOPs and time of a step grow; samples, the batch and the configuration stay."""
    played = play(BatchChange(at=30, factor=2, of="sequences"), until=29)
    before, usual = played.frames(rank=0)[-1]["metrics"], played.rank("train_recent_step_seconds", 0)
    after = played.until(49).frames(rank=0)[-1]["metrics"]
    grown = {key: after[f"{key}_total"] - before[f"{key}_total"] for key in ("steps", "tokens", "flops", "samples")}
    assert grown["tokens"] == pytest.approx(2 * grown["steps"] * 65536 / 8, rel=0.1)
    assert grown["flops"] == pytest.approx(grown["tokens"] * 4.6e10)
    assert grown["samples"] == grown["steps"] * 1024 / 8
    assert played.rank("train_recent_step_seconds", 0) > 1.6 * usual
    assert after["invariant"]["global_batch"] == 1024


@pytest.mark.parametrize(("reports", "counted"), [("all", 3), ("tokens", 1), ("nothing", 0)])
def test_a_run_reports_what_it_knows_of_its_work(play: Play, reports: str, counted: int) -> None:
    """All of it, its tokens alone, or none: then only its steps are counted."""
    said = play(until=20, work=Work(reports=reports)).frames(rank=0)[-1]["metrics"]
    known = [key for key in ("tokens_total", "samples_total", "flops_total") if key in said]
    assert len(known) == counted
    assert ("tokens_total" in said) == (counted > 0)


def test_what_the_run_sets_for_itself_is_told(play: Play) -> None:
    """A run's own threshold reaches the exporter under its name; without one there is no series."""
    played = play(until=20, thresholds=ScenarioLimits(hang_seconds=600.0))
    assert played.rank("train_threshold", 3) == {("hang_seconds",): 600.0}
    assert play(until=20).rank("train_threshold", 3) is None
