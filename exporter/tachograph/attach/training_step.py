"""The step of a script that marks none: one automaton, fed with batches, backward passes, updates and pauses.

A step is what lies between backward passes that were followed by a parameter update, whoever made it: an optimizer, a
container of several, one that updates group by group, a loss scaler that skips. docs/design.md draws the states.
"""

# ruff: noqa: ANN401 - what PyTorch hands over has no type here

from __future__ import annotations

from enum import Enum
from typing import Any

from tachograph.attach.batch_count import BatchCount
from tachograph.attach.step_values import StepValues
from tachograph.attach.summary import Summary
from tachograph.catalog.rank import PhaseName
from tachograph.integrations.loop import Loop


class At(Enum):
    """Where the training thread is; a step is open in all states but the first two."""

    OUTSIDE = "between steps: the next batch or backward begins one"
    PAUSED = "in an evaluation or a save that voided a step, which begins again afterwards"
    FORWARD = "before the first backward: another batch, an evaluation or a save voids the step"
    BACKWARD = "in backward"
    GRADIENTS = "after a backward: micro-batches or an update follow"
    UPDATE = "in the outermost optimizer's step"
    UPDATED = "after an update: others of the same gradients, or of another optimizer, follow"


STEPS_TO_KNOW = 3
"""Steps after which it is known how often other optimizers step between two of the one that counts."""

FIRST_OTHERS = 10
"""How often they may before that: a critic makes some steps for each of its generator's."""

VOIDING_PHASES: tuple[PhaseName, ...] = ("eval", "checkpoint", "generate", "reward")
"""Phases between two steps, which void one that has only begun."""


class TrainingStep:
    """The automaton; `values` are those of the step under way, `trained` is whether a backward was ever seen.

    A *round* is backward passes and the updates that follow them. It completes the step if the optimizer that counts
    is among its updaters, with as many updates as the round before had; if fewer come, then with what follows them. So
    two optimizers after one backward make one step, and those of a GAN, each after its own, do, too.
    """

    def __init__(self, values: StepValues, summary: Summary) -> None:
        self.at = At.OUTSIDE
        self.trained = False
        self._values = values
        self._summary = summary
        self._paused = False
        self.batches = BatchCount()
        self._others = 0
        self._most_others = FIRST_OTHERS
        self._completed = 0
        self._backward_depth = 0
        self._backwards = 0
        self._usual_backwards = 0
        self._updating: list[object] = []
        self._container: object = None
        self._before = At.OUTSIDE
        self._closures = 0
        self._fresh = False
        self._updates = 0
        self._usual_updates = 1
        self._counts = False
        self._fetched_midway = self._fetches_midway = False

    @property
    def counts_no_more(self) -> bool:
        """Whether the optimizer that counts has stayed away for longer than it did between two steps before."""
        return self._others > self._most_others

    # Batches

    def batch_asked(self, loop: Loop) -> None:
        """Note that a batch to train on is asked for: it will begin the step, or belong to the one that is open."""
        self.settle(loop)
        if self.at is At.PAUSED:
            self.at = At.OUTSIDE
        self._leave_pauses(loop)

    def batch_delivered(self, loop: Loop) -> None:
        """Begin a step with the batch, or a micro-batch of the one that is open."""
        self.batches.since_step += 1
        self._fetched_midway = self.at is At.FORWARD
        if self.at is At.GRADIENTS:
            loop.enter("forward")
        elif self.at is not At.UPDATE and not (self._fetched_midway and self._fetches_midway):
            self._begin(loop)

    def batch_unused(self, loop: Loop) -> None:
        """Void the step that was begun by a batch which is none to train on."""
        self.batches.since_step = 0
        if self.at is At.FORWARD:
            loop.abandon()
            self.at = At.OUTSIDE

    # Pauses

    def pause(self, loop: Loop, phase: PhaseName) -> None:
        """Enter a phase that is no part of training; a step without a backward is void, and begins again after it."""
        self.settle(loop)
        if self.at is At.FORWARD:
            loop.abandon()
            self.at = At.PAUSED
        loop.enter(phase)
        self._paused = True

    def go_on(self, loop: Loop, phase: PhaseName, error: BaseException | None = None) -> None:
        """Leave such a phase."""
        loop.leave(phase, error)
        if self.at is At.PAUSED and not any(loop.in_phase(pause) for pause in VOIDING_PHASES):
            self._begin(loop)

    def _leave_pauses(self, loop: Loop) -> None:
        if self._paused:
            self._paused = False
            for pause in VOIDING_PHASES:
                loop.leave(pause)

    # Backward

    def is_inner_backward(self) -> bool:
        """Note that a backward begins; return whether it does so within another: activation checkpointing calls it."""
        self._backward_depth += 1
        return self._backward_depth > 1

    def backward_begins(self, loop: Loop) -> None:
        """Enter phase `backward`."""
        self.trained = True
        if self.at is not At.UPDATE:  # else it is a closure's
            self.settle(loop)
            self._leave_pauses(loop)
            if not loop.stepping:
                self._begin(loop)
            self.at = At.BACKWARD
        if self._updates:  # the round before is over
            if self._counts:
                self._usual_updates = self._updates
            self._updates, self._counts = 0, False
        loop.leave("forward")
        loop.enter("backward")

    def zeroed(self) -> None:
        """Note that gradients were zeroed which the step under way may have made."""
        if self.at is At.GRADIENTS or (self.at is At.UPDATE and self._closures):
            self._values.zeroed(within_update=self.at is At.UPDATE)

    def backward_ends(self, loop: Loop) -> None:
        """Leave phase `backward`; what was updated inside, parameter by parameter, is one update."""
        if not self._backward_depth:
            return
        self._backward_depth -= 1
        if self._backward_depth:
            return
        loop.leave("backward")
        self._backwards += 1
        self._fresh = True
        if self.at is At.BACKWARD:
            self.at = At.GRADIENTS
            if self._updates:
                self._updates = 0
                self._updated(loop)
                return
        if self._backwards < self._usual_backwards and (self._closures or self.at is At.GRADIENTS):
            loop.enter("forward")  # another micro-batch is to come

    # Updates

    def update_begins(self, loop: Loop, who: object, *, closure: bool) -> None:
        """Enter phase `optimizer`; with a `closure` its forward and backward are to come."""
        if any(each is who for each in self._updating):
            self._give_up(loop)
        self._updating.append(who)
        if len(self._updating) > 1 or self.at is At.BACKWARD:
            return
        self._before = self.at
        if not loop.stepping and (closure or not self.trained):  # nothing was seen of what came before
            loop.begin()
        self.at = At.UPDATE
        loop.leave("forward")
        loop.enter("optimizer")

    def moved(self, loop: Loop) -> None:
        """Note that an update is about to begin whose step was made in another thread so far: its loss is not known."""
        if not loop.stepping:
            self._begin(loop)
        self._values.discard()
        self._updating.clear()
        self._backward_depth = self._closures = self._updates = 0
        self._fresh = True
        self.at = At.GRADIENTS

    def updates_itself(self, who: object) -> bool:
        """Whether no other one's step has ended within that of `who`, which is about to end: it holds none."""
        return self._container is not who

    def closure_begins(self, loop: Loop) -> None:
        """Enter phase `forward` inside of an optimizer's step, which calls the script back to train."""
        self._closures += 1
        loop.enter("forward")

    def closure_ends(self, loop: Loop) -> None:
        """Leave it."""
        self._closures = max(self._closures - 1, 0)
        loop.leave("forward")

    def update_ends(self, loop: Loop, who: object, *, counts: bool, **logged: Any) -> None:
        """Leave phase `optimizer` with the outermost; `counts`: it is the optimizer whose updates complete steps.

        `logged` are values for the step, should it be complete.
        """
        self._counts |= counts
        while self._updating and self._updating.pop() is not who:
            pass
        self._container = self._updating[-1] if self._updating else None
        if self._updating:
            return
        if self.at is At.BACKWARD:
            self._updates += 1
            return
        if self.at is not At.UPDATE:  # its begin was not seen: it is in a compiled graph
            self._before = self.at
        if self._fresh or self._before is At.UPDATED or not self.trained:
            self._updated(loop, **logged)
            return
        self._updates += 1  # of the round that is complete: the next one will wait for it
        self.at = self._before
        loop.leave("optimizer")
        if self.at is At.FORWARD:
            loop.enter("forward")

    def count_others(self, loop: Loop) -> None:
        """Count the updates that were taken for another optimizer's, now that it is the one that counts.

        The step that it updates is the next one, in this loop or in that of another training. When the others ended is
        not known any more: they are no ordinary steps.
        """
        is_counted = self.counts_no_more
        for _ in range(self._others if is_counted else 0):
            if not loop.stepping:
                loop.begin()
            loop.recorder.tag("restart")
            loop.end()
            self._summary.steps += 1
        self._others, self._most_others, self._completed = 0, FIRST_OTHERS, 0
        self._usual_updates, self._usual_backwards = 1, 0
        if not loop.stepping:
            loop.begin()
        if self.at in (At.UPDATE, At.BACKWARD):
            loop.enter("optimizer" if self.at is At.UPDATE else "backward")

    def settle(self, loop: Loop) -> None:
        """Complete a step that was updated, as nothing else of it followed; forget what was another optimizer's."""
        if self.at is At.UPDATE and not self._closures:
            self._give_up(loop)
        elif self.at is At.UPDATED and self._counts:
            self._complete(loop)
        elif self.at is At.UPDATED:
            self._others += 1
            self._values.discard()
            self.at = At.GRADIENTS

    def _give_up(self, loop: Loop) -> None:
        """Forget an update that ended with an exception, of which no hook is called."""
        self._updating.clear()
        self._container = None
        self._closures = 0
        loop.leave("optimizer")
        self.at = At.GRADIENTS if loop.stepping else At.OUTSIDE

    def _updated(self, loop: Loop, **logged: Any) -> None:
        """Complete the step, unless more updates are expected."""
        self._fresh = False
        self._updates += 1
        if not self._counts:
            loop.leave("optimizer")
        elif self._updates >= self._usual_updates:
            self._complete(loop, **logged)
            return
        self.at = At.UPDATED

    def _complete(self, loop: Loop, **logged: Any) -> None:
        if not loop.stepping:
            self.at = At.OUTSIDE
            return
        came = self.batches.since_step
        per_step = self.batches.per_step
        values = {**self._values.take(max(came, per_step) if came or per_step > 1 else 0), **logged}
        loop.end(**values)
        used = self.batches.step_completed()
        loop.count_batches(used)
        self._summary.step_completed(values, used, self._values.made_of, backward=self._backwards > 0)
        self._usual_backwards, self._backwards = self._backwards, 0
        others, self._others = self._others, 0
        if others:
            self._summary.count("other_optimizer")
        if self._completed < STEPS_TO_KNOW:
            self._completed += 1
            self._most_others = FIRST_OTHERS if self._completed < STEPS_TO_KNOW else max(others, 1)
        else:
            self._most_others = max(self._most_others, others)
        self._fetches_midway, self._fetched_midway = self._fetched_midway, False
        if came and not others and not self._fetches_midway:
            self.at = At.OUTSIDE
        else:  # the next one begins here, with its batch, or with what another optimizer does with this one
            self._begin(loop)

    def _begin(self, loop: Loop) -> None:
        loop.begin()
        loop.enter("forward")
        self.at = At.FORWARD
