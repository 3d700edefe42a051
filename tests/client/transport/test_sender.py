"""What reaches an exporter that listens, and what is taken from its answer."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.catalog.rank import NONFINITE_SOURCES, USUAL_PHASES
from tachograph.catalog.train import TRAIN_METRICS
from tachograph.client.recorder import Recorder
from tachograph.client.transport import sender as module
from tachograph.wire import MAX_EVENTS, MAX_FRAME_BYTES, MAX_RATE_HZ, bucket_index

Make = Callable[..., Recorder]
Train = Callable[[Recorder, int], None]


def test_hello_says_who_speaks(exporter: Any, record: Make) -> None:
    """The first frame carries identity and facts."""
    record(rank=5, local_rank=1, world_size=8, attempt=2, precision="bf16", global_batch=1024, peak_flops=1e15)
    hello = exporter.wait_for("hello")
    assert {key: hello[key] for key in ("v", "run", "rank", "local_rank", "world_size", "attempt")} == {
        "v": 1, "run": "test", "rank": 5, "local_rank": 1, "world_size": 8, "attempt": 2,
    }  # fmt: skip
    assert {key: hello["facts"][key] for key in ("precision", "global_batch", "peak_flops")} == {
        "precision": "bf16", "global_batch": 1024, "peak_flops": 1e15,
    }  # fmt: skip


def test_state_carries_everything(exporter: Any, record: Make, train: Train) -> None:
    """Counters are exact, gauges are the last logged, label values that exist are there from the start."""
    recorder = record(world_size=2, tokens_per_step=1000, samples_per_step=8, flops_per_token=6)
    train(recorder, 12)
    recorder.checkpoint_saved(step=12, bytes=4096)
    state = exporter.next_state()
    metrics = state["metrics"]
    assert {
        key: metrics[key]
        for key in (
            "steps_total", "tokens_total", "samples_total", "flops_total", "batches_total", "loss", "grad_norm",
            "learning_rate", "checkpoints_total", "checkpoint_step", "checkpoint_bytes", "checkpoint_failures_total",
            "loss_spikes_total", "loss_spike_steps", "nonfinite_total",
        )
    } == {
        "steps_total": 12, "tokens_total": 6000, "samples_total": 48, "flops_total": 36000, "batches_total": 12,
        "loss": 2.0, "grad_norm": 0.5, "learning_rate": 1e-4, "checkpoints_total": 1, "checkpoint_step": 12,
        "checkpoint_bytes": 4096, "checkpoint_failures_total": 0, "loss_spikes_total": 0, "loss_spike_steps": 0,
        "nonfinite_total": dict.fromkeys(NONFINITE_SOURCES, 0),
    }  # fmt: skip
    assert set(metrics["phase_seconds_total"]) == set(USUAL_PHASES)
    assert set(metrics) <= set(TRAIN_METRICS)
    assert (state["step"], state["phase"], state["dropped"]) == (12, "other", 0)
    assert state["phase_since"] <= state["time"]
    assert state["progress_time"] <= state["time"]
    histogram = state["histograms"]["step_seconds"]
    assert histogram["count"] == sum(histogram["buckets"].values()) == 11  # the first one is no ordinary step
    assert int(min(histogram["buckets"], key=int)) >= bucket_index(1e-9)
    assert [(event["kind"], event["step"], event["id"]) for event in state["events"]] == [("checkpoint_saved", 12, 1)]


def test_before_the_first_step_there_is_no_progress(exporter: Any, record: Make) -> None:
    """Zero and absent are two things: no step yet means no time of the last one, and no loss."""
    record()
    state = exporter.wait_for()
    assert "progress_time" not in state
    assert not {"loss", "loss_zscore", "loss_spike_steps", "nonfinite_step", "tokens_total"} & set(state["metrics"])
    assert (state["metrics"]["steps_total"], state["phase"]) == (0, "init")


def test_a_step_is_stamped_once(exporter: Any, record: Make) -> None:
    """While no step completes its time stays to the last bit: the rules take what moves for progress."""
    recorder = record()
    with recorder.step():
        pass
    exporter.wait_for(where=lambda frame: "progress_time" in frame)
    frames = [exporter.next_state() for _ in range(3)]
    assert len({frame["progress_time"] for frame in frames}) == 1
    with recorder.step():
        pass
    exporter.wait_for(where=lambda frame: frame.get("progress_time", 0) > frames[0]["progress_time"])


def test_nonfinite_values_travel_as_strings(exporter: Any, record: Make) -> None:
    """NaN and infinities are words in JSON, and counted with the step they first came at."""
    recorder = record()
    for loss, norm in ((1.0, 1.0), (math.nan, math.inf), (1.0, -math.inf)):
        with recorder.step() as step:
            step.log(loss=loss, grad_norm=norm)
    with recorder.step() as step:
        step.log(loss=math.nan)
    metrics = exporter.next_state()["metrics"]
    assert (metrics["loss"], metrics["grad_norm"]) == ("NaN", "-Inf")
    assert metrics["nonfinite_total"] == {"loss": 2, "grad_norm": 2}
    assert metrics["nonfinite_step"] == {"loss": 1, "grad_norm": 1}


def test_an_event_does_not_wait_for_the_heartbeat(exporter: Any, record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A saved checkpoint is heard of although the next heartbeat is an hour away."""
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 3600.0)
    recorder = record()
    exporter.wait_for()
    recorder.checkpoint_saved(step=1)
    exporter.wait_for(where=lambda frame: frame["events"])


def test_a_heartbeat_every_second_and_never_above_ten(exporter: Any, record: Make) -> None:
    """A silent rank speaks at 1 Hz, one with many events at 10 Hz."""
    began = time.monotonic()
    recorder = record()
    exporter.wait_for()
    for step in range(200):
        recorder.checkpoint_saved(step=step)
        time.sleep(0.005)
    assert len(exporter.frames()) <= MAX_RATE_HZ * (time.monotonic() - began) + 1
    exporter.next_state()
    began, before = time.monotonic(), len(exporter.frames())
    for _ in range(3):
        exporter.next_state()
    assert len(exporter.frames()) - before <= (time.monotonic() - began) / module.HEARTBEAT_SECONDS + 1


def test_it_speaks_while_the_main_thread_is_stuck(exporter: Any, start: Callable[..., Any]) -> None:
    """A rank blocked in a collective keeps its heartbeat, and its phase grows."""
    process = start(
        """
        with recorder.phase("collective"):
            say("stuck")
            lock = threading.Lock(); lock.acquire(); lock.acquire(timeout=20)
        """
    )
    process.hear("stuck")
    first = exporter.wait_for(where=lambda frame: frame["phase"] == "collective")
    later = exporter.wait_for(where=lambda frame: frame["time"] > first["time"] + 1.5)
    assert later["phase_since"] < later["time"] - 1
    grown = (frame["metrics"]["phase_seconds_total"]["collective"] for frame in (later, first))
    assert next(grown) - next(grown) > 1
    lost = (frame["metrics"]["lost_seconds_total"]["collective"] for frame in (later, first))
    assert next(lost) - next(lost) > 1


def test_last_step_comes_from_the_answer(exporter: Any, record: Make, until: Callable[..., Any]) -> None:
    """What the exporter remembers of this rank's earlier life; None until it said so."""
    exporter.answer = {"ok": True, "last_step": 480}
    recorder = record()
    assert until(lambda: recorder.last_step) == 480


def test_the_end_of_an_earlier_process_comes_from_the_answer(
    exporter: Any, record: Make, until: Callable[..., Any]
) -> None:
    """How long ago the exporter last heard of it, beside the step it was at."""
    exporter.answer = {"ok": True, "last_step": 480, "ended": 1763689999.5, "ended_seconds": 1e6}
    before, sender = time.perf_counter(), record()._calls.sender
    assert before - 1e6 <= until(lambda: sender.ended) <= time.perf_counter() - 1e6
    assert sender.last_step == 480


def test_an_earlier_exporter_tells_the_time_of_the_day(exporter: Any, record: Make, until: Callable[..., Any]) -> None:
    """Of which its age is made at once."""
    ended, before = time.time() - 1e6, time.perf_counter()
    exporter.answer = {"ok": True, "last_step": 480, "ended": ended}
    sender = record()._calls.sender
    assert until(lambda: sender.ended) == pytest.approx(before - 1e6, abs=120)


@pytest.mark.parametrize("more", [{}, {"ended": None}, {"ended": "soon"}, {"ended": True}, {"ended": [1]}])
def test_an_exporter_that_knows_of_no_end(exporter: Any, record: Make, more: Any, until: Callable[..., Any]) -> None:
    """An exporter of before this field, one that knows of no earlier process, or nonsense: None, and all goes on."""
    exporter.answer = {"ok": True, "last_step": 480, **more}
    recorder = record()
    assert until(lambda: recorder.last_step) == 480
    assert recorder._calls.sender.ended is None
    exporter.next_state()


def test_only_the_first_answer_speaks_of_an_earlier_process(exporter: Any, record: Make) -> None:
    """To a hello that is repeated, or to that of a reconnection, the exporter tells of this very process."""
    recorder = record()
    exporter.wait_for()
    exporter.answer = {"ok": True, "last_step": 7, "ended": 1763689999.5}
    recorder._calls.state.accelerator.uuid = "GPU-1234"
    exporter.wait_for("hello", lambda frame: frame.get("uuid"))
    exporter.next_state()
    exporter.stop()
    exporter.restart()
    exporter.next_state()
    assert (recorder.last_step, recorder._calls.sender.ended) == (None, None)


def test_no_frame_is_ever_too_long(exporter: Any, record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are left out before a frame exceeds the limit, and the rest still arrives."""
    recorder = record()
    exporter.wait_for()
    bulky = [{"id": 1, "kind": "x" * MAX_FRAME_BYTES, "time": 0.0, "step": 0}]
    monkeypatch.setattr(recorder._calls.state.checkpoints, "events", bulky)
    state = exporter.next_state()
    assert state["events"] == []
    assert max(len(line) for talk in exporter.talks for line in talk.lines) <= MAX_FRAME_BYTES


def test_a_frame_that_cannot_be_short_is_dropped_and_counted(
    exporter: Any, record: Make, monkeypatch: pytest.MonkeyPatch, until: Callable[..., Any]
) -> None:
    """What does not fit without events either is not sent; the count says so once frames fit again."""
    recorder = record()
    exporter.wait_for()
    with monkeypatch.context() as patch:
        patch.setattr(
            recorder._calls.state._groups, "metrics", lambda: {"collective_enqueued": {"g" * MAX_FRAME_BYTES: 1}}
        )
        until(lambda: recorder._calls.state.dropped.count)
    assert exporter.next_state()["dropped"] >= 1
    assert max(len(line) for talk in exporter.talks for line in talk.lines) <= MAX_FRAME_BYTES


def test_a_reading_that_fails_costs_one_frame(
    exporter: Any, record: Make, monkeypatch: pytest.MonkeyPatch, until: Callable[..., Any]
) -> None:
    """A fault of the client's own never ends the telemetry."""
    recorder = record()
    exporter.wait_for()
    with monkeypatch.context() as patch:
        patch.setattr(recorder._calls.state._groups, "metrics", lambda: 1 / 0)
        until(lambda: recorder._calls.state.dropped.count)
    assert exporter.next_state()["dropped"] >= 1


def test_events_that_left_no_trace_are_counted(exporter: Any, record: Make) -> None:
    """A frame holds the last 64 events; those pushed out before any frame carried them are counted."""
    exporter.stop()
    recorder = record()
    for step in range(MAX_EVENTS + 3):
        recorder.checkpoint_saved(step=step)
    exporter.restart()
    state = exporter.wait_for()
    assert ([event["step"] for event in state["events"]], state["dropped"]) == (list(range(3, MAX_EVENTS + 3)), 3)


def test_the_device_found_late_is_told(exporter: Any, record: Make, until: Callable[..., Any]) -> None:
    """CUDA is often initialised after the first hello: the rank says hello again on the same connection."""
    recorder = record()
    exporter.wait_for()
    recorder._calls.state.accelerator.uuid = "GPU-1234"
    hello = exporter.wait_for("hello", lambda frame: frame.get("uuid"))
    assert hello["uuid"] == "GPU-1234"
    exporter.next_state()
    assert len(exporter.talks) == 1


def test_the_learning_rate_of_a_watched_optimizer(exporter: Any, record: Make) -> None:
    """Read from the first parameter group, unless it is logged."""

    class Optimizer:
        def __init__(self, rate: object) -> None:
            self.param_groups = [{"lr": rate}]

    optimizer, odd = Optimizer(0.25), Optimizer("fast")
    recorder = record()
    recorder.watch(optimizer=optimizer)
    assert exporter.next_state()["metrics"]["learning_rate"] == 0.25
    recorder.watch(optimizer=odd)
    assert "learning_rate" not in exporter.next_state()["metrics"]
    with recorder.step() as step:
        step.log(learning_rate=0.5)
    recorder.watch(optimizer=optimizer)
    assert exporter.next_state()["metrics"]["learning_rate"] == 0.5


def test_close_from_many_threads(exporter: Any, record: Make, train: Train) -> None:
    """One bye, however many close at once; nothing after it; and calls on the closed recorder are harmless."""
    recorder = record()
    exporter.wait_for()
    threads = [threading.Thread(target=recorder.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    train(recorder, 2)
    recorder.checkpoint_saved(step=1)
    recorder.close()
    talk = exporter.talks[0]
    exporter.wait_for("bye")
    assert [frame["type"] for frame in talk.frames].count("bye") == 1
    assert talk.frames[-1] == {"v": 1, "type": "bye", "outcome": "finished", "category": "", "message": ""}


def test_two_recorders_in_one_process(exporter: Any, record: Make, train: Train) -> None:
    """Each has its own connection and counts."""
    first, second = record(run="first"), record(run="second", rank=1)
    train(first, 3)
    train(second, 4)
    exporter.next_state()
    exporter.next_state()
    counts = {
        talk.of("hello")[0]["run"]: max(frame["metrics"]["steps_total"] for frame in talk.of("state"))
        for talk in exporter.talks
    }
    assert counts == {"first": 3, "second": 4}
    first.close()
    seen = len(exporter.frames())
    exporter.next_state()
    assert len(exporter.frames()) > seen


def test_frames_are_one_line_of_strict_json(exporter: Any, record: Make) -> None:
    """No NaN literal, no newline inside, whatever a run is called."""
    record(run='a "run" {named} ünïcode')
    exporter.wait_for()
    for line in exporter.talks[0].lines:
        json.loads(line, parse_constant=pytest.fail)
    assert exporter.frames("hello")[0]["run"] == 'a "run" {named} ünïcode'


def test_a_second_recorder_of_a_rank_ends_the_first(exporter: Any, record: Make, train: Train) -> None:
    """A notebook's cell that is run again: two would take the rank from each other for ever, each time as a restart."""
    train(record(), 2)
    exporter.wait_for(where=lambda frame: frame["metrics"]["steps_total"] == 2)
    second = record()
    assert exporter.wait_for("bye")["outcome"] == "finished"
    train(second, 3)
    exporter.wait_for(where=lambda frame: frame["metrics"]["steps_total"] == 3)
    assert len(exporter.talks) == 2
    record(rank=1, world_size=2)
    assert exporter.wait_for("hello", where=lambda frame: frame["rank"] == 1)
    assert len(exporter.talks) == 3
