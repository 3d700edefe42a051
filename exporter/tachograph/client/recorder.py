"""`Recorder`: what a training loop calls. Every call returns at once, none raises, whatever becomes of the exporter."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakSet, ref

from tachograph.client import farewell
from tachograph.client.batches import Batches
from tachograph.client.collectives import Collective, watch_buckets
from tachograph.client.garbage import GarbageTag
from tachograph.client.goodput import Goodput
from tachograph.client.identity import Identity, count, discover
from tachograph.client.last_words import describe
from tachograph.client.notice import notice
from tachograph.client.outputs import Outputs
from tachograph.client.report import Report
from tachograph.client.scalars import number as as_number
from tachograph.client.sender import Sender
from tachograph.client.steps import Step
from tachograph.client.tally import Tally
from tachograph.client.thresholds import Thresholds
from tachograph.client.workload import Workload
from tachograph.training_catalog import STEP_TAGS
from tachograph.wire import socket_path

if TYPE_CHECKING:
    from tachograph.client.invariants import Invariants
    from tachograph.client.model_flops import ModelFlops
    from tachograph.client.phases import Phase
    from tachograph.client.sink import Sink
    from tachograph.client.source import Source
    from tachograph.client.trace import Trace

DISABLE_ENVIRONMENT = "TACHOGRAPH_DISABLED"
TIER_ENVIRONMENT = "TACHOGRAPH_TIER"

T = TypeVar("T")
_NOTHING = nullcontext()


class Recorder:
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
    - `sinks`: other places to send the metrics to (`tachograph.sinks`); `trace`: where sampled steps are traced
      (`tachograph.traces`). Both are closed at `close` or at exit, which takes as long as they do.
    - `enabled=False`, or `TACHOGRAPH_DISABLED=1` in the environment: does nothing at all, with no thread and no socket.

    Phases and steps belong to one thread: the one that trains. A forked child's recorder does nothing.
    """

    _sender: Sender | None = None

    def __new__(cls, *, enabled: bool = True, **given: object) -> Recorder:
        """Choose once between recording and doing nothing."""
        from tachograph.client.silent import SilentRecorder  # below us; loaded now, for children forked later

        recording = enabled and os.environ.get(DISABLE_ENVIRONMENT, "") in ("", "0")
        return object.__new__(cls if recording else SilentRecorder)

    def __init__(
        self,
        *,
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
    ) -> None:
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
        self._report = report = Report(identity, workload, device_time=bool(device_time))
        self._step = report.step
        if total_steps is not None:
            report.step.log(total_steps=total_steps)
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
        path = os.fspath(socket) if isinstance(socket, (str, os.PathLike)) else socket_path()
        try:
            self._sender = Sender(report, path)
            farewell.enroll(self._sender, self._silence)
            self._garbage.start()
        except (OSError, RuntimeError) as error:  # the process may have no more files or threads
            notice("start", f"nothing is recorded: {error}")
            self._silence()

    @property
    def last_step(self) -> int | None:
        """The step at which an earlier process of this rank stood, by the exporter's memory; None until it is known."""
        return self._sender.last_step if self._sender is not None else None

    @property
    def identity(self) -> Identity:
        """Who this is: run, rank, local rank, world size and attempt, as they were found."""
        return self._report.identity

    def position(self) -> tuple[int, str]:
        """Return the step and the phase that the training thread is in; for logs, from any thread."""
        return self._step.next, self._report.clock.current.name

    def step(self, number: int | None = None, *, tag: str | None = None, accumulating: bool = False) -> Step:
        """Return the context manager of one optimizer step; `number` where it does not follow the last one (a resume).

        Steps are numbered from 0. One that ends with an exception is not counted. `tag` (one of `STEP_TAGS`) keeps it
        out of every baseline. `accumulating` says that this is a micro-step that completes none: its time belongs to
        the step that the next one without `accumulating` completes.
        """
        step = self._step
        if number is not None:
            if (given := count(number)) is not None:
                step.next = given
            else:
                self._report.dropped.count += 1
        if tag is not None:
            if isinstance(tag, str) and tag in STEP_TAGS:
                step.given = tag
            else:
                self._report.dropped.count += 1
        if accumulating:
            step.accumulating = True
        return step

    def tag(self, name: str) -> None:
        """Say why the step under way is no ordinary one: one of `STEP_TAGS`; outside a step it is dropped and counted.

        Evaluation, checkpoints, full garbage collections and the first step of a process are tagged by themselves.
        """
        if isinstance(name, str) and name in STEP_TAGS and self._step.under_way:
            self._report.clock.tag = name
        else:
            self._report.dropped.count += 1

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return the context manager of a phase: one of `catalog.PHASES`; any other name is dropped and counted.

        Phases are exclusive: inside a nested one the outer one's time stands still.
        """
        try:
            return self._phases[name]
        except (KeyError, TypeError):
            self._report.dropped.count += 1
            return _NOTHING

    def data(self, loader: Iterable[T]) -> Batches[T]:
        """Return `loader` with every wait for a batch booked as phase `data`: iterate over it, take its length.

        For one made inside phase `eval` waiting is evaluation, too, and its batches are not counted.
        """
        report = self._report
        # One rank that evaluates alone has not drifted from the others: its batches are counted for nobody.
        if report.clock.current.name == "eval":
            return Batches(loader, cast("Phase", self._phases["eval"]), Tally())
        return Batches(loader, cast("Phase", self._phases["data"]), report.batches, report.loaders)

    def collective(self, operation: str, bytes: int = 0) -> AbstractContextManager[None]:
        """Return a context manager around one blocking collective (`catalog.OPERATIONS`) with its payload in bytes.

        All of its time counts as exposed wait, and as phase `collective`.
        """
        payload = _size(bytes)
        report = self._report
        try:
            totals = report.collectives.marked[operation]
        except (KeyError, TypeError):
            totals = None
        if totals is None or payload is None:
            report.dropped.count += 1
            return _NOTHING
        collective = Collective(report.clock.phases["collective"], totals, payload)
        trace = self._outputs.trace
        return collective if trace is None else trace.phase(collective, operation)

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
        all-reduce. A model takes one hook only: one that has its own keeps it, and is not timed. An optimizer gives the
        learning rate of its first parameter group, unless `step.log` does. GPU memory is read once CUDA is in use.

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
            known = model in self._watched
            if model is not None:
                self._watched.add(model)
            optimizer_ref = None if optimizer is None else ref(optimizer)
        except TypeError as error:  # neither is what it is said to be
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
            from tachograph.client.model_watch import ModelWatch  # late: only a watched model needs it

            watch = ModelWatch(
                model, optimizer, scheduler=scheduler, scaler=scaler, layers=layers, activations=activations,
                update_every=update_every, checksum_every=checksum_every, memory_layers=memory_layers,
                rank=report.identity.rank, invariants=self._shared_numbers(), dropped=report.dropped,
            )  # fmt: skip
            watch.attach()
            report.sources.add(watch)
        except Exception as error:  # noqa: BLE001 - as above
            self._refuse_watch("nothing of model and optimizer", error)

    def invariant(self, name: str, value: float, step: int | None = None) -> None:
        """Report a number that all ranks of the run must share at `step` (None: from beginning to end).

        A whole number counts modulo 2^53. The rank whose number differs is named by an alert.
        """
        if not self._shared_numbers().set(name, value, step):
            self._report.dropped.count += 1

    def threshold(self, name: str, value: float) -> None:
        """Set a limit of this run's own alerts, one of `catalog.THRESHOLDS`, in place of the rules' default.

        Seconds, or a share between 0 and 1; any other name or value is dropped and counted. Said again, it stands for
        the last one; of different ranks' the most tolerant counts, so one rank that says it is enough.
        """
        if not self._thresholds.set(name, value):
            self._report.dropped.count += 1

    def count_flops(self) -> AbstractContextManager[None]:
        """Return a context manager that counts the operations of one whole step of this rank with PyTorch's counter.

            with recorder.step(), recorder.count_flops():
                model(batch).loss.backward()
                optimizer.step()

        Once is enough. Recomputation by activation checkpointing is counted, too, so the figure is the hardware's; it
        is also taken for the model's where the constructor was given none. The counter slows its step, which is
        tagged. Not inside a compiled model.
        """
        from tachograph.client.flop_count import FlopCount

        clock = self._report.clock
        clock.tag = clock.tag or "warm-up"
        return FlopCount(self._report.workload.measured, self._report.dropped)

    def checkpoint_saved(self, step: int, bytes: int | None = None) -> None:
        """Report the checkpoint of `step` as saved, with its size in bytes; the exporter hears of it at once."""
        saved, size = count(step), None if bytes is None else _size(bytes)
        if saved is None or (bytes is not None and size is None):
            self._report.dropped.count += 1
        if saved is not None:
            self._report.checkpoints.add(time.time(), saved, size, self._report.clock.checkpoint_seconds())
            self._wake()

    def checkpoint_failed(self) -> None:
        """Report a checkpoint that could not be saved, where that is no exception out of phase `checkpoint`."""
        self._report.checkpoints.failed(self._report.clock.checkpoint_seconds())
        self._wake()

    def resumed(self, step: int, seconds: float | None = None) -> None:
        """Report that this attempt goes on from the checkpoint of `step`, which took `seconds` to load.

        Steps are not renumbered by it: `step(number)` does that.
        """
        begun, took = count(step), None if seconds is None else as_number(seconds)
        if begun is None or (seconds is not None and took is None):
            self._report.dropped.count += 1
        if begun is not None:
            self._report.checkpoints.resumed(begun, took)
            self._report.logged.resumed = True
            self._wake()

    def add_source(self, source: Source) -> None:
        """Have `source` asked for metrics before each frame; what the recorder itself measures stands above it."""
        if callable(getattr(source, "metrics", None)):
            self._report.guests.add(source)
        else:
            self._report.dropped.count += 1

    def close(self, error: BaseException | None = None) -> None:
        """End the record as finished, or as failed by `error`; takes at most 0.2 s. At exit it happens by itself."""
        if isinstance(error, BaseException):
            farewell.part("failed", *describe(error), only=self._sender)
        else:
            farewell.part("finished", only=self._sender)
        self._garbage.stop()
        self._outputs.close()

    def _shared_numbers(self) -> Invariants:
        if self._invariants is None:
            from tachograph.client.invariants import Invariants  # late: many runs have none

            self._invariants = Invariants()
            self._report.sources.add(self._invariants)
        return self._invariants

    def _ended_before(self) -> float | None:
        return self._sender.ended if self._sender is not None else None

    def _wake(self) -> None:
        if self._sender is not None:
            self._sender.wake()

    def _refuse_watch(self, what: str, error: Exception) -> None:
        self._report.dropped.count += 1
        notice("watch", f"{what} is measured: {error!r}")

    def _silence(self) -> None:
        """Become a recorder that does nothing: in a forked child the record is the parent's."""
        from tachograph.client.silent import SilentRecorder

        self._garbage.stop()
        self._outputs.abandon()
        self.__class__ = SilentRecorder


def _size(value: object) -> int | None:
    """Return a number of bytes from 0 to 2^53, the most that JSON carries exactly; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53 else None
