"""The gradient buckets of a DistributedDataParallel model: how many, how large, how long, and how long nobody had work.

The *exposed wait* of a backward pass begins with the hook call for the last bucket, when this rank has nothing left to
do but wait. On a CPU it ends with the last completion, by the host's clock. On a GPU the host runs ahead, so two CUDA
events on the current stream measure it: one at that hook call, one when the stream has passed DDP's own wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import ref

from tachograph.catalog.rank import OPERATIONS
from tachograph.client.core.notice import notice
from tachograph.client.torch.bus_factor import bus_factor
from tachograph.client.torch.loaded_torch import loaded_torch
from tachograph.client.torch.operation_totals import OperationTotals
from tachograph.client.torch.waits.stream_wait import StreamWait

if TYPE_CHECKING:
    from tachograph.client.core.torch_types import Bucket, Future

ALL_REDUCE = OPERATIONS[0]


class BucketTotals(OperationTotals):
    """Totals of the buckets of one model; `group` and `ranks` tell whose they are, `gpu_wait` measures on CUDA."""

    __slots__ = ("factor", "gpu_wait", "group")

    def __init__(
        self, group: str = "", ranks: int = 1, gpu_wait: GpuWait | None = None, *, on_cpu: bool = True
    ) -> None:
        super().__init__(wait=0.0 if on_cpu or gpu_wait else None, seconds=0.0 if on_cpu else None)
        self.group = group
        self.factor = bus_factor(ALL_REDUCE, ranks)
        self.gpu_wait = gpu_wait


class GpuWait(StreamWait):
    """Exposed wait of a backward pass on a GPU, from its last bucket to where DDP has waited for all of them."""

    def __init__(self, cuda: Any, engine: Any) -> None:  # noqa: ANN401 - torch.cuda and autograd's engine
        super().__init__(cuda)
        self._engine = engine

    def last_bucket(self) -> None:
        """Note that the last bucket was handed over; called in its hook, on the stream of the backward pass.

        DDP waits for the buckets in a callback of autograd's engine, which it queues right after this hook call. A
        callback that is queued by a callback comes after those that are queued already, hence the two stages: by the
        second one the stream has been told to wait for every bucket.
        """
        if (began := self.begin()) is not None:
            queue = self._engine.queue_callback
            queue(lambda: queue(lambda: self.end(began)))


class _Backward:
    """The buckets of one backward pass that are on their way.

    The backend's threads let go of it, so it must not know the process group: where one of a group's own threads drops
    the last reference to it, that thread waits for itself, and the process is aborted.
    """

    __slots__ = ("_lock", "_totals", "completed", "last_completion", "launched", "waits_since")

    def __init__(self, totals: BucketTotals, lock: threading.Lock) -> None:
        self._totals = totals
        self._lock = lock
        self.launched = 0
        self.completed = 0
        self.last_completion = 0.0
        self.waits_since: float | None = None

    def done(self, called: float, size: int, future: Future) -> object:
        """Note the completion of a bucket whose hook was called at `called`, and return the bucket's tensor.

        A thread of the backend calls it, and DDP waits for it: the backward pass does not end before.
        """
        now = perf_counter()
        failed = True
        try:
            tensor = _tensor(future)  # raises what the backend raised, which is the user's to see
            failed = False
        finally:
            totals = self._totals
            with self._lock:
                self.completed += 1
                self.last_completion = max(self.last_completion, now)
                if failed:
                    totals.failures += 1
                elif totals.seconds is not None:
                    totals.seconds += now - called
                    totals.timed_bytes += size
                all_done = self.completed == self.launched
                if self.waits_since is not None and all_done and totals.wait is not None:
                    totals.wait += self.last_completion - self.waits_since
        return tensor


class BucketWatch:
    """Counts and times the gradient buckets of one DistributedDataParallel model.

    A CPU bucket's length is from its hook call to its completion. A CUDA bucket's is NCCL's own to tell: the host does
    not see when it began, and events around it would count the buckets before it; see `flight_recorder`.
    """

    def __init__(self, reduce: Callable[[object, Bucket], Future], group: object, totals: BucketTotals) -> None:
        self.totals = totals
        self.reduce = reduce
        self.group = group
        self.measuring = True
        self._lock = threading.Lock()  # completions come from the backend's threads
        self._backward = _Backward(totals, self._lock)

    def step_aside(self, hook: Callable[[object, Bucket], Future], state: object) -> None:
        """Reduce with the training code's own hook from now on, and measure no more."""
        self.measuring = False
        with self._lock:
            self.totals.wait = self.totals.seconds = None
        self.reduce, self.group = hook, state

    def launched(self, bucket: Bucket, called: float, future: Future) -> Future:
        """Note a bucket whose reduction was started by a hook call at `called`, and return what DDP waits for."""
        try:
            buffer = bucket.buffer()
            totals = self.totals
            size = buffer.numel() * buffer.element_size()
            totals.operations += 1
            totals.bytes += size
            last = bucket.is_last()
            if not buffer.is_cpu:
                if last and totals.gpu_wait is not None and totals.wait is not None:
                    totals.gpu_wait.last_bucket()
                return future.then(_tensor)
            if bucket.index() == 0:
                self._backward = _Backward(totals, self._lock)
            backward = self._backward
            with self._lock:
                backward.launched += 1
                if last:
                    backward.waits_since = called
            return future.then(partial(backward.done, called, size))
        except Exception as error:  # noqa: BLE001 - an odd bucket costs its measurement, never the backward pass
            notice("bucket", "a gradient bucket could not be observed", error)
            return future.then(_tensor)


def _reduce(group: Any, bucket: Any) -> Any:  # noqa: ANN401 - PyTorch's own types
    """Average a bucket over the ranks as DDP does without a hook: times 1/n, then the sum.

    PyTorch's `allreduce_hook` divides by n instead, which differs in the last bit where n is no power of two.
    """
    buffer = bucket.buffer()
    buffer.mul_(1.0 / group.size())
    work = loaded_torch().distributed.all_reduce(buffer, group=group, async_op=True)
    return work.get_future()


def _tensor(future: Any) -> Any:  # noqa: ANN401
    """Return the one tensor of a reduction that is complete; raise what it failed with."""
    return future.value()[0]


def _observed_allreduce(watch: Any, bucket: Any) -> Any:  # noqa: ANN401 - DDP's own types, see below
    """Reduce a bucket as DDP does by default, and note it."""
    if not watch.measuring:
        return watch.reduce(watch.group, bucket)
    called = perf_counter()
    try:
        future = watch.reduce(watch.group, bucket)
    except BaseException:
        watch.totals.failures += 1
        raise
    return watch.launched(bucket, called, future)


_observed_allreduce.__annotations__.clear()  # DDP refuses a hook whose annotations are not exactly its own types


def watch_buckets(model: object) -> BucketTotals | None:
    """Register the observing communication hook on a DDP model and return its totals; None for any other model.

    A model that already has a hook keeps it: RuntimeError. One that is given its own later has that one from then on.
    Gradients are the same as without, bit for bit. (Two exceptions: where gradients already lie in their buckets,
    `gradient_as_bucket_view` without `set_to_none`, DDP divides by n instead, which may differ in the last bit unless n
    is a power of two; and under `join(divide_by_initial_world_size=False)` they are divided by the initial world size
    all the same.)
    """
    torch = loaded_torch()
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
    parallel = getattr(getattr(torch, "nn", None), "parallel", None)
    if parallel is None or not isinstance(model, parallel.DistributedDataParallel):
        return None
    hooks: list[tuple[object, object]] = getattr(model, "_comm_hooks", [])
    if hooks:
        raise RuntimeError("the model has a communication hook of its own")
    parameters = list(model.parameters())
    on_cpu = all(parameter.is_cpu for parameter in parameters)
    on_cuda = not on_cpu and all(parameter.is_cuda for parameter in parameters)
    gpu_wait = GpuWait(torch.cuda, torch.autograd.Variable._execution_engine) if on_cuda else None
    group = model.process_group
    totals = BucketTotals(group.group_name, group.size(), gpu_wait, on_cpu=on_cpu)
    # Only the model holds the watch: it knows the process group, which must not outlive its destruction because of us.
    watch = BucketWatch(_reduce, group, totals)
    try:
        model.register_comm_hook(watch, _observed_allreduce)
    finally:
        # A copy or a pickle of the model must neither carry the watch nor need Tachograph to be loaded again.
        hooks[:] = [(hook, state) for hook, state in hooks if state is not watch]
    model.register_comm_hook = _HookRegistration(model, watch)
    return totals


class _HookRegistration:
    """Stands before a model's `register_comm_hook`: DDP takes one hook for good, and the training code's comes first.

    The hook that DDP holds is ours; from the first call on it does what the other one does. A copy or a pickle of the
    model has the method that its class gives it.
    """

    def __init__(self, model: Any, watch: BucketWatch) -> None:  # noqa: ANN401
        self._model = ref(model)
        self._watch = ref(watch)

    def __call__(self, state: object, hook: Callable[[object, Bucket], Future]) -> None:
        """Register the training code's hook; a second one is refused as PyTorch refuses it."""
        model, watch = self._model(), self._watch()
        if model is None:
            return
        if watch is None:
            vars(model).pop("register_comm_hook", None)
            model.register_comm_hook(state, hook)
            return
        model._check_comm_hook(hook)  # raises what PyTorch raises for a hook that cannot be one
        model.logger._set_comm_hook_name(hook.__qualname__)
        vars(model).pop("register_comm_hook", None)
        model._comm_hooks.append((hook, state))
        watch.step_aside(hook, state)
        notice(
            "comm hook", "the model now has a communication hook of its own: its collective wait is no longer measured"
        )

    def __reduce__(self) -> tuple[Callable[[Any, str], Any], tuple[Any, str]]:
        return getattr, (self._model(), "register_comm_hook")
