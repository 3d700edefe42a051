"""The gradient buckets of a DDP model: lengths on a CPU by the clock, waits on a GPU by stand-ins for its events."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest

from tachograph.client.torch.bucket_watch import BucketTotals, BucketWatch, GpuWait
from tachograph.client.torch.collectives import Collectives
from tachograph.client.torch.waits.stream_wait import PENDING_LIMIT


class Future:
    """A future that ends when told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.callback: Callable[[Future], object] = lambda future: None

    def then(self, callback: Callable[[Future], object]) -> Future:
        """Keep the callback; what it returns is another future's."""
        self.callback = callback
        return Future()

    def value(self) -> object:
        """Return, or raise what went wrong."""
        if self.error is not None:
            raise self.error
        return ["tensor"]


class Bucket:
    """A gradient bucket of 10 floats."""

    def __init__(self, index: int, last: bool, on_cpu: bool = True) -> None:
        self._index, self._last, self._on_cpu = index, last, on_cpu

    def index(self) -> int:
        """Return the position."""
        return self._index

    def is_last(self) -> bool:
        """Tell whether it is the last."""
        return self._last

    def buffer(self) -> Any:
        """Return the tensor."""
        return SimpleNamespace(numel=lambda: 10, element_size=lambda: 4, is_cpu=self._on_cpu)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that bucket watches see."""
    moment = [0.0]
    monkeypatch.setattr("tachograph.client.torch.bucket_watch.perf_counter", lambda: moment[0])
    return moment


def launch(watch: BucketWatch, bucket: Bucket, called: float, error: Exception | None = None) -> Future:
    """Tell a watch of a bucket."""
    future = Future(error)
    watch.launched(bucket, called, future)  # type: ignore[arg-type]
    return future


def test_exposed_wait_is_from_the_last_bucket_to_the_last_completion(now: list[float]) -> None:
    """Buckets that complete before the last one is launched cost no wait, whatever the order of completions."""
    totals = BucketTotals(ranks=4)
    watch = BucketWatch(lambda *_: None, None, totals)  # type: ignore[arg-type, return-value]
    first, second = launch(watch, Bucket(0, False), 1.0), launch(watch, Bucket(1, False), 2.0)
    now[0] = 2.5
    first.callback(first)
    last = launch(watch, Bucket(2, True), 3.0)
    now[0] = 5.0
    last.callback(last)
    assert totals.wait == 0.0
    now[0] = 7.0
    second.callback(second)
    assert (totals.wait, totals.operations, totals.bytes, totals.failures) == (4.0, 3, 120, 0)
    assert (totals.seconds, totals.timed_bytes) == (1.5 + 2.0 + 5.0, 120)
    again = launch(watch, Bucket(0, True), 10.0)
    now[0] = 10.5
    again.callback(again)
    assert totals.wait == 4.5


def test_a_bucket_that_completes_after_the_watch_has_stepped_aside_adds_nothing(now: list[float]) -> None:
    """The backend's thread may come later than the hook that replaces ours: what is not measured stays absent."""
    totals = BucketTotals(ranks=4)
    watch = BucketWatch(lambda *_: None, None, totals)  # type: ignore[arg-type, return-value]
    future = launch(watch, Bucket(0, True), 1.0)
    watch.step_aside(lambda *_: None, None)  # type: ignore[arg-type, return-value]
    now[0] = 2.0
    future.callback(future)
    assert (totals.wait, totals.seconds) == (None, None)


def test_a_failed_bucket_is_counted(now: list[float]) -> None:
    """A reduction that ends with an error is a failure and has no length; DDP raises it, as ever."""
    totals = BucketTotals(ranks=4)
    watch = BucketWatch(lambda *_: None, None, totals)  # type: ignore[arg-type, return-value]
    future = launch(watch, Bucket(0, True), 0.0, RuntimeError("Connection closed by peer"))
    with pytest.raises(RuntimeError, match="closed by peer"):
        future.callback(future)
    assert (totals.failures, totals.seconds, totals.timed_bytes) == (1, 0.0, 0)


def test_a_bucket_that_cannot_be_read_harms_nobody() -> None:
    """Whatever a bucket does, the backward pass goes on with its tensor."""
    watch = BucketWatch(lambda *_: None, None, BucketTotals(ranks=4))  # type: ignore[arg-type, return-value]
    future = Future()
    assert isinstance(watch.launched(object(), 0.0, future), Future)  # type: ignore[arg-type]
    assert future.callback(future) == "tensor"


class Group:
    """A process group."""


@pytest.mark.parametrize("on_cpu", [True, False])
def test_what_the_backends_thread_keeps_does_not_hold_the_group(on_cpu: bool) -> None:
    """That thread may be the last to let go: a group of gloo that its own thread destroys aborts the process."""
    group = Group()
    watch = BucketWatch(lambda *_: None, group, BucketTotals(ranks=4))  # type: ignore[arg-type, return-value]
    future = launch(watch, Bucket(0, True, on_cpu), 0.0)
    held = ref(group)
    del watch, group
    assert held() is None
    assert future.callback(future) == "tensor"


class Cuda:
    """torch.cuda as far as it is used: its GPU does nothing until told that time went by."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done = 0.0
        self.capturing = False
        self.broken = False
        self.events: list[Any] = []
        self.callbacks: list[Callable[[], None]] = []

    def is_current_stream_capturing(self) -> bool:
        """Tell whether a graph is captured."""
        return self.capturing

    def queue_callback(self, callback: Callable[[], None]) -> None:
        """Queue as autograd's engine does."""
        self.callbacks.append(callback)

    def end_backward(self) -> None:
        """Call what was queued, in order, and what that queues."""
        while self.callbacks:
            self.callbacks.pop(0)()

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802 - PyTorch's name
        """Return an event that remembers when it was recorded."""
        assert enable_timing
        cuda = self

        class Event:
            at = 0.0

            def record(self) -> None:
                assert not cuda.capturing
                self.at = cuda.now

            def query(self) -> bool:
                assert not cuda.capturing
                if cuda.broken:
                    raise RuntimeError("CUDA error: an illegal memory access was encountered")
                return self.at <= cuda.done

            def elapsed_time(self, end: Any) -> float:
                return float(end.at - self.at)  # milliseconds

        self.events.append(Event())
        return self.events[-1]


@pytest.fixture
def cuda() -> Cuda:
    """A GPU."""
    return Cuda()


@pytest.fixture
def watch(cuda: Cuda) -> BucketWatch:
    """A watch of a model on that GPU."""
    totals = BucketTotals("0", 4, GpuWait(cuda, cuda), on_cpu=False)
    return BucketWatch(lambda *_: None, None, totals)  # type: ignore[arg-type, return-value]


def backward(cuda: Cuda, watch: BucketWatch, wait: float) -> None:
    """One backward pass of two buckets whose stream waits for `wait` milliseconds after the last one."""
    launch(watch, Bucket(0, False, on_cpu=False), 0.0)
    cuda.now += 5.0
    launch(watch, Bucket(1, True, on_cpu=False), 0.0)
    cuda.queue_callback(lambda: setattr(cuda, "now", cuda.now + wait))  # what DDP queues right after the hook call
    cuda.end_backward()


def test_on_a_gpu_the_wait_is_from_the_last_bucket_to_after_ddps_own_wait(cuda: Cuda, watch: BucketWatch) -> None:
    """It is known once the GPU got there, and never asked for with anything that waits; a bucket has no length."""
    collectives = Collectives(4)
    collectives.watch(watch.totals)
    backward(cuda, watch, 12.0)
    assert collectives.wait.total() == 0.0
    cuda.done = cuda.now
    assert collectives.wait.total() == pytest.approx(0.012)
    backward(cuda, watch, 8.0)
    cuda.done = cuda.now
    assert collectives.wait.total() == pytest.approx(0.020)
    assert len(cuda.events) == 2
    metrics = collectives.metrics()
    assert metrics["collective_wait_seconds_total"] == {"all_reduce": pytest.approx(0.020)}
    assert metrics["collectives_total"] == {"all_reduce": 4}
    assert metrics["collective_seconds_total"] == metrics["collective_bus_bytes_total"] == {}


def test_a_capture_is_left_alone(cuda: Cuda, watch: BucketWatch) -> None:
    """While a graph is captured no event is recorded and none is asked: both would break it."""
    backward(cuda, watch, 1.0)
    cuda.capturing = True
    backward(cuda, watch, 1.0)
    assert watch.totals.gpu_wait is not None
    watch.totals.gpu_wait.resolve(watch.totals)
    assert (len(cuda.events), watch.totals.wait) == (2, 0.0)


def test_a_gpu_far_behind_costs_waits_not_memory(cuda: Cuda, watch: BucketWatch) -> None:
    """Beyond a bound of passes on their way nothing more is noted; what was noted still counts."""
    for _ in range(PENDING_LIMIT + 10):
        backward(cuda, watch, 1.0)
    assert len(cuda.events) == 2 * PENDING_LIMIT
    cuda.done = cuda.now
    assert watch.totals.gpu_wait is not None
    watch.totals.gpu_wait.resolve(watch.totals)
    assert watch.totals.wait == pytest.approx(PENDING_LIMIT * 0.001)


def test_a_broken_gpu_ends_the_measurement_not_the_training(cuda: Cuda, watch: BucketWatch) -> None:
    """A CUDA error is the training code's to meet: the series ends, instead of standing still as if nobody waited."""
    collectives = Collectives()
    collectives.watch(watch.totals)
    backward(cuda, watch, 1.0)
    cuda.broken = True
    assert collectives.wait.total() == 0.0
    backward(cuda, watch, 1.0)
    assert collectives.metrics()["collective_wait_seconds_total"] == {}


def test_no_wait_is_claimed_for_other_devices() -> None:
    """Neither CPU nor CUDA: buckets are counted, and the other families stay absent."""
    collectives, totals = Collectives(), BucketTotals("0", 4, on_cpu=False)
    collectives.watch(totals)
    watch = BucketWatch(lambda *_: None, None, totals)  # type: ignore[arg-type, return-value]
    launch(watch, Bucket(0, True, on_cpu=False), 0.0)
    metrics = collectives.metrics()
    assert metrics["collective_wait_seconds_total"] == {}
    assert metrics["collectives_total"] == {"all_reduce": 1}
