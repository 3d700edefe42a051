"""`Recorder`: what a training loop calls. Every call returns at once, none raises, whatever becomes of the exporter."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast
from weakref import WeakSet, ref

from tachograph.catalog.rank import OPERATIONS, PHASES, STEP_TAGS, THRESHOLDS
from tachograph.client.core.arguments import LARGEST, count, flag, one_of, path_of, whole
from tachograph.client.core.batches import Batches
from tachograph.client.core.compiled import NOTHING, unseen
from tachograph.client.core.contained import contained, parameters, tell_fault
from tachograph.client.core.counters import Tally
from tachograph.client.core.garbage import GarbageTag
from tachograph.client.core.notice import OUT, notice, raised_by_signal, unknown
from tachograph.client.core.scalars import number as as_number
from tachograph.client.core.steps import Step
from tachograph.client.core.uncopied import Uncopied
from tachograph.client.hello.identity import Identity, discover
from tachograph.client.hello.thresholds import Thresholds
from tachograph.client.hello.workload import Workload
from tachograph.client.signals.goodput import Goodput
from tachograph.client.torch.collectives import Collective, watch_buckets
from tachograph.client.transport import shutdown
from tachograph.client.transport.failure_reason import describe
from tachograph.client.transport.outputs import Outputs
from tachograph.client.transport.rank_state import Report
from tachograph.client.transport.sender import Sender

if TYPE_CHECKING:
    from tachograph.client.core.phases import Phase
    from tachograph.client.flops.model_flops import ModelFlops
    from tachograph.client.signals.invariants import Invariants
    from tachograph.client.transport.sink import Sink
    from tachograph.client.transport.source import Source
    from tachograph.client.transport.trace import Trace

DISABLE_ENVIRONMENT = "TACHOGRAPH_DISABLED"
TIER_ENVIRONMENT = "TACHOGRAPH_TIER"

T = TypeVar("T")


class Recorder(Uncopied):
    """Records one rank of a training run and reports it to the exporter of its node.

    Every argument is optional; a value that cannot be right is dropped and counted, never raised.

    - `run`, `rank`, `local_rank`, `world_size`, `attempt`: who this is; else found in the variables of `TACHOGRAPH_*`,
      torchrun, Slurm or MPI.
    - `socket`: path of the exporter's socket; else `$TACHOGRAPH_SOCKET` or the usual places (`wire.socket_path`).
    - `tokens_per_step`, `samples_per_step`, `flops_per_step`: of the **whole run**; each rank counts one
      `world_size`-th of them.
    - `flops_per_token`: the model's floating-point operations for one token, forward and backward, without
      recomputation: a number, or what `model_flops` returned. With `tokens_per_step` it stands in for `flops_per_step`.
    - `flops_convention`: how that number was counted: one of `model_flops.CONVENTIONS`, `measured` or `given`.
    - `hardware_flops_per_token`: the same with what activation checkpointing computes again, for HFU.
    - `peak_flops`: dense peak FLOP/s of this rank's device, where the exporter cannot know it.
    - `precision`, `global_batch`: static facts, shown beside the run; `total_steps`: the step at which it will end.
    - `tier`: `hero`, `standard` or `dev`, else `$TACHOGRAPH_TIER`: decides who is woken when the run is in trouble.
    - `device_time=False`: no CUDA events around phases.
    - `sinks`: other places to send the metrics to (`tachograph.export.sinks`); `trace`: where sampled steps are traced
      (`tachograph.export.traces`). Both are closed at `close` or at exit, which takes as long as they do.
    - `enabled=False`, or `TACHOGRAPH_DISABLED=1` in the environment: does nothing at all, with no thread and no socket.

    Phases and steps belong to one thread: the one that trains. A forked child's recorder does nothing. A copy of it,
    made with a model by `copy.deepcopy`, is the recorder itself; out of a pickle comes one that does nothing.

    No call raises, whatever it is given and in whatever state the process is: what is wrong is dropped, counted, and
    said once in the log. What the training code raises inside a step, a phase or a loader passes through unchanged.
    """

    _sender: Sender | None = None
    _garbage: GarbageTag | None = None
    _outputs: Outputs | None = None

    def __new__(cls, *excess: object, enabled: bool = True, **given: object) -> Recorder:
        """Choose once between recording and doing nothing."""
        recording = flag(enabled) is not False and os.environ.get(DISABLE_ENVIRONMENT, "") in ("", "0")
        return object.__new__(cls if recording else no_op.SilentRecorder)

    def __init__(
        self,
        *excess: NoReturn,
        run: str | None = None,
        rank: int | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        attempt: int | None = None,
        socket: str | os.PathLike[str] | None = None,
        tokens_per_step: float | None = None,
        samples_per_step: float | None = None,
        flops_per_token: float | ModelFlops | None = None,
        flops_convention: str | None = None,
        hardware_flops_per_token: float | None = None,
        flops_per_step: float | None = None,
        peak_flops: float | None = None,
        precision: str | None = None,
        global_batch: int | None = None,
        total_steps: int | None = None,
        tier: str | None = None,
        device_time: bool = True,
        sinks: Sequence[Sink] = (),
        trace: Trace | None = None,
        enabled: bool = True,
        **unknown: NoReturn,
    ) -> None:
        try:
            identity = discover(
                {"run": run, "rank": rank, "local_rank": local_rank, "world_size": world_size, "attempt": attempt},
                os.environ,
            )
            workload = Workload(
                identity.world_size,
                tokens_per_step=tokens_per_step,
                samples_per_step=samples_per_step,
                flops_per_token=flops_per_token,
                flops_convention=flops_convention,
                hardware_flops_per_token=hardware_flops_per_token,
                flops_per_step=flops_per_step,
                peak_flops=peak_flops,
                precision=precision,
                global_batch=global_batch,
                tier=os.environ.get(TIER_ENVIRONMENT) or None if tier is None else tier,
            )
            self._report = report = Report(identity, workload, device_time=flag(device_time) is not False)
            self._step = report.step
            if total_steps is not None:
                report.step.log(total_steps=total_steps)
            if excess or unknown:
                self._misuse("Recorder", unknown)
            self._watched: WeakSet[Any] = WeakSet()
            self._invariants: Invariants | None = None
            self._thresholds = Thresholds()
            report.sources.add(self._thresholds)
            self._garbage = GarbageTag(report.step, report.clock)
            report.accelerator.locate()
            goodput = Goodput(report.clock, report.step, lambda: self.last_step, self._ended_before)
            report.observers.add(goodput)
            report.sources.add(goodput)
            self._outputs = Outputs(report, sinks, trace)
            self._phases = self._outputs.phases
            self._garbage.start()
            self._sender = Sender(report, path_of(socket))
            shutdown.enroll(self._sender, self._silence)
        except Exception as error:
            if raised_by_signal(error):
                raise
            notice("start", "nothing is recorded", error)
            self._silence()

    def __reduce__(self) -> tuple[type[Recorder], tuple[()]]:
        return no_op.SilentRecorder, ()

    @property
    def last_step(self) -> int | None:
        """The step at which an earlier process of this rank stood, by the exporter's memory; None until it is known."""
        return self._sender.last_step if self._sender is not None else None

    @property
    def identity(self) -> Identity:
        """Who this is: run, rank, local rank, world size and attempt, as they were found."""
        return self._report.identity

    def position(self, *excess: NoReturn, **unknown: NoReturn) -> tuple[int, str]:
        """Return the step and the phase that the training thread is in; for logs, from any thread."""
        return self._step.next, self._report.clock.current.name

    def step(
        self,
        number: int | None = None,
        *excess: NoReturn,
        tag: str | None = None,
        accumulating: bool = False,
        **unknown: NoReturn,
    ) -> Step:
        """Return the context manager of one optimizer step; `number` where it does not follow the last one (a resume).

        Steps are numbered from 0. One that ends with an exception is not counted. `tag` (one of `STEP_TAGS`) keeps it
        out of every baseline. `accumulating` says that this is a micro-step that completes none: its time belongs to
        the step that the next one without `accumulating` completes.
        """
        step = self._step
        try:
            if number is not None:
                if (given := count(number)) is not None:
                    step.next = given
                else:
                    self._drop("number of step()")
            if tag is not None:
                if (named := one_of(STEP_TAGS, tag)) is not None:
                    step.given = named
                else:
                    self._drop("tag", tag, STEP_TAGS)
            if accumulating is True:
                step.accumulating = True
            elif accumulating is not False:
                self._accumulate(accumulating)
            if excess or unknown:
                self._misuse("step", unknown)
        except Exception as error:  # noqa: BLE001 - out of memory or stack
            try:  # noqa: SIM105 - `suppress` is one more call
                self._fault("step", error)
            except OUT:
                pass
        return step

    @contained
    def tag(self, name: str) -> None:
        """Say why the step under way is no ordinary one: one of `STEP_TAGS`; outside a step it is dropped and counted.

        Evaluation, checkpoints, full garbage collections and the first step of a process are tagged by themselves.
        """
        tag = one_of(STEP_TAGS, name)
        if tag is None:
            self._drop("tag", name, STEP_TAGS)
        elif self._step.under_way:
            self._report.clock.tag = tag
        else:
            self._drop("tag() outside a step")

    def phase(self, name: str = "", *excess: NoReturn, **unknown: NoReturn) -> AbstractContextManager[None]:
        """Return the context manager of a phase: one of `catalog.PHASES`; any other name is dropped and counted.

        Phases are exclusive: inside a nested one the outer one's time stands still.
        """
        try:
            return self._phases[name]
        except Exception as error:  # noqa: BLE001 - an unknown name, or an object that has no hash
            try:  # noqa: SIM105 - `suppress` is one more call
                self._fault("phase", error, name, PHASES)
            except OUT:
                pass
            return NOTHING

    def data(self, loader: Iterable[T], *excess: NoReturn, **unknown: NoReturn) -> Batches[T]:
        """Return `loader` with every wait for a batch booked as phase `data`: iterate over it, take its length.

        For one made inside phase `eval` waiting is evaluation, too, and its batches are not counted.
        """
        try:
            report = self._report
            # One rank that evaluates alone has not drifted from the others: its batches are counted for nobody.
            if report.clock.current.name == "eval":
                return Batches(loader, cast("Phase", self._phases["eval"]), Tally())
            return Batches(loader, cast("Phase", self._phases["data"]), report.batches, report.loaders)
        except Exception as error:  # noqa: BLE001 - out of memory or stack
            try:  # noqa: SIM105 - `suppress` is one more call
                self._fault("data", error)
            except OUT:
                pass
            return cast("Batches[T]", loader)

    def collective(
        self, operation: str = "", bytes: int = 0, *excess: NoReturn, **unknown: NoReturn
    ) -> AbstractContextManager[None]:
        """Return a context manager around one blocking collective (`catalog.OPERATIONS`) with its payload in bytes.

        All of its time counts as exposed wait, and as phase `collective`.
        """
        try:
            payload = whole(bytes, LARGEST)
            if payload is None:
                self._drop("bytes of collective()")
                return NOTHING
            report = self._report
            collective = Collective(report.clock.phases["collective"], report.collectives.marked[operation], payload)
            trace = self._outputs.trace if self._outputs is not None else None
            return collective if trace is None else trace.phase(collective, operation)
        except Exception as error:  # noqa: BLE001 - an unknown name, or an object that has no hash
            try:  # noqa: SIM105 - `suppress` is one more call
                self._fault("collective", error, operation, OPERATIONS)
            except OUT:
                pass
            return NOTHING

    @contained
    def watch(
        self,
        model: object = None,
        optimizer: object = None,
        *,
        scheduler: object = None,
        scaler: object = None,
        layers: int = 0,
        activations: bool = False,
        update_every: int = 0,
        checksum_every: int = 0,
        memory_layers: bool = False,
    ) -> None:
        """Measure what a model and an optimizer show by themselves; call it once, before the first backward.

        A DistributedDataParallel model gets a communication hook that times the exposed wait of its gradient
        all-reduce. A model takes one hook only: one of its own, also one that it is given later, takes the place of
        ours, and the wait is not timed. An optimizer gives the learning rate of its first parameter group, unless
        `step.log` does. GPU memory is read once CUDA is in use.

        - `scheduler`, `scaler`: the learning-rate schedule's own count; the loss scale and the steps it skipped.
        - `layers`: on rank 0, gradient norms of so many layers, those furthest above their own usual one.
        - `activations`: on rank 0, size of each layer's output and its share of zeros, at sampled steps.
        - `update_every`: the size of the parameter update beside the parameters', every so many steps.
        - `checksum_every`: a checksum of the parameters and of a known product, to compare ranks, every so many steps.
        - `memory_layers`: on rank 0, peak GPU memory of each layer.
        """
        report = self._report
        report.accelerator.locate()
        try:
            known = model is not None and model in self._watched
            if model is not None:
                self._watched.add(model)
            optimizer_ref = None if optimizer is None else ref(optimizer)
        except Exception as error:  # noqa: BLE001 - neither is what it is said to be, and may raise anything
            self._refuse_watch("nothing", error)
            return
        if optimizer_ref is not None:
            report.logged.optimizer = optimizer_ref
        if known:
            return
        if model is not None:
            try:
                if (totals := watch_buckets(model)) is not None:
                    report.collectives.watched.append(totals)
            except Exception as error:  # noqa: BLE001 - PyTorch may refuse in any way; training goes on without
                self._refuse_watch("no collective wait", error)
        if model is None and optimizer is None and scheduler is None and scaler is None:
            return
        try:
            from tachograph.client.torch.model.model_watch import ModelWatch  # late: only a watched model needs it

            watch = ModelWatch(
                model, optimizer, scheduler=scheduler, scaler=scaler,
                layers=self._whole("layers", layers), activations=flag(activations) or False,
                update_every=self._whole("update_every", update_every),
                checksum_every=self._whole("checksum_every", checksum_every),
                memory_layers=flag(memory_layers) or False,
                rank=report.identity.rank, invariants=self._shared_numbers(), dropped=report.dropped,
            )  # fmt: skip
            watch.attach()
            report.sources.add(watch)
        except Exception as error:  # noqa: BLE001 - as above
            self._refuse_watch("nothing of model and optimizer", error)

    @contained
    def invariant(self, name: str, value: float, step: int | None = None) -> None:
        """Report a number that all ranks of the run must share at `step` (None: from beginning to end).

        A whole number counts modulo 2^53. The rank whose number differs is named by an alert.
        """
        if not self._shared_numbers().set(name, value, step):
            self._drop("invariant")

    @contained
    def threshold(self, name: str, value: float) -> None:
        """Set a limit of this run's own alerts, one of `catalog.THRESHOLDS`, in place of the rules' default.

        Seconds, or a share between 0 and 1; any other name or value is dropped and counted. Said again, it stands for
        the last one; of different ranks' the most tolerant counts, so one rank that says it is enough.
        """
        if not self._thresholds.set(name, value):
            self._drop("threshold", name, THRESHOLDS)

    def count_flops(self, *excess: NoReturn, **unknown: NoReturn) -> AbstractContextManager[None]:
        """Return a context manager that counts the operations of one whole step of this rank with PyTorch's counter.

            with recorder.step(), recorder.count_flops():
                model(batch).loss.backward()
                optimizer.step()

        Once is enough. Recomputation by activation checkpointing is counted, too, so the figure is the hardware's; it
        is also taken for the model's where the constructor was given none. The counter slows its step, which is
        tagged. Not inside a compiled model.
        """
        try:
            from tachograph.client.flops.flop_count import FlopCount

            clock = self._report.clock
            clock.tag = clock.tag or "warm-up"
            return FlopCount(self._report.workload.measured, self._report.dropped)
        except Exception as error:  # noqa: BLE001 - no free file descriptor to load it
            try:  # noqa: SIM105 - `suppress` is one more call
                self._fault("count_flops", error)
            except OUT:
                pass
            return NOTHING

    @contained
    def checkpoint_saved(self, step: int, bytes: int | None = None) -> None:
        """Report the checkpoint of `step` as saved, with its size in bytes; the exporter hears of it at once."""
        saved, size = count(step), None if bytes is None else whole(bytes, LARGEST)
        if saved is None or (bytes is not None and size is None):
            self._drop("step or bytes of checkpoint_saved()")
        if saved is not None:
            self._report.checkpoints.add(time.time(), saved, size, self._report.clock.checkpoint_seconds())
            self._wake()

    @contained
    def checkpoint_failed(self) -> None:
        """Report a checkpoint that could not be saved, where that is no exception out of phase `checkpoint`."""
        self._report.checkpoints.failed(self._report.clock.checkpoint_seconds())
        self._wake()

    @contained
    def resumed(self, step: int, seconds: float | None = None) -> None:
        """Report that this attempt goes on from the checkpoint of `step`, which took `seconds` to load.

        Steps are not renumbered by it: `step(number)` does that.
        """
        begun, took = count(step), None if seconds is None else as_number(seconds)
        if begun is None or (seconds is not None and took is None):
            self._drop("step or seconds of resumed()")
        if begun is not None:
            self._report.checkpoints.resumed(begun, took)
            self._report.logged.resumed = True
            self._wake()

    @contained
    def add_source(self, source: Source) -> None:
        """Have `source` asked for metrics before each frame; what the recorder itself measures stands above it."""
        if callable(getattr(source, "metrics", None)):
            self._report.guests.add(source)
        else:
            self._drop("a source without metrics()")

    @contained
    def close(self, error: BaseException | None = None) -> None:
        """End the record as finished, or as failed by `error`; takes at most 0.2 s. At exit it happens by itself."""
        try:
            if self._sender is not None and issubclass(type(error), BaseException):
                shutdown.part("failed", *describe(cast("BaseException", error)), only=self._sender)
            elif self._sender is not None:
                shutdown.part("finished", only=self._sender)
        finally:
            self._let_go(close=True)

    def _shared_numbers(self) -> Invariants:
        if self._invariants is None:
            from tachograph.client.signals.invariants import Invariants  # late: many runs have none

            self._invariants = Invariants()
            self._report.sources.add(self._invariants)
        return self._invariants

    def _ended_before(self) -> float | None:
        return self._sender.ended if self._sender is not None else None

    def _wake(self) -> None:
        if self._sender is not None:
            self._sender.wake()

    def _refuse_watch(self, what: str, error: Exception) -> None:
        if raised_by_signal(error):
            raise error
        self._report.dropped.count += 1
        notice("watch", f"{what} is measured", error)

    def _accumulate(self, accumulating: object) -> None:
        given = flag(accumulating)
        if given is None:
            self._drop("accumulating of step()")
        elif given:
            self._step.accumulating = True

    def _whole(self, argument: str, value: object) -> int:
        """Return how many, or every how many steps; 0, that is not at all, for what is no such number."""
        if (number := whole(value, LARGEST)) is None:
            self._drop(f"{argument} of watch()")
        return number or 0

    def _drop(self, what: str, wrong: object = None, right: tuple[str, ...] = ()) -> None:
        """Count what cannot be recorded, and say so once: a wrong word with the right ones beside it."""
        self._report.dropped.count += 1
        if right:
            unknown(what, wrong, right)
        else:
            notice(f"drop {what}", f"{what} cannot be right, and is dropped")

    def _misuse(self, call: str, named: Mapping[str, object]) -> None:
        """Say that arguments were left out of account: more than a call takes, or under names it does not know."""
        self._report.dropped.count += 1
        method = getattr(Recorder, "__init__" if call == "Recorder" else call)
        extra = ", ".join(map(str, named)) or "one argument too many"
        notice(
            f"misuse {call}", f"{call}() is given {extra}, which is dropped: it takes {', '.join(parameters(method))}"
        )

    def _fault(self, call: str, error: Exception, wrong: object = None, right: tuple[str, ...] = ()) -> None:
        """Count what kept a call from recording, unless it is the training code's own; never raises on its own."""
        if raised_by_signal(error):
            raise error
        try:
            if right and not isinstance(error, (MemoryError, RecursionError)):
                self._drop(call, wrong, right)
            else:
                self._report.dropped.count += 1
                tell_fault(getattr(Recorder, call), error)
        except OUT:
            self._report.clock.failed = True

    def _silence(self) -> None:
        """Become a recorder that does nothing: in a forked child the record is the parent's."""
        try:
            self._let_go(close=False)
        finally:
            self.__class__ = no_op.SilentRecorder

    def _let_go(self, *, close: bool) -> None:
        """Stop listening, and close other places to send to, or leave them to the parent of this forked child."""
        if self._garbage is not None:
            self._garbage.stop()
        if self._outputs is not None:
            (self._outputs.close if close else self._outputs.abandon)()


for _name in ("phase", "step", "data", "collective", "count_flops"):
    unseen(getattr(Recorder, _name))

# It is a Recorder, so it comes last; loaded now: later there may be no descriptor free.
from tachograph.client import no_op  # noqa: E402
