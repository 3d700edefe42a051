"""`Recorder`: what a training loop calls. Every call returns at once, none raises, whatever becomes of the exporter."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar
from weakref import WeakSet, ref

from tachograph.client import farewell
from tachograph.client.batches import Batches
from tachograph.client.collectives import Collective, watch_buckets
from tachograph.client.identity import count, discover
from tachograph.client.last_words import describe
from tachograph.client.notice import notice
from tachograph.client.report import Report
from tachograph.client.sender import Sender
from tachograph.client.steps import Step
from tachograph.client.workload import Workload
from tachograph.wire import socket_path

DISABLE_ENVIRONMENT = "TACHOGRAPH_DISABLED"

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
      recomputation. With `tokens_per_step` it stands in for `flops_per_step`.
    - `peak_flops`: dense peak FLOP/s of this rank's device, where the exporter cannot know it.
    - `precision`, `global_batch`: static facts, shown beside the run.
    - `enabled=False`, or `TACHOGRAPH_DISABLED=1` in the environment: does nothing at all, with no thread and no socket.

    Phases and steps belong to one thread: the one that trains. A forked child's recorder does nothing.
    """

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
        flops_per_token: float | None = None,
        flops_per_step: float | None = None,
        peak_flops: float | None = None,
        precision: str | None = None,
        global_batch: int | None = None,
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
            flops_per_step=flops_per_step,
            peak_flops=peak_flops,
            precision=precision,
            global_batch=global_batch,
        )
        self._report = report = Report(identity, workload)
        self._step = report.step
        self._phases = report.clock.phases
        self._watched: WeakSet[Any] = WeakSet()
        report.accelerator.locate()
        path = os.fspath(socket) if isinstance(socket, (str, os.PathLike)) else socket_path()
        try:
            self._sender = Sender(report, path)
            farewell.enroll(self._sender, self._silence)
        except (OSError, RuntimeError) as error:  # the process may have no more files or threads
            notice("start", f"nothing is recorded: {error}")
            self._silence()

    @property
    def last_step(self) -> int | None:
        """The step at which an earlier process of this rank stood, by the exporter's memory; None until it is known."""
        return self._sender.last_step

    def step(self, number: int | None = None) -> Step:
        """Return the context manager of one optimizer step; `number` where it does not follow the last one (a resume).

        Steps are numbered from 0. One that ends with an exception is not counted.
        """
        if number is not None:
            if (given := count(number)) is not None:
                self._step.next = given
            else:
                self._report.dropped.count += 1
        return self._step

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
        """Return `loader` with every wait for a batch booked as phase `data`: iterate over it, take its length."""
        return Batches(loader, self._phases["data"], self._report.batches)

    def collective(self, operation: str, bytes: int = 0) -> AbstractContextManager[None]:
        """Return a context manager around one blocking collective (`catalog.OPERATIONS`) with its payload in bytes.

        All of its time counts as exposed wait, and as phase `collective`.
        """
        payload = _size(bytes)
        try:
            totals = self._report.collectives.marked[operation]
        except (KeyError, TypeError):
            totals = None
        if totals is None or payload is None:
            self._report.dropped.count += 1
            return _NOTHING
        return Collective(self._phases["collective"], totals, payload)

    def watch(self, model: object = None, optimizer: object = None) -> None:
        """Measure what a model and an optimizer show by themselves; call it once, before the first backward.

        A DistributedDataParallel model gets a communication hook that times the exposed wait of its gradient
        all-reduce (CPU tensors; on CUDA buckets and bytes are counted). A model takes one hook only: one that has its
        own keeps it, and is not timed. An optimizer gives the learning rate of its first parameter group, unless
        `step.log` does. GPU memory is read once CUDA is in use.
        """
        try:
            self._report.accelerator.locate()
            if optimizer is not None:
                self._report.optimizer = ref(optimizer)
            if model is not None and model not in self._watched:
                totals = watch_buckets(model)
                if totals is not None:
                    self._report.collectives.watched.append(totals)
                self._watched.add(model)
        except Exception as error:  # noqa: BLE001 - PyTorch's internals may refuse in any way; training goes on without
            self._report.dropped.count += 1
            notice("watch", f"collective wait is not measured: {error}")

    def checkpoint_saved(self, step: int, bytes: int | None = None) -> None:
        """Report the checkpoint of `step` as saved, with its size in bytes; the exporter hears of it at once."""
        saved, size = count(step), None if bytes is None else _size(bytes)
        if saved is None or (bytes is not None and size is None):
            self._report.dropped.count += 1
        if saved is not None:
            self._report.checkpoints.add(time.time(), saved, size)
            self._sender.wake()

    def close(self, error: BaseException | None = None) -> None:
        """End the record as finished, or as failed by `error`; takes at most 0.2 s. At exit it happens by itself."""
        if isinstance(error, BaseException):
            farewell.part("failed", *describe(error), only=self._sender)
        else:
            farewell.part("finished", only=self._sender)

    def _silence(self) -> None:
        """Become a recorder that does nothing: in a forked child the record is the parent's."""
        from tachograph.client.silent import SilentRecorder

        self.__class__ = SilentRecorder


def _size(value: object) -> int | None:
    """Return a number of bytes from 0 to 2^53, the most that JSON carries exactly; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53 else None
