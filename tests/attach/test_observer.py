"""Where steps begin and end, told from batches, backwards and optimizer steps in whatever order they come."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from tachograph.attach.evaluations import LoaderState
from tachograph.attach.observer import Observer
from tachograph.attach.saves import Saved
from tachograph.attach.script_recording import ScriptRecording
from tachograph.attach.summary import Summary
from tachograph.client.core.steps import StepRecord
from tachograph.client.recorder import Recorder


class Parameter:
    """Something that is trained."""


class Optimizer:
    """Something that steps."""

    def __init__(self, steps: int = 0) -> None:
        self.param_groups = [{"lr": 0.5, "params": [Parameter()]}]
        self.state = {"a parameter": {"step": steps}} if steps else {}


class Tensor:
    """A tensor of one number, by PyTorch's own name, and without a graph."""

    __module__ = "torch"
    grad_fn = None

    def __init__(self, value: float) -> None:
        self.value = value

    def numel(self) -> int:
        return 1

    def detach(self) -> Number:
        return Number(self.value)


class Number(float):
    """A tensor of 32 bits as far as it is asked."""

    def clone(self) -> Number:
        return self

    def element_size(self) -> int:
        return 4


@pytest.fixture
def observer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Observer]:
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TACHOGRAPH_DISABLED"):
        monkeypatch.delenv(variable, raising=False)
    made = Observer(ScriptRecording(lambda: Recorder(run="test", socket=tmp_path / "nobody.sock"), Summary()))
    yield made
    if made.recording.loop is not None:
        made.recording.loop.recorder.close()


class Records(list[StepRecord]):
    """Every completed step; the recorder's thread hands them over, `told` the last ones."""

    def observe(self, record: StepRecord) -> None:
        """Keep a step."""
        self.append(record)


def records_of(observer: Observer) -> Records:
    loop = observer.recording.here()
    assert loop is not None
    records = Records()
    loop.recorder._calls.state.observers.add(records)
    return records


def told(observer: Observer) -> dict[str, Any]:
    assert observer.recording.loop is not None
    observer.recording.loop.recorder.close()  # its thread takes from the same rings
    metrics: Any = observer.recording.loop.recorder._calls.state.frame()["metrics"]
    return dict(metrics)


def phase(observer: Observer) -> str:
    assert observer.recording.loop is not None
    return observer.recording.loop.recorder._calls.state.clock.current.name


def backward(observer: Observer) -> None:
    observer.backward_begins(None)
    observer.backward_ends()


def fetch(observer: Observer, feed: LoaderState, *, learning: bool) -> str:
    """Fetch a batch; return the phase in which it was waited for."""
    training = observer.fetching(feed, learning)
    waited_in = phase(observer) if observer.recording.loop is not None else "none"
    if training:
        observer.delivered(feed)
    return waited_in


def step(observer: Observer, optimizer: Any) -> None:
    observer.update_begins(optimizer)
    observer.update_ends(optimizer, optimizer)


def test_nothing_is_recorded_before_something_is_trained(observer: Observer) -> None:
    """The recorder begins with the first event: a script that makes one of its own comes first."""
    assert observer.recording.loop is None
    observer.recording.joined()
    assert not observer.saving()
    observer.mode_set(object(), False)
    observer.clipped(1.0)
    observer.exhausted()
    assert observer.recording.loop is None
    observer.recording.script_records()
    fetch(observer, LoaderState(), learning=True)
    assert observer.recording.loop is None
    assert observer.summary.own_recorder


def test_a_script_that_records_later_ends_our_record(observer: Observer) -> None:
    """Nothing is recorded twice, also where the script's recorder comes late."""
    backward(observer)
    observer.recording.script_records()
    step(observer, Optimizer())
    assert told(observer)["steps_total"] == 0


def test_each_phase_is_where_it_says(observer: Observer) -> None:
    """From the batch to backward is forward; then backward, and the optimizer; between them and after is other."""
    optimizer = Optimizer()
    fetch(observer, LoaderState(), learning=True)
    assert phase(observer) == "forward"
    observer.backward_begins(None)
    assert phase(observer) == "backward"
    observer.backward_begins(None)  # activation checkpointing
    observer.backward_ends()
    assert phase(observer) == "backward"
    observer.backward_ends()
    assert phase(observer) == "other"
    observer.update_begins(optimizer)
    assert phase(observer) == "optimizer"
    observer.update_ends(optimizer, optimizer)
    assert phase(observer) == "other"
    assert told(observer)["steps_total"] == 1


def test_accumulated_batches_are_one_step(observer: Observer) -> None:
    """Batches and backwards before an optimizer step belong to it."""
    feed, optimizer = LoaderState(), Optimizer()
    for _ in range(3):
        fetch(observer, feed, learning=True)
        first = perf_counter()
        backward(observer)
        for _ in range(3):
            fetch(observer, feed, learning=True)
            backward(observer)
        step(observer, optimizer)
        assert observer.recording.loop is not None
        _, began, *_ = observer.recording.loop.recorder._calls.state.step.records.pop()
        assert began < first  # the step holds all of them
    assert told(observer)["steps_total"] == 3


def test_the_loss_is_what_the_outer_backward_began_from(observer: Observer) -> None:
    """Activation checkpointing calls backward from within, on other tensors; a loss of 0 is one."""
    optimizer = Optimizer()
    observer.backward_begins(Tensor(0.0))
    observer.backward_begins(Tensor(7.0))
    observer.backward_ends()
    observer.backward_ends()
    step(observer, optimizer)
    assert told(observer)["loss"] == 0.0
    raw, scaled = Tensor(float("nan")), Tensor(65536.0)
    observer.scaled(object(), raw, scaled)
    observer.backward_begins((scaled,))
    observer.backward_ends()
    step(observer, optimizer)
    assert told(observer)["loss"] == "NaN"


def test_the_loss_of_a_step_is_the_sum_of_its_micro_batches(observer: Observer) -> None:
    """A script divides the loss of each micro-batch; what precedes another optimizer's step belongs to that one."""
    first, second = Optimizer(), Optimizer()
    for _ in range(2):
        for value in (1.0, 2.5):
            observer.backward_begins(Tensor(value))
            observer.backward_ends()
        step(observer, first)
        observer.backward_begins(Tensor(100.0))
        observer.backward_ends()
        step(observer, second)
    assert told(observer)["loss"] == 3.5


def test_a_restored_optimizer_says_where_the_count_goes_on(observer: Observer) -> None:
    """The state of an optimizer that was restored holds the steps it has made: the first one has that number."""
    optimizer, records = Optimizer(150), records_of(observer)
    observer.delivered(LoaderState())
    began = perf_counter()
    for _ in range(3):
        backward(observer)
        step(observer, optimizer)
    metrics = told(observer)
    assert [record.number for record in records] == [150, 151, 152]
    assert records[0].began < began
    assert (metrics["resume_step"], metrics["tagged_steps_total"]) == (150, {"warm-up": 1})


def test_a_step_without_a_loader_begins_where_the_last_one_ended(observer: Observer) -> None:
    """There is no batch to begin it; a save or an evaluation in between is no part of it."""
    optimizer, records, ends = Optimizer(), records_of(observer), []
    for _ in range(3):
        backward(observer)
        backward(observer)
        step(observer, optimizer)
        assert phase(observer) == "forward"
        ends.append(perf_counter())
    assert observer.saving()
    assert observer.saving()
    assert phase(observer) == "checkpoint"
    observer.saved(lambda: Saved(True))
    assert phase(observer) == "checkpoint"
    observer.saved(lambda: Saved(True))
    assert phase(observer) == "forward"
    saved = perf_counter()
    backward(observer)
    assert phase(observer) == "forward"  # the steps before had two backwards
    backward(observer)
    assert phase(observer) == "other"
    step(observer, optimizer)
    metrics = told(observer)
    assert records[1].ended < records[2].began < ends[1]
    assert ends[2] < records[3].began < saved
    assert metrics["checkpoints_total"] == 1
    assert metrics["tagged_steps_total"] == {"warm-up": 1}


def test_two_loaders_at_once_and_one_ahead_make_no_more_steps(observer: Observer) -> None:
    """A batch that comes before another one is no step of its own: zipped loaders, prefetching by one."""
    first, second, optimizer = LoaderState(), LoaderState(), Optimizer()
    fetch(observer, second, learning=True)
    for _ in range(5):
        fetch(observer, first, learning=True)
        fetch(observer, second, learning=True)
        backward(observer)
        step(observer, optimizer)
    assert told(observer)["steps_total"] == 5


def test_evaluation_is_told_by_gradients_or_by_batches_never_trained_on(observer: Observer) -> None:
    """Without gradients at once, with gradients from the third batch on; training goes on as a step of its own."""
    training, validation, optimizer = LoaderState(), LoaderState(), Optimizer()
    fetch(observer, training, learning=True)
    backward(observer)
    step(observer, optimizer)
    fetch(observer, validation, learning=False)
    assert phase(observer) == "eval"
    observer.exhausted(validation)
    assert phase(observer) == "other"
    for _ in range(3):
        fetch(observer, validation, learning=True)
    assert phase(observer) == "eval"
    fetch(observer, training, learning=True)
    assert phase(observer) == "forward"
    backward(observer)
    step(observer, optimizer)
    assert told(observer)["steps_total"] == 2


def test_a_validation_that_is_broken_off_ends_with_the_next_batch_to_train_on(observer: Observer) -> None:
    """Each batch is judged as it is asked for: a validation left by `break` does not make the epoch an evaluation."""
    training, validation, optimizer = LoaderState(), LoaderState(), Optimizer()
    assert fetch(observer, validation, learning=False) == "eval"
    for _ in range(3):
        assert fetch(observer, training, learning=True) != "eval"
        assert phase(observer) == "forward"
        backward(observer)
        step(observer, optimizer)
    assert told(observer)["tagged_steps_total"] == {"warm-up": 1}


def test_the_first_optimizer_makes_the_steps(observer: Observer) -> None:
    """Two optimizers in one iteration (a GAN) are one step; once the first is gone another one counts."""
    feed, first, second = LoaderState(), Optimizer(), Optimizer()
    for _ in range(3):
        fetch(observer, feed, learning=True)
        for optimizer in (first, second):
            backward(observer)
            step(observer, optimizer)
    assert observer.summary.steps == 3
    trained = first.param_groups
    del first, optimizer
    step(observer, second)
    assert told(observer)["steps_total"] == 4
    del trained


def test_a_closure_runs_inside_the_optimizer(observer: Observer) -> None:
    """L-BFGS calls the script back from within its step, more than once: that is forward and backward."""
    optimizer = Optimizer()
    observer.update_begins(optimizer, closure=True)
    for _ in range(2):
        observer.closure_begins()
        assert phase(observer) == "forward"
        backward(observer)
        observer.closure_ends()
        assert phase(observer) == "optimizer"
    observer.update_ends(optimizer, optimizer)
    assert told(observer)["steps_total"] == 1


def test_other_threads_are_not_watched(observer: Observer) -> None:
    """Phases belong to the training thread: what a prefetching thread fetches is not told."""
    backward(observer)
    thread = threading.Thread(target=observer.fetching, args=(LoaderState(), False))
    thread.start()
    thread.join()
    assert phase(observer) == "other"


def test_a_fault_of_the_recorder_is_no_fault_of_the_script() -> None:
    """A recorder that cannot be made: every event is taken and nothing raised."""

    def broken() -> Recorder:
        raise OSError("no more files")

    observer = Observer(ScriptRecording(broken, Summary()))
    assert observer.recording.here() is None
    fetch(observer, LoaderState(), learning=True)
    backward(observer)
    step(observer, Optimizer())
    assert observer.recording.loop is None
