"""Sources, sinks and traces beside the recorder's own parts: what they get, and what they cannot break."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tachograph.catalog.rank import USUAL_PHASES
from tachograph.catalog.train import LOGGABLE, TRAIN_METRICS, WORK
from tachograph.client.core.steps import StepRecord
from tachograph.client.hello.identity import Identity, discover
from tachograph.client.hello.workload import Workload
from tachograph.client.recorder import Recorder
from tachograph.client.transport import guarded
from tachograph.client.transport.rank_state import RankState

Make = Callable[..., Recorder]


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self, *, broken: bool = False) -> None:
        self.frames: list[tuple[float, int, Mapping[str, float]]] = []
        self.calls = 0
        self.closed = 0
        self._broken = broken

    def write(self, time: float, step: int, metrics: Mapping[str, float]) -> None:
        self.calls += 1
        if self._broken:
            raise ConnectionError("no service")
        self.frames.append((time, step, metrics))

    def close(self) -> None:
        self.closed += 1


def test_a_sink_gets_the_frames_numbers_flat(exporter: Any, record: Make) -> None:
    """Keys are the wire's, or `name/label`; all values are numbers, NaN among them; the step is the rank's."""
    sink = Kept()
    recorder = record(sinks=[sink])
    with recorder.step() as step, recorder.phase("forward"):
        step.log(loss=math.nan)
    exporter.next_state()
    exporter.next_state()
    _, step_number, metrics = sink.frames[-1]
    assert step_number == 1
    assert metrics["steps_total"] == 1
    assert math.isnan(metrics["loss"])
    assert {f"phase_seconds_total/{phase}" for phase in USUAL_PHASES} <= set(metrics)
    for key, value in metrics.items():
        assert isinstance(value, (int, float))
        assert (TRAIN_METRICS[key.partition("/")[0]].own_label is not None) == ("/" in key)


def test_a_sink_is_closed_once(exporter: Any, record: Make) -> None:
    """At `close`, after the goodbye; not again at exit, and nothing is written to it after."""
    sink = Kept()
    recorder = record(sinks=[sink])
    exporter.wait_for()
    recorder.close()
    recorder.close()
    assert sink.closed == 1
    assert exporter.wait_for("bye")


@pytest.fixture
def report() -> RankState:
    """A rank that speaks to nobody."""
    return RankState(discover({"run": "test", "rank": 0}, {}), Workload(1))


def test_a_broken_sink_costs_itself_alone(report: RankState) -> None:
    """It is asked five times, counted five times, and dropped; the frame and the other sink get what is due."""
    broken, sound = Kept(broken=True), Kept()
    report.sinks.add(broken)
    report.sinks.add(sound)
    for _ in range(7):
        report._sunk_at = 0.0
        state = report.frame()
    assert (broken.calls, len(sound.frames), state["dropped"]) == (guarded.FAILURES, 7, guarded.FAILURES)


def test_a_burst_of_frames_is_one_for_a_sink(report: RankState) -> None:
    """Events may send ten frames a second; sinks get the first of each second."""
    sink = Kept()
    report.sinks.add(sink)
    for _ in range(5):
        report.frame()
    assert len(sink.frames) == 1


@pytest.mark.parametrize("wrong", [5, "wandb", [None], object()])
def test_what_is_no_sink_costs_nothing(wrong: Any, exporter: Any, record: Make) -> None:
    """A wrong argument is counted, and the rank is recorded all the same."""
    recorder = record(sinks=wrong)
    with recorder.step():
        pass
    assert exporter.wait_for(where=lambda frame: frame["dropped"])["metrics"]


class Given:
    """A source with given values, once or always."""

    def __init__(self, *pairs: tuple[Any, Any], then: Exception | None = None) -> None:
        self._pairs = pairs
        self._then = then
        self.asked = 0

    def metrics(self) -> Iterator[tuple[Any, Any]]:
        self.asked += 1
        yield from self._pairs
        if self._then is not None:
            raise self._then


def test_a_source_adds_to_the_frame_and_never_stands_above_what_is_measured(exporter: Any, record: Make) -> None:
    """An integration may report tokens; it cannot overwrite the steps."""
    recorder = record()
    recorder.add_source(Given(("tokens_total", 7), ("steps_total", 99), ("nonfinite_total", {"loss": 3})))
    metrics = exporter.next_state()["metrics"]
    assert (metrics["tokens_total"], metrics["steps_total"]) == (7, 0)
    assert metrics["nonfinite_total"] == {"loss": 0, "grad_norm": 0}


WRONG: tuple[tuple[Any, Any], ...] = (
    ("perplexity", 1.0),
    (None, 1.0),
    ([], 1.0),
    ("tokens_total", "many"),
    ("tokens_total", None),
    ("tokens_total", True),
    ("tokens_total", {"a": 1}),
    ("tokens_total", 10**400),
    ("invariant", 1.0),
    ("invariant", {"a": "b"}),
)


@pytest.mark.parametrize("pair", WRONG, ids=repr)
def test_what_a_source_says_wrongly_is_counted_and_left_out(pair: Any, report: RankState) -> None:
    """An unknown metric, an unexpected label, a value that is not a number: each is dropped alone."""
    report.added_sources.add(Given(pair, ("samples_total", 3)))
    state: dict[str, Any] = report.frame()
    assert (state["metrics"]["samples_total"], state["dropped"]) == (3, 1)
    assert not {"tokens_total", "invariant"} & set(state["metrics"])


def test_a_source_that_fails_keeps_what_it_said_before(report: RankState) -> None:
    """It is asked five times in all, and the frame has everything else."""
    source = Given(("samples_total", 3), then=RuntimeError("mid-way"))
    report.added_sources.add(source)
    states: list[Any] = [report.frame() for _ in range(7)]
    assert [state["metrics"].get("samples_total") for state in states] == [3] * 5 + [None] * 2
    assert [state["dropped"] for state in states] == [1, 2, 3, 4, 5, 5, 5]
    assert source.asked == guarded.FAILURES


def test_what_is_no_source_is_counted(record: Make) -> None:
    """Anything without `metrics` to call."""
    recorder = record()
    for wrong in (None, 5, object()):
        recorder.add_source(wrong)  # type: ignore[arg-type]
    assert recorder._calls.state.dropped.count == 3


def test_what_may_be_logged() -> None:
    """`step.log` takes plain gauges that a loop knows, and what a step is worth; all else is refused."""
    worked_out = {
        "step", "loss_zscore", "loss_trailing_zscore", "loss_log_zscore", "loss_spike_steps", "grad_norm_spike_steps",
        "grad_norm_level", "dead_layers", "schedule_step", "host_memory_bytes", "resume_step",
        "checkpoint_timestamp_seconds", "checkpoint_step", "checkpoint_bytes", "checkpoint_duration_seconds",
        "checkpoint_load_duration_seconds", "recent_step_seconds", "recent_steps", "recent_wait_seconds",
        "step_unmarked_seconds", "val_loss_spike_evaluations", "checkpoint_free_ratio",
        "loss_nonfinite_timestamp_seconds", "grad_norm_nonfinite_steps", "data_workers",
    }  # fmt: skip
    plain = {key for key, row in TRAIN_METRICS.items() if row.kind == "gauge" and row.own_label is None}
    assert plain == LOGGABLE | worked_out
    assert not LOGGABLE & worked_out
    assert WORK == {"tokens": "tokens_total", "samples": "samples_total", "flops": "flops_total"}


class Tracing:
    """A trace that notes what it sees."""

    def __init__(self, fails: str = "") -> None:
        self.seen: list[str] = []
        self._fails = fails

    def start(self, identity: Identity) -> None:
        self.seen.append(f"start {identity.run}")
        if self._fails == "start":
            raise OSError("read-only")

    def phase(self, inner: AbstractContextManager[None], name: str) -> AbstractContextManager[None]:
        seen = self.seen

        class Both:
            def __enter__(self) -> None:
                seen.append(name)
                inner.__enter__()

            def __exit__(self, *exception: Any) -> None:
                inner.__exit__(*exception)

        return Both()  # type: ignore[return-value]

    def observe(self, record: StepRecord) -> None:
        self.seen.append(f"step {record.number}")

    def close(self) -> None:
        self.seen.append("close")
        if self._fails == "close":
            raise OSError("disk full")


def test_a_trace_sees_phases_collectives_batches_and_steps(exporter: Any, record: Make) -> None:
    """All through the recorder's usual calls, whose times stay what they are."""
    trace = Tracing(fails="close")
    recorder = record(trace=trace)
    for _ in recorder.data([1]):
        with recorder.step(), recorder.phase("backward"), recorder.collective("all_reduce"):
            pass
    metrics = exporter.next_state()["metrics"]
    assert metrics["collectives_total"] == {"all_reduce": 1}
    assert metrics["phase_seconds_total"]["backward"] > 0
    recorder.close()
    recorder.close()
    assert trace.seen == ["start test", "data", "data", "backward", "all_reduce", "data", "step 0", "close"]


def test_a_trace_that_cannot_start_is_left_out(exporter: Any, record: Make) -> None:
    """Counted once; phases are recorded without it."""
    trace = Tracing(fails="start")
    recorder = record(trace=trace)
    with recorder.step(), recorder.phase("forward"):
        pass
    state = exporter.next_state()
    assert (state["dropped"], state["metrics"]["steps_total"], trace.seen) == (1, 1, ["start test"])
