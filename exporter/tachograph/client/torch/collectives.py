"""Collective operations: how many, how much, how long, and how long this rank had nothing to do but wait for them.

Synchronous collectives make step times equal on all ranks; what differs is the *exposed wait*. It begins when a rank
has nothing left to do but wait and ends with the last completion. The rank that waits least arrived last.

Four observe: the hook of a DDP model, marks by hand, the functions in which PyTorch waits (`waits`), and PyTorch's
Flight Recorder where it times NCCL. What one of the first two counts, the recorder does not count again; on NCCL
lengths are the recorder's alone, for a mark there sees no more than the launch. A wait inside a mark belongs to it.
"""

from __future__ import annotations

from contextlib import nullcontext
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING

from tachograph.catalog.rank import OPERATIONS
from tachograph.client.core.phases import OURS, Phase, PhaseClock, Uncopied
from tachograph.client.core.steps import ExposedWait
from tachograph.client.signals.wait_by_lengths import WaitByLengths
from tachograph.client.torch.bucket_watch import ALL_REDUCE, BucketTotals
from tachograph.client.torch.bucket_watch import watch_buckets as watch_buckets  # noqa: PLC0414 - the recorder's door to it
from tachograph.client.torch.bus_factor import bus_factor
from tachograph.client.torch.flight_recorder import FlightRecorderPoll
from tachograph.client.torch.loaded_torch import in_use
from tachograph.client.torch.operation_totals import OperationTotals

if TYPE_CHECKING:
    from tachograph.client.torch.waits.waits import Waits


class MarkedTotals(OperationTotals):
    """Totals of one operation marked by hand; all of them share one sum of waits."""

    __slots__ = ("shared",)

    def __init__(self, shared: ExposedWait) -> None:
        super().__init__()
        self.shared = shared


class Collective(Uncopied):
    """A collective marked by hand: all of its time is exposed wait and phase `collective`.

    Where its payload is given, its time is also its length, for the bus bandwidth.
    """

    __slots__ = ("_began", "_bytes", "_phase", "_totals")

    def __init__(self, phase: Phase, totals: MarkedTotals, payload: int) -> None:
        self._phase = phase
        self._totals = totals
        self._bytes = payload
        self._began = 0.0

    def __enter__(self) -> None:
        try:
            self._phase.__enter__()
            self._totals.operations += 1
            self._totals.bytes += self._bytes
            self._began = perf_counter()
        except OURS:
            self._phase.failed()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            elapsed = perf_counter() - self._began
            totals = self._totals
            totals.wait = (totals.wait or 0.0) + elapsed
            totals.shared.seconds += elapsed
            if kind is not None:
                totals.failures += 1
            elif self._bytes:
                totals.seconds = (totals.seconds or 0.0) + elapsed
                totals.timed_bytes += self._bytes
            self._phase.__exit__(kind, error, traceback)
        except OURS:
            self._phase.failed()

    def __reduce__(self) -> tuple[type[nullcontext[None]], tuple[()]]:
        return nullcontext, ()


class Collectives:
    """All collectives this rank reports: marked by hand, of each watched model, and from the Flight Recorder.

    `world_size` is that of the run, for the bus bytes of marks; None leaves those out.
    """

    def __init__(self, world_size: int | None = None) -> None:
        self.wait = ExposedWait()
        self.marked: dict[str, MarkedTotals] = {operation: MarkedTotals(self.wait) for operation in OPERATIONS}
        self.watched: list[BucketTotals] = []
        self.waits: Waits | None = None
        self._world_size = world_size
        self.wait_by_lengths = WaitByLengths(self._lengths_alone)
        self._recorder = FlightRecorderPoll(waits=self.wait_by_lengths)
        self._marks_are_timed: bool | None = None

    def watch(self, totals: BucketTotals) -> None:
        """Report the buckets of one more model."""
        self.watched.append(totals)
        self._ask_at_a_steps_end()

    @property
    def bucket_reductions(self) -> int:
        """The all-reduces of watched models that were seen: none of a model with a communication hook of its own."""
        return sum(int(totals.operations) for totals in self.watched)

    def watch_waits(self, clock: PhaseClock) -> None:
        """Measure, from now on, where PyTorch makes this thread wait."""
        if self.waits is None:
            from tachograph.client.torch.waits.waits import Waits  # late: only a watched loop needs it

            self.waits = Waits(clock, self.wait, self._ask_at_a_steps_end)
        self.waits.attach()

    def release(self) -> None:
        """Leave PyTorch's functions as they were."""
        if self.waits is not None:
            self.waits.detach()

    def _ask_at_a_steps_end(self) -> None:
        self.wait.more = self._watched_wait

    def _watched_wait(self) -> float:
        """Return the exposed wait of watched models and of a GPU's stream; the training thread calls it."""
        total = self.waits.on_gpu() if self.waits is not None else 0.0
        for totals in self.watched:
            if totals.gpu_wait is not None and totals.gpu_wait.pending:
                totals.gpu_wait.resolve(totals)
            total += totals.wait or 0.0
        return total

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the counter families by wire key; operations never seen are absent. Called by the sender thread."""
        families: dict[str, dict[str, float]] = {key: {} for key, _ in _FAMILIES}
        families["collective_bus_bytes_total"] = {}
        for operation, totals in self.marked.items():
            if totals.operations:
                factor = bus_factor(operation, self._world_size) if self._world_size is not None else None
                _add(families, operation, totals, factor, timed=self._host_times_marks() and factor is not None)
        for watched in self.watched:
            _add(families, ALL_REDUCE, watched, watched.factor, timed=True)
        if self.waits is not None:
            self.waits.attach()  # to what has been imported since
            waits = families["collective_wait_seconds_total"]
            for operation, seconds in self.waits.seconds().items():
                waits[operation] = waits.get(operation, 0) + seconds
        self._recorder.poll(self._counted_elsewhere)
        for key, values in self._recorder.families.items():
            for operation, value in values.items():
                families[key][operation] = families[key].get(operation, 0) + value
        return families

    def _counted_elsewhere(self, operation: str, group: str) -> bool:
        marked = self.marked[operation].operations > 0
        return marked or (operation == ALL_REDUCE and any(group == totals.group for totals in self.watched))

    def _lengths_alone(self) -> bool:
        """Return whether lengths on NCCL are all that is known of waits: no wait was entered where it is measured."""
        measured = self.watched or any(totals.operations for totals in self.marked.values())
        return not measured and not (self.waits is not None and self.waits.entered) and on_nccl()

    def _host_times_marks(self) -> bool:
        """Return whether a marked collective ends before its mark does; decided once, or a counter would fall."""
        if self._marks_are_timed is None:
            self._marks_are_timed = not on_nccl()
        return self._marks_are_timed


def on_nccl() -> bool:
    """Return whether the default process group sends CUDA tensors through NCCL, so that its calls return at once."""
    distributed = in_use("distributed")
    try:
        return distributed is not None and "nccl" in str(distributed.get_backend_config())
    except Exception:  # noqa: BLE001 - PyTorch's internals in a state of change: as if there were no NCCL
        return False


_FAMILIES = (
    ("collective_wait_seconds_total", "wait"),
    ("collectives_total", "operations"),
    ("collective_bytes_total", "bytes"),
    ("collective_failures_total", "failures"),
    ("collective_seconds_total", "seconds"),
)
"""Wire key, and the field of `OperationTotals` it reports."""


def _add(
    families: dict[str, dict[str, float]], operation: str, totals: OperationTotals, factor: float | None, *, timed: bool
) -> None:
    """Add what one writer counted; lengths and bus bytes go together, or their ratio would be no bandwidth."""
    timed = timed and totals.timed_bytes > 0 and totals.seconds is not None
    for key, field in _FAMILIES:
        value = getattr(totals, field)
        if value is not None and (timed or field != "seconds"):
            families[key][operation] = families[key].get(operation, 0) + value
    if timed and factor is not None:
        bus = families["collective_bus_bytes_total"]
        bus[operation] = bus.get(operation, 0) + totals.timed_bytes * factor
