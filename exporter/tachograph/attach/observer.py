"""Steps and phases of a training script, derived from the parts of PyTorch that it uses.

Takes what the hooks report, and gives each part its share: `training_step` knows where a step begins and ends,
`evaluations` what is one, `saves` what a checkpoint is, `step_values` what the loss is.
"""

# ruff: noqa: ANN401 - what PyTorch hands over has no type here

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from weakref import ref

from tachograph.attach.counted_tokens import CountedTokens
from tachograph.attach.evaluations import EvaluationMode, LoaderState
from tachograph.attach.optimizers import Optimizers, rate_of, steps_made
from tachograph.attach.saves import Saved, Saves
from tachograph.attach.script_recording import ScriptRecording
from tachograph.attach.step_values import StepValues
from tachograph.attach.training_step import At, TrainingStep
from tachograph.catalog.rank import PhaseName
from tachograph.client.core.contained import contained
from tachograph.client.core.scalars import Copy, Reading, number
from tachograph.client.hello.identity import discover
from tachograph.client.torch.model.layers import unwrapped
from tachograph.integrations.loop import Loop


class Observer:
    """Turns what happens into steps and phases of a recording."""

    def __init__(self, recording: ScriptRecording) -> None:
        self.recording = recording
        self.summary = recording.summary
        self._optimizers = Optimizers()
        self._compiled_steps = False
        self._scaler: Any = None
        self._models: list[ref[Any]] = []
        self._schedules: list[ref[Any]] = []
        self.begin_training()

    def begin_training(self) -> None:
        """Begin with a training of which nothing is known yet."""
        self._values = StepValues()
        self._tokens = CountedTokens()
        self._step = TrainingStep(self._values, self.summary)
        self._mode = EvaluationMode(self._optimizers)
        self._saves = Saves()
        self._pending: list[LoaderState] = []
        self._restored: Reading = None

    @contained
    def finish(self) -> int:
        """Report what the script's end leaves open, the last step and checkpoint; return this process's rank."""
        loop = self.recording.loop
        if loop is None:
            return discover({}, os.environ).rank
        if self.recording.active:
            if self._compiled_steps:
                self._find_step(loop)
            self._step.settle(loop)
            self._save_is_over(loop, wait=True)
        self.summary.ranks = loop.recorder.identity.world_size
        self.summary.received = self.recording.received or loop.recorder.received
        self.summary.count("all_reduce", loop.bucket_reductions)
        return loop.recorder.identity.rank

    # Batches

    def starting(self, learning: bool) -> PhaseName:
        """Return the phase in which a loader is started: its workers take their time."""
        return "data" if learning and not self._mode.on else "eval"

    @contained
    def fetching(self, feed: LoaderState, learning: bool) -> bool:
        """Note that a batch is asked for, `learning`: with gradients on; return whether it is one to train on."""
        loop = self.recording.here()
        if loop is None:
            return False
        if self._compiled_steps:
            self._find_step(loop)
        self._save_is_over(loop)
        if feed in self._pending:  # its last batch was not trained on
            self._pending.remove(feed)
            feed.unused += 1
        if learning and ((feed.trained and not self._mode.on) or self._to_train_on(feed)):
            self._step.batch_asked(loop)
            return True
        if not feed.trained:
            self._step.batch_unused(loop)  # if one of its batches has begun a step
        self._evaluation(loop)
        return False

    def _to_train_on(self, feed: LoaderState) -> bool:
        """Whether a loader's next batch is to be trained on, as far as can be known before it is."""
        if feed.is_unused(self._step.batches.per_step) and (self._mode.on or (self._step.trained and not feed.trained)):
            return False
        return feed.trained or not self._step.trained or not self._mode.on

    @contained
    def delivered(self, feed: LoaderState) -> None:
        """Note a batch to train on: it begins a step, or a micro-batch of one."""
        loop = self.recording.here()
        if loop is not None:
            self._pending.append(feed)
            self._step.batch_delivered(loop)

    @contained
    def exhausted(self, feed: LoaderState) -> None:
        """Note the end of a loader: with it ends an evaluation that nothing else marks."""
        if feed in self._pending:
            self._pending.remove(feed)
        loop = self.recording.begun()
        if loop is not None and not self._mode.on:
            self._step.go_on(loop, "eval")

    # Evaluations and saves

    @contained
    def mode_set(self, module: Any, training: bool) -> None:
        """Note that a module was put into training or into evaluation mode."""
        loop = self.recording.begun()
        if loop is None:
            return
        if not training and self._mode.begins(module, guess=self._step.trained):
            self._save_is_over(loop)
            self._evaluation(loop)
        elif training and self._mode.ends(module):
            self._step.go_on(loop, "eval")

    def _evaluation(self, loop: Loop) -> None:
        if not loop.in_phase("eval"):
            self.summary.count("evaluation")
        self._step.pause(loop, "eval")

    @contained
    def generating(self, phase: PhaseName) -> bool:
        """Enter a phase in which samples are made or rated, outside of evaluations, and of itself.

        Return whether `generated` is to be called for it.
        """
        loop = self.recording.begun()
        if loop is None or loop.in_phase("eval") or loop.in_phase(phase):
            return False
        self._step.pause(loop, phase)
        return True

    @contained
    def generated(self, phase: PhaseName, error: BaseException | None = None) -> None:
        """Leave it, with the error that ended it."""
        loop = self.recording.here()
        if loop is not None:
            self._step.go_on(loop, phase, error)

    @contained
    def samples_made(self, trainer: Any) -> None:
        """Note that a trainer of TRL has made samples, of which it counts the tokens."""
        loop = self.recording.here()
        if loop is not None:
            self._tokens.take(loop.recorder, trainer)

    @contained
    def saving(self) -> bool:
        """Enter phase `checkpoint`; return whether `saved` is to be called for it."""
        loop = self.recording.begun()
        if loop is None:
            return False
        if self._saves.begin():
            self._checkpoint(loop)
        return True

    @contained
    def saved(self, describe: Callable[[], Saved], upload: Any = None) -> None:
        """Leave it; `describe` returns what was saved, and `upload` is the future of a later end."""
        outermost = self._saves.end()
        loop = self.recording.here()
        if outermost and loop is not None:
            step, _ = loop.recorder.position()
            self._step.go_on(loop, "checkpoint")
            self._saves.keep(step, describe(), upload)

    @contained
    def save_failed(self, error: BaseException) -> None:
        """Leave it as one that failed."""
        outermost = self._saves.end()
        loop = self.recording.here()
        if outermost and loop is not None:
            self._step.go_on(loop, "checkpoint", error)
            self._saves.fail()

    @contained
    def file_opened(self, path: Any) -> None:
        """Note that a file was opened for writing: it may take what was serialised into memory."""
        loop = self.recording.begun()
        if loop is not None and self._saves.in_memory:
            self._saves.opened(path)
            self._checkpoint(loop)

    @property
    def watches_files(self) -> bool:
        """Whether `file_opened` is to be called."""
        return self._saves.in_memory

    def _checkpoint(self, loop: Loop) -> None:
        if self._saves.open and not loop.in_phase("checkpoint"):
            loop.claim("checkpoint")  # what lies between two files of one checkpoint
        self._step.pause(loop, "checkpoint")

    def _save_is_over(self, loop: Loop, *, wait: bool = False) -> None:
        """Report a checkpoint, now that something else begins."""
        if not self._saves.pending:
            return
        loop.leave("checkpoint")
        self.summary.count("checkpoint", self._saves.close(loop.recorder, wait=wait))

    def compiling(self) -> None:
        """Tag the step in which PyTorch compiles something; called in the thread that compiles."""
        loop = self.recording.loop
        if self.recording.active and loop is not None and loop.stepping and self.summary.steps:
            loop.recorder.tag("compile")

    # Backward

    @contained
    def backward_begins(self, tensors: Any) -> None:
        """Enter phase `backward`, and keep what it was called on as the loss."""
        loop = self.recording.trains_here()
        if loop is None or self._step.is_inner_backward():
            return
        if self._compiled_steps:
            self._find_step(loop)
        self._save_is_over(loop)
        for feed in self._pending:
            feed.trained, feed.unused = True, 0
        self._pending.clear()
        if self._models:
            self._watch_models(loop)
        self._mode.over()
        self._step.backward_begins(loop)
        self._values.backward(tensors)

    @contained
    def backward_ends(self, failed: bool = False) -> None:
        """Leave phase `backward`."""
        loop = self.recording.here()
        if loop is not None:
            if failed:
                self._values.failed()
            self._step.backward_ends(loop)

    @contained
    def zeroed(self, optimizer: Any) -> None:
        """Note that an optimizer zeroed the gradients that it holds."""
        known = self._optimizers
        if self.recording.here() is not None and (known.counts(optimizer) or not known.one_counts):
            self._step.zeroed()

    @contained
    def module_zeroed(self, module: Any) -> None:
        """Note that a module did."""
        if self.recording.here() is not None and self._optimizers.is_trained(module):
            self._step.zeroed()

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
            self._values.clipped(norm)

    # Updates

    @contained
    def optimizer_made(self, optimizer: Any) -> None:
        """Remember an optimizer: whose parameters it holds is a model that trains."""
        self._optimizers.made(optimizer)

    @contained
    def update_begins(self, who: Any, *, closure: bool = False) -> None:
        """Note that an optimizer begins its step, a container of optimizers, or a loss scaler that may skip it."""
        # After a backward, an update in another thread is no training of its own, of which nothing else would be seen.
        loop = self.recording.here() if self._step.trained else self.recording.trains_here()
        if loop is None and self._optimizers.counts(who) and (loop := self.recording.moves_here()) is not None:
            self._step.moved(loop)
        if loop is None:
            return
        self._save_is_over(loop)
        if not self.summary.steps and not self._optimizers.one_counts:
            self._restored = steps_made(who)
        self._step.update_begins(loop, who, closure=closure)

    @contained
    def closure_begins(self) -> None:
        """Note that an optimizer calls the script back, to run the model within its step."""
        loop = self.recording.here()
        if loop is not None:
            self._step.closure_begins(loop)

    @contained
    def closure_ends(self) -> None:
        """Note that the script's part is over."""
        loop = self.recording.here()
        if loop is not None:
            self._step.closure_ends(loop)

    @contained
    def update_ends(self, who: Any, optimizer: Any) -> None:
        """Note its end; `optimizer` is the one that has updated its parameters, unless one inside has."""
        loop = self.recording.here()
        if loop is None:
            return
        counts, logged = False, {}
        # Before any backward, an update at rate 0 only makes the optimizer's state: a checkpoint is to be loaded.
        if self._step.updates_itself(who) and (self._step.trained or rate_of(optimizer) != 0):
            counts = self._optimizers.counts(optimizer)
            if not counts and (self._step.counts_no_more or not self._optimizers.one_counts):
                loop = self._choose(loop, optimizer)
                if loop is None:
                    return
            counts = self._optimizers.counts(optimizer)
            if counts:
                self._optimizers.counted()
            if counts and self._restored is not None:
                self._number(loop)
            if counts and self._compiled_steps and (rate := rate_of(optimizer)) is not None:
                logged["learning_rate"] = rate
        self._step.update_ends(loop, who, counts=counts, **logged)
        if counts and (self._step.trained or self.summary.steps):  # not by what only makes an optimizer's state
            self.recording.updated()

    def _choose(self, loop: Loop, optimizer: Any) -> Loop | None:
        """Have this optimizer count, also the steps that it has made; return the loop that is recorded from now on.

        Where it trains another model than the one before, this is another training, with a record of its own.
        """
        if self._optimizers.begins_another(optimizer):
            self._save_is_over(loop, wait=True)
            self.recording.begin_again()
            again = self.recording.here()
            if again is None:
                return None
            loop = again
            self._mode, self._saves = EvaluationMode(self._optimizers), Saves()
        self._step.count_others(loop)
        self._optimizers.choose(optimizer)
        self._watch_optimizer(loop, optimizer)
        return loop

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
        if optimizer is not None and self._step.at is At.GRADIENTS:
            self.update_ends(optimizer, optimizer)

    def _watch_optimizer(self, loop: Loop, optimizer: Any) -> None:
        if rate_of(optimizer) is not None:
            self.summary.count("learning_rate")
        if self._compiled_steps:  # hooks of its own would have it compiled again
            return
        made = [each for schedule in self._schedules if (each := schedule()) is not None]
        schedule = next((each for each in made if unwrapped(getattr(each, "optimizer", None)) is optimizer), None)
        loop.recorder.watch(None, optimizer, scheduler=schedule, scaler=self._scaler)
        self.summary.count("schedule", schedule is not None)
        self.summary.count("loss_scale", self._scaler is not None)

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
