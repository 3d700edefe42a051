"""Steps: counted exactly, timed into buckets, and what is logged for them."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import weakref
from typing import Any

import pytest

from tachograph.catalog.rank import PHASES
from tachograph.client.core import pinned
from tachograph.client.core.counters import Counter
from tachograph.client.core.garbage import GarbageTag
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.scalars import number
from tachograph.client.core.step_histogram import StepHistogram
from tachograph.client.core.steps import PENDING_LIMIT, RING_LIMIT, ExposedWait, Step, StepRecord, step_record
from tachograph.node.histograms import parse
from tachograph.wire import FINE_INDEX_RANGE, FINE_SCHEMA, MAX_FINE_BUCKETS, bucket_index
from tests.client.fake_cuda import Cuda, Tensor


@pytest.fixture
def step() -> Step:
    """A step of its own clock."""
    return Step(PhaseClock(), Counter())


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that phases and steps see; set `now[0]`."""
    moment = [100.0]
    monkeypatch.setattr("tachograph.client.core.phases.perf_counter", lambda: moment[0])
    monkeypatch.setattr("tachograph.client.core.steps.perf_counter", lambda: moment[0])
    return moment


def test_steps_are_numbered_from_zero(step: Step) -> None:
    """`number` is the step in progress, `next` what comes after, whichever way the loop is left."""
    for expected in range(3):
        with step as same:
            assert (same.number, same.next) == (expected, expected)
    assert (step.next, step.completed) == (3, 3)


def test_a_failed_step_is_not_counted(step: Step) -> None:
    """An exception passes through; the step is neither completed nor timed, and is tried again under its number."""
    with pytest.raises(ZeroDivisionError), step:
        _ = 1 / 0
    assert (step.completed, len(step.records), step.next, step.ended) == (0, 0, 0, None)


def test_the_count_stays_exact_when_the_ring_is_full(step: Step) -> None:
    """Durations beyond the ring are dropped and counted; the number of steps is not touched by that."""
    for _ in range(RING_LIMIT + 5):
        with step:
            pass
    assert step.completed == RING_LIMIT + 5
    assert len(step.records) == RING_LIMIT
    assert step._dropped.count == 5


def test_logs_beyond_the_ring_are_counted(step: Step) -> None:
    """A sender that cannot keep up costs readings, not memory."""
    for _ in range(RING_LIMIT + 2):
        step.log(loss=1.0)
    assert (len(step.logged), step._dropped.count) == (RING_LIMIT, 2)


def test_log_accepts_any_name() -> None:
    """Even `self` is only a name: what the catalog does not hold is sorted out later."""
    step = Step(PhaseClock(), Counter())
    step.log(self=1.0, values=2.0)
    assert step.logged.pop()[1] == {"self": 1.0, "values": 2.0}


def record(seconds: float, tag: str | None = None) -> StepRecord:
    """Make a step that took `seconds`."""
    return StepRecord(0, 0.0, seconds, tag, (0.0,) * len(PHASES), 0.0)


def test_histogram_buckets_hold_their_values() -> None:
    """Each duration is in the bucket whose bounds hold it; sum and count are exact."""
    histogram = StepHistogram()
    for seconds in (0.0, 0.5, 0.5, 0.51, 3.0):
        histogram.observe(record(seconds))
    frame: dict[str, Any] = histogram.frame()
    assert (frame["count"], frame["sum"], frame["schema"]) == (5, pytest.approx(4.51), 3)
    assert frame["fine"] == {str(FINE_INDEX_RANGE[0]): 1, "-32": 2, "-31": 1, str(bucket_index(3.0, FINE_SCHEMA)): 1}
    assert frame["buckets"] == {"-64": 1, "-8": 2, "-7": 1, str(bucket_index(3.0)): 1}


def test_a_histogram_of_many_buckets_is_sent_coarse() -> None:
    """Beyond what an exporter takes of fine buckets, a frame has the others alone."""
    histogram = StepHistogram()
    low = FINE_INDEX_RANGE[0]
    for index in range(low, low + MAX_FINE_BUCKETS):
        histogram.observe(record(2.0 ** (index / 2**FINE_SCHEMA)))
    assert len(parse(json.loads(json.dumps(histogram.frame()))).counts) == MAX_FINE_BUCKETS
    histogram.observe(record(500.0))
    frame: dict[str, Any] = histogram.frame()
    assert "fine" not in frame
    assert sum(frame["buckets"].values()) == frame["count"] == MAX_FINE_BUCKETS + 1
    assert parse(json.loads(json.dumps(frame))).fine is False


def test_tagged_steps_are_counted_and_stay_out_of_the_histogram() -> None:
    """A step with a tag is in no bucket; before there is one, the family is absent."""
    histogram = StepHistogram()
    assert dict(histogram.metrics()) == {}
    for tag in ("gc", None, "eval", "gc"):
        histogram.observe(record(0.5, tag))
    assert dict(histogram.metrics()) == {"tagged_steps_total": {"gc": 2, "eval": 1}}
    assert histogram.frame()["count"] == 1


def test_a_record_says_what_the_step_was(now: list[float]) -> None:
    """Number, begin, end, and what every phase had at the end, in the order of PHASES; the wait is asked for once."""
    clock = PhaseClock()
    wait = ExposedWait()
    wait.seconds, wait.more = 0.15, lambda: 0.1
    step = Step(clock, Counter(), wait=wait)
    now[0] += 1
    with step:
        for number, name in enumerate(PHASES):
            with clock.phases[name]:
                now[0] += 2**number
    done = step_record(step.records.pop())
    assert (done.number, done.began, done.ended, done.wait) == (0, 101.0, 100.0 + 2 ** len(PHASES), 0.25)
    assert done.seconds == (2.0, *(2.0**number for number in range(1, len(PHASES))))


def tags(step: Step) -> list[str | None]:
    """Return the tags of the steps so far."""
    return [fields[3] for fields in step.records]


def test_the_first_completed_step_is_warm_up(step: Step) -> None:
    """One that fails does not use it up; the next ones are ordinary."""
    with contextlib.suppress(ZeroDivisionError), step:
        _ = 1 / 0
    for _ in range(3):
        with step:
            pass
    assert tags(step) == ["warm-up", None, None]


def test_evaluation_and_checkpoints_tag_the_step_they_lie_in(step: Step) -> None:
    """Inside a step they make it no ordinary one; between two steps they touch neither."""
    clock = step._clock
    for name in (None, "eval", "checkpoint"):
        with step:
            if name:
                with clock.phases[name]:
                    pass
        with clock.phases["eval"]:
            pass
        with step, clock.phases["forward"]:
            pass
    assert tags(step) == ["warm-up", None, "eval", None, "checkpoint", None]


def test_a_given_tag_is_of_one_step(step: Step) -> None:
    """It stands above what is found automatically, and goes with its step, a failed one included."""
    with step:
        pass
    step.given = "compile"
    with step, step._clock.phases["eval"]:
        pass
    step.given = "restart"
    with contextlib.suppress(ZeroDivisionError), step:
        _ = 1 / 0
    with step:
        pass
    assert tags(step) == ["warm-up", "compile", None]


def test_micro_steps_belong_to_the_step_that_completes(now: list[float]) -> None:
    """With accumulation one step is counted, from its first micro-step on, what lies between them included."""
    step = Step(PhaseClock(), Counter())
    for micro in range(6):
        step.accumulating = micro % 3 != 2
        with step:
            assert step.number == micro // 3
            now[0] += 1
        assert step.under_way == (micro % 3 != 2)
        now[0] += 10
    assert (step.completed, step.next) == (2, 2)
    assert [(fields[0], fields[2] - fields[1]) for fields in step.records] == [(0, 23.0), (1, 23.0)]


def test_accumulation_inside_one_step_needs_nothing(now: list[float]) -> None:
    """A loop that keeps its micro-batches inside one step has the same duration and the same phases."""
    clock = PhaseClock()
    step = Step(clock, Counter())
    with step:
        for _ in range(3):
            with clock.phases["forward"]:
                now[0] += 1
            with clock.phases["backward"]:
                now[0] += 2
    (fields,) = step.records
    record = step_record(fields)
    forward, backward = (record.seconds[PHASES.index(name)] for name in ("forward", "backward"))
    assert (record.ended - record.began, forward, backward) == (9, 3, 6)


def test_a_tag_in_a_micro_step_is_the_steps(step: Step) -> None:
    """Whichever micro-step the evaluation lies in, the step that completes carries it."""
    with step:
        pass
    for micro in range(4):
        step.accumulating = micro != 3
        with step:
            if micro == 1:
                with step._clock.phases["eval"]:
                    pass
    with step:
        pass
    assert tags(step) == ["warm-up", "eval", None]


def test_a_failed_micro_step_begins_the_step_anew(now: list[float]) -> None:
    """Everything accumulated before is discarded, including its time."""
    step = Step(PhaseClock(), Counter())
    step.accumulating = True
    with contextlib.suppress(ZeroDivisionError), step:
        now[0] += 5
        _ = 1 / 0
    with step:
        now[0] += 1
    assert [(fields[0], fields[2] - fields[1]) for fields in step.records] == [(0, 1.0)]


def test_what_came_before_the_first_step_is_known_by_phase(now: list[float]) -> None:
    """Up to the entry of the first one, or of its first micro-step; one that is given up is not it."""
    clock = PhaseClock()
    step = Step(clock, Counter())
    assert step.before is None
    now[0] += 5
    step.__enter__()
    now[0] += 1
    step.__exit__(ZeroDivisionError, None, None)
    assert step.before is None
    with clock.phases["data"]:
        now[0] += 8
    for _ in range(3):
        step.accumulating = step.completed == 0 and step.before is None
        with step:
            now[0] += 1
        assert step.before is not None
        assert dict(zip(PHASES, step.before, strict=True)) == {
            **dict.fromkeys(PHASES, 0.0), "init": 5.0, "other": 1.0, "data": 8.0,
        }  # fmt: skip


def test_a_step_inside_itself_is_one_step(step: Step) -> None:
    """A callback and a loop that both mark the step count it once, and leave the clock as it was."""
    clock = step._clock
    for _ in range(3):
        with step, clock.phases["forward"], step, clock.phases["backward"]:
            pass
    assert (step.completed, step.next, len(step.records), clock.outer) == (3, 3, 3, None)
    assert clock.current.name == "other"


def test_a_step_that_is_never_left_leaves_nothing_behind(step: Step) -> None:
    """Entered by hand and abandoned, again and again: the next one is counted, the clock's memory does not grow."""
    clock = step._clock
    for _ in range(100):
        step.__enter__()
        clock.phases["forward"].__enter__()
        (_, (_, outermost)) = clock.outer  # one step, one phase, and nothing around them
        assert outermost is None
    with step:
        pass
    assert (step.completed, clock.outer, clock.current.name) == (1, None, "other")


def test_left_without_being_entered(step: Step) -> None:
    """An exit too many counts nothing."""
    step.__exit__(None, None, None)
    with step:
        pass
    step.__exit__(None, None, None)
    assert (step.completed, len(step.records)) == (1, 1)


def test_a_full_garbage_collection_tags_its_step(step: Step) -> None:
    """Young generations do not; where the training code collects at every step, that is the ordinary step."""
    tag = GarbageTag(step, step._clock)
    tag.start()
    try:
        for collect in (None, None, 0, 2, None, 2, 2, 2):
            with step:
                if collect is not None:
                    gc.collect(collect)
    finally:
        tag.stop()
    assert tag not in gc.callbacks
    assert tags(step) == ["warm-up", None, None, "gc", None, "gc", None, None]


def test_a_cuda_scalar_is_read_when_its_copy_is_done(step: Step, cuda: Cuda) -> None:
    """Nothing waits: a logged CUDA tensor reaches the sender at a later log, in the order of steps."""
    step.log(loss=Tensor(1.5))
    step.number = 1
    step.log(loss=Tensor(2.5), grad_norm=0.5)
    assert not step.logged
    cuda.done.add(2)
    step.number = 2
    step.log(loss=3.5)
    assert not step.logged, "step 1 overtook step 0"
    cuda.done.add(1)
    step.log(loss=4.5)
    read = [(at, {name: number(value) for name, value in values.items()}) for at, values in step.logged]
    assert read == [(0, {"loss": 1.5}), (1, {"loss": 2.5, "grad_norm": 0.5}), (2, {"loss": 3.5})]


def test_a_gpu_that_never_answers_costs_readings_not_memory(step: Step, cuda: Cuda) -> None:
    """Copies under way are bounded; what is beyond is dropped and counted."""
    for _ in range(PENDING_LIMIT + 3):
        step.log(loss=Tensor(1.0))
    assert (len(step._pending), step._dropped.count) == (PENDING_LIMIT, 3)


def test_no_copy_during_a_graph_capture(step: Step, cuda: Cuda) -> None:
    """A capture must not see a copy or an event of ours."""
    cuda.capturing = True
    step.log(loss=Tensor(1.0))
    assert (cuda.events, step.logged.pop()[1]) == (0, {"loss": None})


def test_a_broken_gpu_raises_nothing(step: Step, cuda: Cuda) -> None:
    """A CUDA error met while asking for a copy is dropped: it is the training code's to meet."""
    step.log(loss=Tensor(1.0))
    cuda.broken = True
    step.log(loss=1.0)
    assert number(step.logged[0][1]["loss"]) is None


@pytest.mark.filterwarnings("error")
def test_memory_that_cannot_be_had_raises_nothing(step: Step, cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the copy that never came to be, when it goes."""
    monkeypatch.setattr(sys.modules["torch"], "empty", lambda *shape, **how: 1 // 0)
    step.log(loss=Tensor(1.0))
    assert step.logged.pop()[1] == {"loss": None}


@pytest.mark.parametrize("broken", [False, True])
def test_pinned_memory_is_never_freed(step: Step, cuda: Cuda, *, broken: bool) -> None:
    """Not of a value that was read, not of one under way, nor of one that failed: PyTorch would end the process."""
    cuda.done.add(1)
    for value in (1.0, 2.0, 3.0):
        step.log(loss=Tensor(value))
    assert number(step.logged.pop()[1]["loss"]) == 1.0
    cuda.broken = broken
    step.log(loss=Tensor(4.0))
    step.logged.clear()
    step._pending.clear()
    pinned._places.clear()
    gc.collect()
    assert all(host() is not None for host in cuda.hosts)


def test_pinned_memory_is_used_again(step: Step, cuda: Cuda) -> None:
    """For the next value once one was read, or was let go and has arrived since; never while a copy is under way."""
    cuda.all_done = True
    for value in range(100):
        step.log(loss=Tensor(value), grad_norm=Tensor(value))
        read = [number(reading) for _, values in step.logged for reading in values.values()]
        assert read == [value - 1.0] * len(read)
        step.logged.clear()
    assert len(cuda.hosts) == 4
    cuda.all_done = False
    for value in range(PENDING_LIMIT + 50):
        step.log(loss=Tensor(value))
    under_way = len(cuda.hosts)
    assert under_way >= PENDING_LIMIT
    cuda.all_done = True
    for value in range(PENDING_LIMIT):
        step.log(loss=Tensor(value))
        step.logged.clear()
    assert len(cuda.hosts) == under_way


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_a_logged_loss_keeps_no_graph_alive(step: Step) -> None:
    """A CPU loss is read at once, to a plain float: the tensor and its autograd graph go with the step."""
    torch = pytest.importorskip("torch")
    loss = (torch.ones(3, requires_grad=True) * 2).sum()
    tensor = weakref.ref(loss)
    step.log(loss=loss)
    del loss
    gc.collect()
    assert tensor() is None
    kept = step.logged.pop()[1]["loss"]
    assert (type(kept), kept) == (float, 6.0)


def test_no_copy_is_asked_about_during_a_capture(step: Step, cuda: Cuda) -> None:
    """A question to an event would break the capture of a CUDA graph, in which a step is logged once."""
    step.log(loss=Tensor(1.5))
    cuda.capturing = cuda.broken = True
    step.log(loss=2.5)
    cuda.capturing = cuda.broken = False
    cuda.done.add(1)
    step.log(loss=3.5)
    assert [number(values["loss"]) for _, values in step.logged] == [1.5, 2.5], "the third comes with the next"
