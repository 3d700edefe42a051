"""`Recorder`: what a training loop calls. Each call returns at once, and none raises, whatever the exporter does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

from tachograph.catalog.rank import OPERATIONS, PHASES, OperationName, PhaseName, StepTag, TierName
from tachograph.client.active import ActiveCalls
from tachograph.client.core.arguments import decimal, flag
from tachograph.client.core.batches import Batches
from tachograph.client.core.compiled import NOTHING, unseen
from tachograph.client.core.contained import contained, parameters, report_fault
from tachograph.client.core.helper_process import is_helper
from tachograph.client.core.misuse import Misuse
from tachograph.client.core.notice import OUT, notice, raised_by_signal
from tachograph.client.core.phases import Uncopied
from tachograph.client.core.steps import Step
from tachograph.client.hello.identity import Identity, discover
from tachograph.client.hello.plan import Plan, plan_of
from tachograph.client.hello.workload import Workload
from tachograph.client.no_op import NO_OP, NoOpCalls
from tachograph.client.torch.flight_recorder import enable_timing
from tachograph.findings.limits import LimitName

if TYPE_CHECKING:
    from tachograph.client.flops.model_flops import ModelFlops
    from tachograph.client.transport.interfaces import MetricSource, Sink, Trace

DISABLE_ENVIRONMENT = "TACHOGRAPH_DISABLED"
TIER_ENVIRONMENT = "TACHOGRAPH_TIER"
HANG_ENVIRONMENT = "TACHOGRAPH_HANG_SECONDS"
TOO_LATE_TO_TIME = "has no effect: make the Recorder before init_process_group, or set TORCH_NCCL_ENABLE_TIMING=1"

T = TypeVar("T")

_on_created: list[Callable[[], None]] = []


def on_created(act: Callable[[], None]) -> None:
    """Have `act` called whenever this process makes a `Recorder`, before that one starts; it must not raise."""
    _on_created.append(act)


class Recorder(Uncopied):
    """Records one rank of a training run and reports it to the exporter of its node.

    Every argument is optional; an invalid value is dropped and counted, and never raises.

    - `run`, `rank`, `local_rank`, `world_size`, `attempt`: who this is; otherwise detected from `TACHOGRAPH_*`,
      torchrun, Slurm or MPI.
    - `socket`: path of the exporter's socket; otherwise `$TACHOGRAPH_SOCKET` or the usual places.
    - `tokens_per_step`, `samples_per_step`, `flops_per_step`: for the **whole run**; each rank counts its share.
      If they change, `step.log(tokens=…)` takes one step's, for **this rank**.
    - `flops_per_token`: the model's operations for one token, forward and backward, without recomputation: a number, or
      what `model_flops` returned. With tokens it replaces `flops_per_step`.
    - `flops_convention`: how they were counted: one of `model_flops.CONVENTIONS`, `measured` or `given`.
    - `hardware_flops_per_token`: the same with recomputation, for HFU.
    - `peak_flops`: dense peak FLOP/s of this rank's device, if the exporter cannot know it.
    - `precision`, `global_batch`: static facts; `total_steps`: the step at which the run will end.
    - `tier`: `hero`, `standard` or `dev`: who is paged; otherwise `$TACHOGRAPH_TIER`.
    - `metrics`: more names for `step.log`, with their meaning, such as
      `{"expert_load": "Tokens per expert, highest over mean"}`; at most 16, of a-z, 0-9 and _.
    - `$TACHOGRAPH_HANG_SECONDS`: the run's threshold `hang_seconds` (see `threshold`).
    - `mesh`: where this rank is in the run's parallelism: a `DeviceMesh` with named dimensions, or
      `{"pp": 3, "tp": 1}`; otherwise detected from sharded parameters or Megatron-Core.
    - `device_time=False`: no CUDA events around phases.
    - `collective_timing=True`: NCCL times its collectives, as with `TORCH_NCCL_ENABLE_TIMING=1`; give it before
      `init_process_group`.
    - `sinks`: other places to send the metrics to (`tachograph.export.sinks`); `trace`: where sampled steps are traced
      (`tachograph.export.traces`). `close` or the exit waits for both.
    - `$TACHOGRAPH_STACKS`: with 0 nobody ever looks at which line a rank without a step stands still, and no signal
      has a handler with which a rank that keeps Python's lock leaves its stacks.
    - `$TACHOGRAPH_BLACKBOX`: the folder of the rank's boxes, which say what it was doing when it stood still or failed,
      and for which SIGUSR2 asks; with 0 there are none, also for the exporter.
    - `enabled=False`, or `TACHOGRAPH_DISABLED=1`: does nothing at all.

    Phases and steps belong to one thread: the one that trains. A forked child's recorder does nothing, nor does one
    made in a loader's worker, or where a spawned process imports the script again. A copy of it, made with a model by
    `copy.deepcopy`, is the recorder itself; an unpickled one does nothing.

    No call raises, whatever its arguments and the state of the process: what is wrong is dropped, counted, and
    logged once. What the training code raises inside a step, a phase or a loader passes through unchanged.
    """

    def __init__(
        self,
        *excess: NoReturn,
        run: str | None = None,
        role: str | None = None,
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
        tier: TierName | None = None,
        metrics: dict[str, str] | None = None,
        mesh: object = None,
        device_time: bool = True,
        collective_timing: bool = False,
        sinks: Sequence[Sink] = (),
        trace: Trace | None = None,
        enabled: bool = True,
        **unknown: NoReturn,
    ) -> None:
        for act in tuple(_on_created):
            act()
        self._use(NO_OP)
        if flag(enabled) is False or os.environ.get(DISABLE_ENVIRONMENT, "") not in ("", "0"):
            return
        try:
            if is_helper():
                return
            misuse = Misuse()
            identity = discover(
                {
                    "run": run,
                    "role": role,
                    "rank": rank,
                    "local_rank": local_rank,
                    "world_size": world_size,
                    "attempt": attempt,
                },
                os.environ,
                misuse=misuse,
            )
            workload = Workload(
                identity.world_size,
                misuse,
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
                metrics=metrics,
            )
            if flag(collective_timing) is True and not enable_timing():
                misuse.note("too_late", "Recorder(collective_timing=…)", TOO_LATE_TO_TIME)
            active = ActiveCalls(
                identity,
                workload,
                misuse,
                device_time=flag(device_time) is not False,
                total_steps=total_steps,
                mesh=mesh,
            )
            if limit := os.environ.get(HANG_ENVIRONMENT):
                active.threshold("hang_seconds", decimal(limit))
            try:
                self._start(active, sinks, trace, socket)
            except BaseException:
                self._use(NO_OP)
                active.release(close=False)
                raise
            if excess or unknown:
                self._misuse("Recorder", unknown)
        except Exception as error:
            if raised_by_signal(error):
                raise
            notice("start", "nothing is recorded", error)

    def __reduce__(self) -> tuple[Callable[[], Recorder], tuple[()]]:
        return partial(Recorder, enabled=False), ()

    @property
    def last_step(self) -> int | None:
        """The last step of an earlier process of this rank; None until the exporter has sent it."""
        return self._calls.last_step

    @property
    def received(self) -> bool:
        """Whether an exporter has answered yet; what was recorded before is sent then."""
        return self._calls.received

    @property
    def identity(self) -> Identity:
        """Run, role, rank, local rank, world size and attempt, as detected."""
        return self._calls.identity

    def position(self, *excess: NoReturn, **unknown: NoReturn) -> tuple[int, str]:
        """Return the step and the phase that the training thread is in; any thread may ask."""
        return self._calls.position()

    def step(
        self,
        number: int | None = None,
        *excess: NoReturn,
        tag: StepTag | None = None,
        accumulating: bool = False,
        **unknown: NoReturn,
    ) -> Step:
        """Return the context manager of one optimizer step; give `number` if it does not follow the last one.

        Steps are numbered from 0. A step that ends with an exception is not counted. `tag` (one of `STEP_TAGS`) keeps
        it out of every baseline. `accumulating` marks a micro-step that does not complete an optimizer step: its time
        belongs to the step that the next one without `accumulating` completes.
        """
        if number is not None or tag is not None or accumulating is not False or excess or unknown:
            try:
                self._calls.prepare_step(number, tag, accumulating)
                if excess or unknown:
                    self._misuse("step", unknown)
            except Exception as error:  # noqa: BLE001 - out of memory or stack
                try:  # noqa: SIM105 - `suppress` is one more call
                    self._fault("step", error)
                except OUT:
                    pass
        return self._step

    @contained
    def tag(self, name: StepTag) -> None:
        """Mark the current step as not ordinary, with one of `STEP_TAGS`.

        Evaluation, checkpoints, full garbage collections and the first step of a process are tagged automatically.
        """
        self._calls.tag(name)

    def phase(self, name: PhaseName = "", *excess: NoReturn, **unknown: NoReturn) -> AbstractContextManager[None]:  # type: ignore[assignment]
        """Return the context manager of a phase, one of `catalog.PHASES`.

        Phases are exclusive: while a nested phase runs, the outer one's time stands still.
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
        """Return `loader` with every wait for a batch recorded as phase `data`.

        Each batch fetched inside phase `eval` belongs to the evaluation: its wait stays there, and it is not counted.
        """
        try:
            return cast("Batches[T]", self._calls.data(loader))
        except Exception as error:  # noqa: BLE001 - out of memory or stack
            try:  # noqa: SIM105 - `suppress` is one more call
                self._fault("data", error)
            except OUT:
                pass
            return cast("Batches[T]", loader)

    def collective(
        self,
        operation: OperationName = "",  # type: ignore[assignment]
        bytes: int = 0,
        *excess: NoReturn,
        **unknown: NoReturn,
    ) -> AbstractContextManager[None]:
        """Return the context manager of one blocking collective (`catalog.OPERATIONS`).

        All of its time counts as exposed wait, and as phase `collective`.
        """
        try:
            return self._calls.collective(operation, bytes)
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
        """Measure a model and an optimizer without further calls; once, before the first backward.

        A DistributedDataParallel model gets a communication hook that times the exposed wait of its gradient
        all-reduce. A model takes only one hook: if it has its own, or is given one later, that one replaces ours, and
        the wait is not timed. Every other wait for collectives is timed where PyTorch waits, under FSDP2, tensor and
        pipeline parallelism and in plain `torch.distributed` calls. The learning rate is read from the optimizer's
        first parameter group, unless `step.log` gives it. GPU memory is read once CUDA is in use. Within a step, hooks
        enter phases `forward`, `backward` and `optimizer` if the loop marks none.

        - `scheduler`, `scaler`: the learning-rate schedule's own count; the loss scale and the steps it skipped.
        - `layers`: on rank 0, gradient norms of this many layers, those furthest above their usual one.
        - `activations`: on rank 0, size and share of zeros of each layer's output, at sampled steps.
        - `update_every`: the relative size of the parameter update, every this many steps.
        - `checksum_every`: a checksum of the parameters and of a fixed matrix product, every this many steps.
        - `memory_layers`: on rank 0, peak GPU memory of each layer.
        """
        self._calls.watch(
            model, optimizer, scheduler=scheduler, scaler=scaler, layers=layers, activations=activations,
            update_every=update_every, checksum_every=checksum_every, memory_layers=memory_layers,
        )  # fmt: skip

    @contained
    def invariant(self, name: str, value: float, step: int | None = None) -> None:
        """Report a number that all ranks must share at `step` (None: throughout the run).

        A whole number counts modulo 2^53. An alert names the rank whose number differs.
        """
        self._calls.invariant(name, value, step)

    @contained
    def threshold(self, name: LimitName, value: float) -> None:
        """Set a limit for this run's alerts, one of `findings.limits.LIMITS`.

        In seconds, or a share between 0 and 1. Any other name, and a value outside the limit's range, is dropped and
        counted. A later call replaces an earlier one. If ranks differ, the most tolerant limit of the living ones
        counts, so one rank that sets it is enough.
        """
        self._calls.threshold(name, value)

    def count_flops(self, *excess: NoReturn, **unknown: NoReturn) -> AbstractContextManager[None]:
        """Return a context manager that counts the operations of one whole step with PyTorch's counter.

            with recorder.step(), recorder.count_flops():
                model(batch).loss.backward()
                optimizer.step()

        Once is enough. Recomputation by activation checkpointing is counted, too, so the figure is the hardware's; it
        is also used for the model's if the constructor was given none. The counter slows its step, which is tagged.
        Not inside a compiled model.
        """
        try:
            return self._calls.count_flops()
        except Exception as error:  # noqa: BLE001 - no free file descriptor to load it
            try:  # noqa: SIM105 - `suppress` is one more call
                self._fault("count_flops", error)
            except OUT:
                pass
            return NOTHING

    @contained
    def checkpoint_saved(self, step: int, bytes: int | None = None, path: str | os.PathLike[str] | None = None) -> None:
        """Report the checkpoint of `step` as saved.

        `path` is the file or folder that it was saved to: how much room is left there is reported.
        """
        self._calls.checkpoint_saved(step, bytes, path)

    @contained
    def checkpoint_failed(self) -> None:
        """Report a failed save, if no exception leaves phase `checkpoint`."""
        self._calls.checkpoint_failed()

    def resume(self, *excess: NoReturn, **unknown: NoReturn) -> Plan:
        """Return the plan of this attempt by `tachograph supervise`: its number, why it was started, the step to load.

        Without a supervisor, and in a first attempt, it is false: `if plan := recorder.resume(): …`. `plan.step` is
        that of the checkpoint to begin from, leaving out newer ones, and `plan.checkpoint` where it is; None for the
        newest. `plan.skips(step)` says which steps to leave out with their batches, `plan.rate` and `plan.clipping` by
        what to multiply the learning rate and the norm that gradients are clipped to.
        """
        return plan_of(os.environ)

    @contained
    def resumed(self, step: int, seconds: float | None = None) -> None:
        """Report that this attempt resumes from the checkpoint of `step`, loaded in `seconds`.

        Steps without a number count on from there, if none has begun yet.
        """
        self._calls.resumed(step, seconds)

    @contained
    def add_source(self, source: MetricSource) -> None:
        """Ask `source` for metrics before each frame; the recorder's own take precedence."""
        self._calls.add_source(source)

    @contained
    def close(self, error: BaseException | None = None) -> None:
        """End the record as finished, or as failed by `error`, for good; takes at most 0.2 s.

        Without it the record ends with the process, and the exit code decides, as far as it is known: until all
        recorders are closed, `sys.exit` is hooked. It also does if an exception is on its way and `error` is not given.
        """
        self._calls.close(error)

    def _use(self, calls: NoOpCalls) -> None:
        """Have every call from now on go to this implementation; steps and phases are looked up here, once."""
        self._calls, self._step, self._phases = calls, calls.step, calls.phases

    def _start(self, active: ActiveCalls, sinks: Sequence[Sink], trace: Trace | None, socket: object) -> None:
        """Record, and speak to the exporter, from now to the end of the process."""
        active.start(sinks, trace)
        self._use(active)
        active.connect(socket)
        active.register(self._silence)

    def _silence(self) -> None:
        """Record nothing any more: in a forked child the record is the parent's."""
        calls = self._calls
        self._use(NO_OP)
        calls.release(close=False)

    def _misuse(self, call: str, named: Mapping[str, object]) -> None:
        """Note that arguments were ignored: more than a call takes, or under names it does not know."""
        method = getattr(Recorder, "__init__" if call == "Recorder" else call)
        self._calls.ignored(call, named, tuple(parameters(method)))

    def _fault(self, call: str, error: Exception, wrong: object = None, right: tuple[str, ...] = ()) -> None:
        """Count what kept a call from recording, unless the training code raised it; never raises anything else."""
        if raised_by_signal(error):
            raise error
        try:
            if right and not isinstance(error, (MemoryError, RecursionError)):
                self._calls.drop(call, wrong, right)
            else:
                self._calls.dropped.count += 1
                report_fault(getattr(Recorder, call), error)
        except OUT:
            self._calls.clock.failed = True


for _name in ("phase", "step", "data", "collective", "count_flops"):
    unseen(getattr(Recorder, _name))


def calls_of(recorder: Recorder) -> NoOpCalls:
    """Return what carries out a recorder's calls now, for our own integrations: they need more than a loop may."""
    return recorder._calls
