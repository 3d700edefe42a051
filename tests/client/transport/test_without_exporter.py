"""A rank that nobody listens to: it goes on recording, for whoever comes later and for other places."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tachograph.client.core.steps import RING_LIMIT
from tachograph.client.recorder import Recorder

Make = Callable[..., Recorder]
Until = Callable[..., Any]


class Kept:
    """A sink that keeps the last frame."""

    def __init__(self) -> None:
        self.metrics: Mapping[str, float] = {}

    def write(self, time: float, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics = metrics

    def close(self) -> None:
        pass


def test_no_step_is_lost_however_late_the_exporter(exporter: Any, record: Make, until: Until) -> None:
    """The rings are emptied every second: more steps than they hold are all in the histogram in the end."""
    exporter.stop()
    exporter.path.unlink()
    recorder = record()
    for _ in range(2):
        for _ in range(RING_LIMIT - 1):
            with recorder.step() as step:
                step.log(loss=1.0)
        until(lambda: not recorder._calls.state.step.records and not recorder._calls.state.step.logged)
    exporter.start()
    state = exporter.wait_for()
    steps = 2 * (RING_LIMIT - 1)
    tagged = sum(state["metrics"]["tagged_steps_total"].values())
    assert state["histograms"]["step_seconds"]["count"] + tagged == state["metrics"]["steps_total"] == steps
    assert state["dropped"] == 0


def test_sinks_are_written_without_an_exporter(exporter: Any, record: Make, until: Until) -> None:
    """Another place for the numbers does not depend on the first one."""
    exporter.stop()
    exporter.path.unlink()
    sink = Kept()
    recorder = record(sinks=[sink])
    with recorder.step() as step:
        step.log(loss=2.5)
    assert until(lambda: sink.metrics.get("steps_total")) == 1
    assert sink.metrics["loss"] == 2.5


def test_a_fact_found_later_is_told(exporter: Any, record: Make) -> None:
    """Counting FLOPs makes a convention known after the hello: the rank says hello again with it."""
    recorder = record()
    exporter.wait_for()
    recorder._calls.state.workload.facts["flops_convention"] = "measured"
    exporter.wait_for("hello", where=lambda frame: frame["facts"].get("flops_convention") == "measured")
    exporter.next_state()


def test_batches_of_an_evaluation_are_not_counted(exporter: Any, record: Make) -> None:
    """One rank that evaluates alone has not drifted: batches and waits are no training's, queue and workers neither."""

    class Loader:
        _workers = (1,)

        def __iter__(self) -> Loader:
            return self

        def __next__(self) -> int:
            time.sleep(0.01)  # a wait to be booked
            raise StopIteration

    recorder, loader = record(), Loader()
    for _ in recorder.data([1, 2]):
        pass
    before = recorder._calls.state.clock.phases["data"].seconds
    with recorder.phase("eval"):
        assert list(recorder.data([1, 2, 3])) == [1, 2, 3]
        assert not list(recorder.data(loader))
    metrics = exporter.next_state()["metrics"]
    assert metrics["batches_total"] == 2
    assert "data_worker_restarts_total" not in metrics
    assert recorder._calls.state.clock.phases["data"].seconds == before
    assert recorder._calls.state.clock.phases["eval"].seconds >= 0.01


def test_where_a_rank_stands(record: Make) -> None:
    """Logs ask for run, rank, step and phase."""
    recorder = record(run="llama", rank=5, world_size=8)
    assert (recorder.identity.run, recorder.identity.rank) == ("llama", 5)
    assert recorder.position() == (0, "init")
    with recorder.step(480), recorder.phase("backward"):
        assert recorder.position() == (480, "backward")
