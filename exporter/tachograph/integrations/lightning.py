"""Lightning: `TachographCallback` for `lightning.pytorch` and `pytorch_lightning`.

    trainer = lightning.Trainer(callbacks=[TachographCallback(run="vit", samples_per_step=4096)])
    trainer.fit(module, loader)

Phases come from the actions that the Trainer itself reports to its profiler, whichever that is; the wait for data, the
copy to the device, forward, backward, the optimizer and checkpoints are among them.
"""

# ruff: noqa: ANN401 - Lightning's objects have no type here

from __future__ import annotations

import functools
import importlib
import math
import sys
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

from tachograph.catalog.rank import PhaseName
from tachograph.client.core.contained import contained
from tachograph.client.recorder import Recorder
from tachograph.integrations.loop import Loop

PACKAGES = ("lightning.pytorch", "pytorch_lightning")

PHASES: dict[str, PhaseName] = {
    "train_dataloader_next": "data",
    "batch_to_device": "copy",
    "training_step": "forward",
    "backward": "backward",
    "optimizer_step": "optimizer",
    "save_checkpoint": "checkpoint",
}
"""The last word of a profiled action, and its phase. An action runs inside another's: phases are exclusive."""

BY_HAND: dict[str, PhaseName] = {"backward": "backward", "optimizer_step": "optimizer"}
"""The strategy's methods that manual optimization calls from within `training_step`, without an action of their own."""

OWNERS = ("[Strategy]", "[LightningModule]", "[_TrainingEpochLoop]", "save_checkpoint")


def _bases() -> tuple[type, ...]:
    """Return the Callback class of each Lightning that is loaded, else of the first that is installed."""
    found = [package for package in PACKAGES if sys.modules.get(package) is not None]
    for package in [] if found else PACKAGES:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            continue
        found = [package]
        break
    return tuple(sys.modules[package].Callback for package in found)


_BASES = _bases()


class TachographCallback(*_BASES):  # type: ignore[misc]
    """Records a Lightning Trainer's `fit`: steps, phases, loss, checkpoints, evaluation, what it resumed from.

    Arguments are those of `tachograph.Recorder`, or a `recorder` made earlier (then it is the caller's to close).
    A step is an optimizer step: with `accumulate_grad_batches` its micro-batches belong to it. With manual
    optimization each batch is one.
    """

    def __init__(self, *, recorder: Recorder | None = None, **given: Any) -> None:
        if not _BASES:
            raise ImportError("TachographCallback needs Lightning: pip install lightning")
        super().__init__()
        self._loop: Loop | None = None if recorder is None else Loop(recorder)
        self._owned = recorder is None
        self._given = given
        self._accumulating = False
        self._batches = 0
        self._arrived: Iterator[None] = repeat(None)
        self._unwrap: list[Callable[[], None]] = []
        self._saving: Any = None

    @contained
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin the record, so that the time until the first step is seen as `init`."""
        if stage != "fit":
            return
        if self._loop is None:
            who = {"rank": trainer.global_rank, "local_rank": trainer.local_rank, "world_size": trainer.world_size}
            self._loop = Loop(Recorder(**{**who, "precision": str(trainer.precision), **self._given}))
        # Lightning announces a batch without handing it over: an empty loader counts along.
        self._arrived = iter(self._loop.recorder.data(repeat(None)))
        self._listen(trainer)

    @contained
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Watch what is trained; report what this attempt resumed from."""
        if self._loop is None:
            return
        recorder = self._loop.recorder
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        recorder.watch(
            trainer.strategy.model,
            next(iter(trainer.optimizers), None),
            scheduler=next(iter(schedulers), None),
            scaler=getattr(trainer.precision_plugin, "scaler", None),
        )
        step = trainer.global_step
        if not pl_module.automatic_optimization:  # Lightning's number counts each optimizer; a step is a batch
            step = self._batches = trainer.fit_loop.epoch_loop.batch_progress.total.completed
            for name, phase in BY_HAND.items():
                self._wrap(trainer.strategy, name, phase)
        batch = getattr(trainer.train_dataloader, "batch_size", None)
        if isinstance(batch, int):
            batch *= trainer.accumulate_grad_batches * trainer.world_size
            recorder.invariant("global_batch", batch, step=step)
        if step:
            recorder.resumed(step)
        if not pl_module.automatic_optimization and trainer.max_steps != -1:
            return
        if 0 < (steps := trainer.estimated_stepping_batches) < math.inf:  # last: what Lightning raises costs this alone
            recorder.step().log(total_steps=steps)

    @contained
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin a step, or a micro-batch of one."""
        if self._loop is not None:
            every = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            self._accumulating = bool((batch_idx + 1) % every) and not trainer.is_last_batch
            self._loop.begin(trainer.global_step if pl_module.automatic_optimization else self._batches)
            self._batches += 1

    @contained
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Complete the step; Lightning has scaled the loss of a micro-batch to its share of the step's."""
        if self._loop is not None:
            self._loop.add_loss(outputs.get("loss") if hasattr(outputs, "get") else outputs)
            if self._accumulating:
                self._loop.end_accumulating()
            else:
                self._loop.end()

    @contained
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Enter phase `eval`."""
        if self._loop is not None:
            self._loop.enter("eval")

    @contained
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave phase `eval`, and take what the module logs as `val_loss`."""
        if self._loop is not None:
            self._loop.leave("eval")
            loss = trainer.callback_metrics.get("val_loss")
            if loss is not None and not trainer.sanity_checking:
                self._loop.recorder.step().log(val_loss=loss)

    @contained
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the step that failed without counting it; the exception itself is Lightning's to raise."""
        if self._loop is not None:
            self._loop.abandon()

    @contained
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the record, unless the recorder is the caller's or an exception is on its way to end it as failed."""
        if stage != "fit" or self._loop is None:
            return
        while self._unwrap:
            self._unwrap.pop()()
        if self._owned and sys.exc_info()[1] is None:
            self._loop.recorder.close()
            self._loop = None

    def _listen(self, trainer: Any) -> None:
        """Listen to every action that the Trainer reports to its profiler, which goes on as before."""
        profiler = trainer.profiler
        start, stop = profiler.start, profiler.stop
        before: dict[str, BaseException | None] = {}

        def begun(action: str) -> None:
            start(action)
            self._begun(action, before)

        def done(action: str) -> None:
            self._done(action, before, trainer)
            stop(action)

        save = trainer.save_checkpoint

        def saving(filepath: Any, *arguments: Any, **named: Any) -> Any:
            self._saving = filepath
            return save(filepath, *arguments, **named)

        trainer.save_checkpoint = functools.wraps(save)(saving)
        profiler.start = functools.wraps(start)(begun)
        profiler.stop = functools.wraps(stop)(done)

        def unwrap() -> None:
            if profiler.start is begun:
                del profiler.start, profiler.stop
            if vars(trainer).get("save_checkpoint") is saving:
                del trainer.save_checkpoint

        self._unwrap.append(unwrap)

    def _wrap(self, owner: Any, name: str, phase: PhaseName) -> None:
        """Call a method of one object as a phase of the open step."""
        method = getattr(owner, name)

        def called(*arguments: Any, **named: Any) -> Any:
            loop = self._loop
            if loop is None or not loop.stepping:
                return method(*arguments, **named)
            with loop.recorder.phase(phase):
                return method(*arguments, **named)

        def unwrap() -> None:
            if vars(owner).get(name) is called:
                delattr(owner, name)

        setattr(owner, name, functools.wraps(method)(called))
        self._unwrap.append(unwrap)

    @contained
    def _begun(self, action: str, before: dict[str, BaseException | None]) -> None:
        phase = _phase(action)
        if phase is not None and self._loop is not None and not self._loop.in_phase("eval"):
            before[phase] = sys.exc_info()[1]
            self._loop.enter(phase)

    @contained
    def _done(self, action: str, before: dict[str, BaseException | None], trainer: Any) -> None:
        """Leave the action's phase, as failed where an exception is on its way that was not when it began."""
        phase = _phase(action)
        if phase is None or self._loop is None or not self._loop.in_phase(phase):
            return
        error = sys.exc_info()[1]
        if error is before.pop(phase, None):
            error = None
        self._loop.leave(phase, None if isinstance(error, StopIteration) else error)
        if phase == "data" and error is None:
            next(self._arrived)
        if phase == "checkpoint" and error is None:
            path = self._saving or getattr(trainer.checkpoint_callback, "dirpath", None)
            automatic = trainer.lightning_module.automatic_optimization
            step = trainer.global_step if automatic else self._loop.recorder.position()[0]
            self._loop.recorder.checkpoint_saved(step, path=path)


def _phase(action: str) -> PhaseName | None:
    return PHASES.get(action.rpartition(".")[2]) if action.startswith(OWNERS) else None
