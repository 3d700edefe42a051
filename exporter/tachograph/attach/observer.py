"""Steps and phases of a training script, derived from the parts of PyTorch that it uses.

A step ends with the step of the first optimizer that ever made one. It begins with the last batch that a `DataLoader`
delivered before the step's first backward, so a batch that is not trained on makes no step; without a loader it begins
where the last one ended. An evaluation or a save before that backward is no part of it: the step begins after them.
Forward is the time from the step's begin to backward: what it holds besides the model's forward is not known.
"""

# ruff: noqa: ANN401 - what PyTorch hands over has no type here

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from weakref import ref

from tachograph.attach.optimizers import Optimizers, steps_made
from tachograph.attach.saves import Saves
from tachograph.attach.script_recording import ScriptRecording
from tachograph.attach.step_values import StepValues
from tachograph.catalog.rank import PhaseName
from tachograph.client.core.contained import contained
from tachograph.client.core.scalars import Copy, Reading, number
from tachograph.client.hello.identity import discover
from tachograph.integrations.loop import Loop

EVALUATING = 2
"""Batches in a row without a backward after which a loader, never trained on so far, is one for evaluation."""


class LoaderState:
    """One `DataLoader`, and whether it is trained on; iterating gives the iterator that was made last."""

    def __init__(self) -> None:
        self.iterator: Any = None
        self.trained = False
        self.unused = 0

    def __iter__(self) -> Iterator[Any]:
        iterator: Iterator[Any] = self.iterator
        return iterator

    @property
    def evaluates(self) -> bool:
        """Whether its batches are known not to be trained on."""
        return not self.trained and self.unused >= EVALUATING


class Observer:
    """Turns what happens into steps and phases of a recording."""

    def __init__(self, recording: ScriptRecording) -> None:
        self.recording = recording
        self.summary = recording.summary
        self._pending: LoaderState | None = None
        self._fed = False
        self._evaluated: Any = None
        self._saves = Saves()
        self._begins_again = False
        self._backward_seen = False
        self._depth = 0
        self._backwards = 0
        self._usual_backwards = 0
        self._values = StepValues()
        self._optimizers = Optimizers()
        self._restored: Reading = None
        self._compiled_steps = False
        self._scaler: Any = None
        self._models: list[ref[Any]] = []
        self._schedules: list[ref[Any]] = []

    @contained
    def finish(self) -> int:
        """Report what the script's end leaves open, the last checkpoint; return this process's rank."""
        loop = self.recording.loop
        if loop is None:
            return discover({}, os.environ).rank
        if self.recording.active:
            if self._compiled_steps:
                self._find_step(loop)
            self._saves.report(loop.recorder)
        self.summary.ranks = loop.recorder.identity.world_size
        return loop.recorder.identity.rank

    def _begin(self, loop: Loop) -> None:
        """Begin a step with its forward."""
        self._begins_again = False
        self._saves.report(loop.recorder)
        loop.begin()
        loop.enter("forward")

    def _pause(self, loop: Loop, phase: PhaseName) -> None:
        """Enter a phase that is no part of training; a step of which no backward was seen begins again after it."""
        if loop.stepping and not self._backward_seen:
            loop.abandon()
            self._begins_again = True
        loop.enter(phase)

    def _go_on(self, loop: Loop, phase: PhaseName, error: BaseException | None = None) -> None:
        """Leave such a phase."""
        loop.leave(phase, error)
        if self._begins_again and not loop.in_phase("eval") and not loop.in_phase("checkpoint"):
            self._begin(loop)

    # Batches

    def starting(self, learning: bool) -> PhaseName:
        """Return the phase in which a loader is started: its workers take their time."""
        return "data" if learning and not self._is_evaluating() else "eval"

    @contained
    def fetching(self, feed: LoaderState, learning: bool) -> None:
        """Note that a batch is asked for; `learning` is whether gradients are on."""
        loop = self.recording.here()
        if loop is None:
            return
        if self._compiled_steps:
            self._find_step(loop)
        learning = learning and not self._is_evaluating()
        if learning and self._pending is not None:
            self._pending.unused += 1
            self._pending = None
        if learning and not feed.evaluates:
            self._begins_again = False  # the batch will begin it
            loop.leave("eval")
            return
        self.summary.see("eval")
        self._pause(loop, "eval")

    @contained
    def delivered(self, feed: LoaderState, learning: bool) -> None:
        """Note the batch: one to train on begins a step, or a micro-batch of one."""
        loop = self.recording.here()
        if loop is None:
            return
        self.summary.see("data")
        if learning and not self._is_evaluating():
            self._pending = feed
        if loop.in_phase("eval"):
            return
        self._fed = True
        if not self._backward_seen:
            loop.abandon()
        if loop.stepping:
            loop.enter("forward")
        else:
            self._begin(loop)

    @contained
    def exhausted(self) -> None:
        """Note the end of a loader: with it ends an evaluation that nothing else marks."""
        loop = self.recording.begun()
        if loop is not None and not self._is_evaluating():
            self._go_on(loop, "eval")

    # Evaluations and saves

    @contained
    def evaluation_begins(self, module: Any) -> bool:
        """Note that a module is put into evaluation mode; return whether it is a model that the script trains."""
        loop = self.recording.begun()
        if loop is None or not self._optimizers.train(module):
            return False
        if not self._is_evaluating():
            self._evaluated = ref(module)
            self.summary.see("eval")
            self._pause(loop, "eval")
        return True

    @contained
    def evaluation_ends(self, module: Any) -> bool:
        """Note that a module is put into training mode; return whether no evaluation is under way any more."""
        loop = self.recording.begun()
        if self._evaluated is not None and loop is not None and self._optimizers.train(module):
            self._evaluated = None
            self._go_on(loop, "eval")
        return self._evaluated is None

    def _is_evaluating(self) -> bool:
        """Whether the model is in evaluation mode; some put it back into training mode without `train()`."""
        if self._evaluated is not None and getattr(self._evaluated(), "training", True):
            self._evaluated = None
        return self._evaluated is not None

    @contained
    def saving(self) -> bool:
        """Enter phase `checkpoint`; return whether `saved` is to be called for it."""
        loop = self.recording.begun()
        if loop is None:
            return False
        if self._saves.begin():
            self.summary.see("checkpoint")
            self._pause(loop, "checkpoint")
        return True

    @contained
    def saved(self, error: BaseException | None, kept: bool, path: Any = None, upload: Any = None) -> None:
        """Leave it; `kept` is whether the script can go on from what was saved to `path`.

        `upload` is the future of a later end. Files saved between two steps are one checkpoint, which is reported as
        the next step begins.
        """
        outermost = self._saves.end()
        loop = self.recording.here()
        if not outermost or loop is None:
            return
        step, _ = loop.recorder.position()
        self._go_on(loop, "checkpoint", error if kept else None)
        if upload is not None or (kept and error is None):
            self._saves.keep(step, path, upload)

    def compiling(self) -> None:
        """Tag the step in which PyTorch compiles something; called in the thread that compiles."""
        loop = self.recording.loop
        if self.recording.active and loop is not None and loop.stepping and self.summary.steps:
            loop.recorder.tag("compile")

    # Backward

    @contained
    def backward_begins(self, tensors: Any) -> None:
        """Enter phase `backward`, and keep what it was called on as the loss."""
        loop = self.recording.here()
        if loop is None:
            return
        self._depth += 1
        if self._depth > 1:  # activation checkpointing calls it again from within
            return
        self.summary.see("backward")
        if self._compiled_steps:
            self._find_step(loop)
        if self._pending is not None:
            self._pending.trained = True
            self._pending = None
        self._watch_models(loop)
        self._evaluated = None  # the model trains in evaluation mode, or the script forgot to end it
        loop.leave("eval")
        if not loop.stepping:
            self._begin(loop)
        self._backward_seen = True
        loop.leave("forward")
        loop.enter("backward")
        if self._values.backward(tensors):
            self.summary.see("loss")

    @contained
    def backward_ends(self) -> None:
        """Leave phase `backward`."""
        loop = self.recording.here()
        if loop is None or not self._depth:
            return
        self._depth -= 1
        if not self._depth:
            loop.leave("backward")
            self._backwards += 1
            if self._backwards < self._usual_backwards and not loop.in_phase("optimizer"):
                loop.enter("forward")  # another micro-batch is to come

    @contained
    def scaled(self, scaler: Any, loss: Any, result: Any) -> None:
        """Note that mixed precision scaled a loss: the one before is the loss."""
        if self.recording.here() is not None and result is not loss:
            self._values.scaled(loss, result)
            self._scaler = scaler

    @contained
    def clipped(self, norm: Any) -> None:
        """Note the gradient norm that clipping has computed."""
        if self.recording.begun() is not None:
            self.summary.see("gradient norm")
            self._values.clipped(norm)

    # The optimizer

    @contained
    def optimizer_made(self, optimizer: Any) -> None:
        """Remember an optimizer: whose parameters it holds is a model that trains."""
        self._optimizers.made(optimizer)

    @contained
    def optimizer_begins(self, optimizer: Any) -> None:
        """Enter phase `optimizer`."""
        loop = self.recording.here()
        if loop is None:
            return
        self.summary.see("optimizer")
        if self._optimizers.is_first(optimizer):
            self._watch_optimizer(loop, optimizer)
        if not loop.stepping:  # nothing came before: a closure will run the model inside
            loop.begin()
        loop.leave("forward")
        if self._restored is not None:
            self._number(loop)
        loop.enter("optimizer")

    @contained
    def optimizer_ends(self, optimizer: Any) -> None:
        """Leave phase `optimizer`; with the optimizer that counts, the step is complete."""
        loop = self.recording.here()
        if loop is None:
            return
        loop.leave("optimizer")
        if self._optimizers.is_first(optimizer):  # its begin was in a graph
            self._watch_optimizer(loop, optimizer)
        if not self._optimizers.counts(optimizer):
            self.summary.see("optimizers")
            self._values.discard()
        elif loop.stepping:
            rate = {"learning_rate": optimizer.param_groups[0]["lr"]} if self._compiled_steps else {}
            loop.end(**self._values.take(), **rate)
            self.summary.steps += 1
            self._backward_seen = False
            self._usual_backwards, self._backwards = self._backwards, 0
            if not self._fed:
                self._begin(loop)
            self._fed = False

    @contained
    def step_compiled(self, begins: bool) -> None:
        """Note, while its begin or its end is traced, that an optimizer's step is compiled.

        From now on steps are found by updated parameters.
        """
        self._compiled_steps = True
        if begins:
            self._optimizers.updated()

    def _find_step(self, loop: Loop) -> None:
        """Complete the step that a graph has made without its hooks, late: at the next batch or backward."""
        optimizer = self._optimizers.updated()
        if optimizer is not None and self._backward_seen:
            self.optimizer_ends(optimizer)

    @contained
    def optimizer_skipped(self, optimizer: Any) -> None:
        """Complete a step that mixed precision has skipped."""
        if self._backward_seen:
            self.optimizer_ends(optimizer)

    def _watch_optimizer(self, loop: Loop, optimizer: Any) -> None:
        if not self.summary.steps:
            self._restored = steps_made(optimizer)
        self.summary.see("learning rate")
        if self._compiled_steps:  # hooks of its own would have it compiled again
            return
        mine = (schedule() for schedule in self._schedules)
        schedule = next((each for each in mine if getattr(each, "optimizer", None) is optimizer), None)
        loop.recorder.watch(None, optimizer, scheduler=schedule, scaler=self._scaler)
        for name, found in (("schedule", schedule), ("loss scale", self._scaler)):
            if found is not None:
                self.summary.see(name)

    def _number(self, loop: Loop) -> None:
        """Continue the count of an optimizer that was restored, once it is known: a GPU's comes some steps later."""
        if isinstance(self._restored, Copy) and not self._restored.ready():
            return
        count, self._restored = int(number(self._restored) or 0), None
        if count > 0:
            loop.recorder.resumed(count)
            loop.end_accumulating()  # what is open becomes the first part of the step with that number
            loop.begin(count + self.summary.steps)

    # Models and schedules

    @contained
    def model_made(self, model: Any) -> None:
        """Remember a DistributedDataParallel model; it is watched with the first backward, when it has its hooks."""
        self._models.append(ref(model))

    @contained
    def schedule_made(self, schedule: Any) -> None:
        """Remember a learning-rate schedule until its optimizer steps."""
        self._schedules.append(ref(schedule))

    def _watch_models(self, loop: Loop) -> None:
        while self._models:
            model = self._models.pop()()
            if model is not None:
                loop.recorder.watch(model)
                self.summary.see("gradient all-reduce")
