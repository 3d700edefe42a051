"""Steps: counted exactly, timed into buckets, and what is logged for them."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.client.phases import PhaseClock
from tachograph.client.scalars import number
from tachograph.client.steps import PENDING_LIMIT, RING_LIMIT, Step, StepHistogram
from tachograph.client.tally import Tally
from tachograph.wire import bucket_index


@pytest.fixture
def step() -> Step:
    """A step of its own clock."""
    return Step(PhaseClock(), Tally())


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
    assert (step.completed, len(step.durations), step.next, step.ended) == (0, 0, 0, None)


def test_the_count_stays_exact_when_the_ring_is_full(step: Step) -> None:
    """Durations beyond the ring are dropped and counted; the number of steps is not touched by that."""
    for _ in range(RING_LIMIT + 5):
        with step:
            pass
    assert step.completed == RING_LIMIT + 5
    assert len(step.durations) == RING_LIMIT
    assert step._dropped.count == 5


def test_logs_beyond_the_ring_are_counted(step: Step) -> None:
    """A sender that cannot keep up costs readings, not memory."""
    for _ in range(RING_LIMIT + 2):
        step.log(loss=1.0)
    assert (len(step.logged), step._dropped.count) == (RING_LIMIT, 2)


def test_log_accepts_any_name() -> None:
    """Even `self` is only a name: what the catalog does not hold is sorted out later."""
    step = Step(PhaseClock(), Tally())
    step.log(self=1.0, values=2.0)
    assert step.logged.pop()[1] == {"self": 1.0, "values": 2.0}


def test_histogram_buckets_hold_their_values() -> None:
    """Each duration is in the bucket whose bounds hold it; sum and count are exact; the ring is empty after."""
    ring = deque([0.0, 0.5, 0.5, 0.51, 3.0])
    histogram = StepHistogram()
    histogram.drain(ring)
    frame: dict[str, Any] = histogram.frame()
    assert not ring
    assert (frame["count"], frame["sum"], frame["schema"]) == (5, pytest.approx(4.51), 3)
    assert frame["buckets"] == {str(bucket_index(0.0)): 1, "-8": 2, "-7": 1, str(bucket_index(3.0)): 1}


class Cuda:
    """The C library's border: copies that end when the test says so."""

    def __init__(self) -> None:
        self.done: set[int] = set()
        self.events = 0
        self.capturing = False
        self.broken = False

    def Event(self) -> Any:  # noqa: N802 - PyTorch's name
        """Make an event that is over once its number is in `done`."""
        self.events += 1
        mine = self.events

        def query() -> bool:
            if self.broken:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return mine in self.done

        return SimpleNamespace(record=lambda stream: None, query=query)

    def current_stream(self, device: object) -> object:
        """Return any stream."""
        return object()

    def is_current_stream_capturing(self) -> bool:
        """Tell whether a graph is being captured."""
        return self.capturing


class Tensor:
    """A CUDA scalar: reading it directly is the fault that the client must never commit."""

    __module__ = "torch"
    is_cpu, is_cuda, device = False, True, "cuda:0"

    def __init__(self, value: float) -> None:
        self._value = value

    def numel(self) -> int:
        """Count the elements."""
        return 1

    def item(self) -> float:
        """Synchronise: forbidden."""
        raise AssertionError("the training thread waited for the GPU")

    def detach(self) -> Tensor:
        """Leave the graph."""
        return self

    def to(self, device: str, *, non_blocking: bool) -> Any:
        """Copy asynchronously, or fail the test."""
        assert (device, non_blocking) == ("cpu", True)
        return SimpleNamespace(item=lambda: self._value)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """A `torch.cuda` in which copies take time."""
    fake = Cuda()
    monkeypatch.setitem(__import__("sys").modules, "torch", SimpleNamespace(cuda=fake))
    return fake


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
