"""Collective operations: how many, how much, and how long this rank had nothing to do but wait for them.

Synchronous collectives make step times equal on all ranks; what differs is the *exposed wait*. It begins when a rank
has nothing left to do but wait: in a DDP backward, with the hook call for the last gradient bucket. It ends with the
last completion. The rank that waits least arrived last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tachograph.client.loaded_torch import loaded_torch
from tachograph.client.notice import notice
from tachograph.client.phases import Phase
from tachograph.training_catalog import OPERATIONS

if TYPE_CHECKING:
    from tachograph.client.torch_types import Bucket, Future

ALL_REDUCE = OPERATIONS[0]


class OperationTotals:
    """What one writer counted of one operation; `wait` is None where exposed wait is not measured."""

    __slots__ = ("bytes", "failures", "operations", "wait")

    def __init__(self, wait: float | None = 0.0) -> None:
        self.operations = 0
        self.bytes = 0
        self.failures = 0
        self.wait = wait


class Collective:
    """A collective marked by hand: all of its time is exposed wait and phase `collective`."""

    __slots__ = ("_began", "_bytes", "_phase", "_totals")

    def __init__(self, phase: Phase, totals: OperationTotals, payload: int) -> None:
        self._phase = phase
        self._totals = totals
        self._bytes = payload
        self._began = 0.0

    def __enter__(self) -> None:
        self._phase.__enter__()
        self._totals.operations += 1
        self._totals.bytes += self._bytes
        self._began = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._totals.wait = (self._totals.wait or 0.0) + perf_counter() - self._began
        if kind is not None:
            self._totals.failures += 1
        self._phase.__exit__(kind, error, traceback)


class _Backward:
    """The buckets of one backward pass that are on their way."""

    __slots__ = ("completed", "last_completion", "launched", "waits_since")

    def __init__(self) -> None:
        self.launched = 0
        self.completed = 0
        self.last_completion = 0.0
        self.waits_since: float | None = None


class BucketWatch:
    """Counts and times the gradient buckets of one DistributedDataParallel model.

    Exposed wait is measured for CPU buckets (gloo). On CUDA, host time says nothing about it: buckets and bytes are
    counted, and no wait is reported.
    """

    def __init__(self, reduce: Callable[[object, Bucket], Future], group: object, totals: OperationTotals) -> None:
        self.totals = totals
        self.reduce = reduce
        self.group = group
        self._lock = threading.Lock()  # completions come from the backend's threads
        self._backward = _Backward()

    def launched(self, bucket: Bucket, called: float, future: Future) -> None:
        """Note a bucket whose reduction was started by a hook call at `called` (perf_counter); never raises."""
        try:
            buffer = bucket.buffer()
            self.totals.operations += 1
            self.totals.bytes += buffer.numel() * buffer.element_size()
            if not buffer.is_cpu:
                return
            if bucket.index() == 0:
                self._backward = _Backward()
            backward = self._backward
            with self._lock:
                backward.launched += 1
                if bucket.is_last():
                    backward.waits_since = called
            future.add_done_callback(lambda done: self._completed(backward, done))
        except Exception as error:  # noqa: BLE001 - an odd bucket costs its measurement, never the backward pass
            notice("bucket", f"a gradient bucket could not be observed: {error!r}")

    def _completed(self, backward: _Backward, future: Future) -> None:
        now = perf_counter()
        try:
            future.value()
            failed = False
        except Exception:  # noqa: BLE001 - whatever the backend raises; the backward pass raises it to the user
            failed = True
        with self._lock:
            backward.completed += 1
            backward.last_completion = max(backward.last_completion, now)
            self.totals.failures += failed
            if backward.waits_since is not None and backward.completed == backward.launched:
                self.totals.wait = (self.totals.wait or 0.0) + backward.last_completion - backward.waits_since


def _observed_allreduce(watch: Any, bucket: Any) -> Any:  # noqa: ANN401 - DDP's own types, see below
    """Reduce a bucket as DDP does by default, and note it."""
    called = perf_counter()
    try:
        future = watch.reduce(watch.group, bucket)
    except BaseException:
        watch.totals.failures += 1
        raise
    watch.launched(bucket, called, future)
    return future


_observed_allreduce.__annotations__.clear()  # DDP refuses a hook whose annotations are not exactly its own types


def watch_buckets(model: object) -> OperationTotals | None:
    """Register the observing communication hook on a DDP model and return its totals; None for any other model.

    A model that already has a hook keeps it: RuntimeError. Gradients are the same as without: PyTorch's own
    `allreduce_hook` reduces them. (One exception: under `join(divide_by_initial_world_size=False)` they are divided by
    the initial world size all the same.)
    """
    torch = loaded_torch()
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
    parallel = getattr(getattr(torch, "nn", None), "parallel", None)
    if parallel is None or not isinstance(model, parallel.DistributedDataParallel):
        return None
    hooks: list[tuple[object, object]] = getattr(model, "_comm_hooks", [])
    if hooks:
        raise RuntimeError("the model has a communication hook of its own")
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    on_cpu = all(parameter.is_cpu for parameter in model.parameters())
    totals = OperationTotals(wait=0.0 if on_cpu else None)
    # Only the model holds the watch: it knows the process group, which must not outlive its destruction because of us.
    watch = BucketWatch(default_hooks.allreduce_hook, model.process_group, totals)
    try:
        model.register_comm_hook(watch, _observed_allreduce)
    finally:
        # A copy or a pickle of the model must neither carry the watch nor need Tachograph to be loaded again.
        hooks[:] = [(hook, state) for hook, state in hooks if state is not watch]
    return totals


class Collectives:
    """All collectives this rank reports: those marked by hand, and those of each watched model."""

    def __init__(self) -> None:
        self.marked: dict[str, OperationTotals] = {operation: OperationTotals() for operation in OPERATIONS}
        self.watched: list[OperationTotals] = []

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the four counter families by wire key; operations never seen are absent."""
        seen = [(operation, totals) for operation, totals in self.marked.items() if totals.operations]
        seen += [(ALL_REDUCE, totals) for totals in self.watched]
        families: dict[str, dict[str, float]] = {key: {} for key, _ in _FAMILIES}
        for operation, totals in seen:
            for key, field in _FAMILIES:
                value = getattr(totals, field)
                if value is not None:
                    families[key][operation] = families[key].get(operation, 0) + value
        return families


_FAMILIES = (
    ("collective_wait_seconds_total", "wait"),
    ("collectives_total", "operations"),
    ("collective_bytes_total", "bytes"),
    ("collective_failures_total", "failures"),
)
"""Wire key, and the field of `OperationTotals` it reports."""
