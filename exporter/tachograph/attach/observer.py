"""Steps and phases of a training script, derived from the parts of PyTorch that it uses.

A step ends with the step of the first optimizer that ever made one. It begins with the last batch that a `DataLoader`
delivered before the step's first backward (else with that backward), so a batch that is not trained on makes no step.
Forward is the time from that batch to backward: what it holds besides the model's forward is not known.
"""

# ruff: noqa: ANN401 - what PyTorch hands over has no type here

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

from tachograph.attach.summary import Summary
from tachograph.client.core.contained import contained
from tachograph.client.core.notice import notice
from tachograph.client.recorder import Recorder
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
    """Turns what happens into steps and phases of a recorder that begins with the first thing that happens.

    Only the thread that made it is watched: phases belong to one thread. `active` is False where there is nothing to
    record: the script has a recorder of its own, or this is a forked child.
    """

    def __init__(self, make: Callable[[], Recorder], summary: Summary) -> None:
        self.active = True
        self.summary = summary
        self.loop: Loop | None = None
        self._make = make
        self._thread = threading.get_ident()
        self._making = False
        self._pending: LoaderState | None = None
        self._backward_seen = False
        self._depth = 0
        self._primary: ref[Any] | None = None
        self._loss: Any = None
        self._scaled: tuple[int, Any] | None = None
        self._scaler: Any = None
        self._models: list[ref[Any]] = []
        self._schedules: list[ref[Any]] = []
        os.register_at_fork(after_in_child=self.stop)

    def here(self) -> Loop | None:
        """Return the loop to report to, None if nothing is to be recorded."""
        if not self.active or threading.get_ident() != self._thread:
            return None
        if self.loop is None and not self._making:
            self._making = True
            try:
                self.loop = Loop(self._make())
            except Exception as error:  # noqa: BLE001 - the script trains on, unrecorded
                notice("run", "nothing is recorded", error)
                self.stop()
            self._making = False
        return self.loop

    def stop(self) -> None:
        """Observe nothing any more."""
        self.active = False

    @contained
    def script_records(self) -> None:
        """Step back: the script has made a recorder, and nothing is recorded twice."""
        if self._making or not self.active:
            return
        self.summary.own_recorder = True
        self.stop()
        if self.loop is not None:
            self.loop.abandon()
            self.loop.recorder.close()

    # Batches

    @contained
    def fetching(self, feed: LoaderState, learning: bool) -> None:
        """Note that a batch is asked for; `learning` is whether gradients are on."""
        loop = self.here()
        if loop is None:
            return
        if self._pending is not None:
            self._pending.unused += 1
            self._pending = None
        if learning and not feed.evaluates:
            loop.leave("eval")
            return
        self.summary.see("eval")
        if not self._backward_seen:
            loop.abandon()
        loop.enter("eval")

    @contained
    def delivered(self, feed: LoaderState) -> None:
        """Note the batch: one to train on begins a step, or a micro-batch of one."""
        loop = self.here()
        if loop is None:
            return
        self.summary.see("data")
        self._pending = feed
        if loop.in_phase("eval"):
            return
        if not self._backward_seen:
            loop.abandon()
        if not loop.stepping:
            loop.begin()
        loop.enter("forward")

    @contained
    def exhausted(self) -> None:
        """Note the end of a loader: an evaluation is over."""
        if self.active and self.loop is not None and threading.get_ident() == self._thread:
            self.loop.leave("eval")

    # Backward

    @contained
    def backward_begins(self, tensors: Any) -> None:
        """Enter phase `backward`, and keep what it was called on as the loss."""
        loop = self.here()
        if loop is None:
            return
        self._depth += 1
        if self._depth > 1:  # activation checkpointing calls it again from within
            return
        self.summary.see("backward")
        if self._pending is not None:
            self._pending.trained = True
            self._pending = None
        self._watch_models(loop)
        if not loop.stepping:
            loop.begin()
        self._backward_seen = True
        loop.leave("forward")
        loop.enter("backward")
        self._keep_loss(tensors)

    @contained
    def backward_ends(self) -> None:
        """Leave phase `backward`."""
        loop = self.here()
        if loop is not None and self._depth:
            self._depth -= 1
            if not self._depth:
                loop.leave("backward")

    def _keep_loss(self, tensors: Any) -> None:
        tensor = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
        scaled, self._scaled = self._scaled, None
        if scaled is not None and scaled[0] == id(tensor):
            tensor = scaled[1]
        numel = getattr(tensor, "numel", None)
        if numel is not None and numel() == 1:
            self.summary.see("loss")
            self._loss = tensor.detach()

    @contained
    def scaled(self, scaler: Any, loss: Any, result: Any) -> None:
        """Note that mixed precision scaled a loss: the one before is the loss."""
        if self.here() is not None and result is not loss:
            self._scaled = id(result), loss
            self._scaler = scaler

    # The optimizer

    @contained
    def optimizer_begins(self, optimizer: Any) -> None:
        """Enter phase `optimizer`."""
        loop = self.here()
        if loop is None:
            return
        self.summary.see("optimizer")
        if self._primary is None or self._primary() is None:
            self._primary = ref(optimizer)
            mine = (schedule() for schedule in self._schedules)
            schedule = next((each for each in mine if getattr(each, "optimizer", None) is optimizer), None)
            loop.recorder.watch(None, optimizer, scheduler=schedule, scaler=self._scaler)
            self.summary.see("learning rate")
            for name, found in (("schedule", schedule), ("loss scale", self._scaler)):
                if found is not None:
                    self.summary.see(name)
        if not loop.stepping:  # nothing came before: a closure will run the model inside
            loop.begin()
        loop.leave("forward")
        loop.enter("optimizer")

    @contained
    def optimizer_ends(self, optimizer: Any) -> None:
        """Leave phase `optimizer`; with the optimizer that counts, the step is complete."""
        loop = self.here()
        if loop is None:
            return
        loop.leave("optimizer")
        if self._primary is not None and self._primary() is optimizer and loop.stepping:
            loss, self._loss = self._loss, None
            loop.end(**({} if loss is None else {"loss": loss}))
            self.summary.steps += 1
            self._backward_seen = False

    @contained
    def optimizer_skipped(self, optimizer: Any) -> None:
        """Complete a step that mixed precision has skipped."""
        if self._primary is not None and self._backward_seen:
            self.optimizer_ends(optimizer)

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
