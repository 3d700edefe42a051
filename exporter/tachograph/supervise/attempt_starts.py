"""Begins attempts with a plan, noted in the journal before and after; or goes on with what a supervisor left."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tachograph.supervise.journal import ATTEMPT, PLACED, STARTED, Entry
from tachograph.supervise.launcher import Launcher, OutlivingLauncher
from tachograph.supervise.ledger import Ledger
from tachograph.supervise.plan import AttemptPlan
from tachograph.supervise.training import RunningAttempt
from tachograph.supervise.triggers import words
from tachograph.text.humanize import count


class AttemptStarts:
    """The attempts of one run; `outliving` is its launcher if they go on when their supervisor ends."""

    def __init__(
        self,
        run: str,
        ledger: Ledger,
        launcher: Launcher,
        outliving: OutlivingLauncher | None,
        say: Callable[[str], None],
    ) -> None:
        self._run, self._ledger, self._memory = run, ledger, ledger.memory
        self._launcher, self._outliving, self._say = launcher, outliving, say
        self._plan_due, self._is_noted = AttemptPlan(run, 0), False
        self.outlive = outliving is not None
        """Whether they go on when their supervisor ends."""

    def next(self) -> AttemptPlan:
        """Return the plan of the next attempt, once it is noted."""
        memory, due = self._memory, self._memory.due
        why = () if due is None else (due["action"], due["trigger"], due["resume_step"])
        plan = self._plan(memory.attempts, *why)
        mark = {} if self._outliving is None else {"mark": self._outliving.mark()}
        self._ledger.write(
            ATTEMPT, attempt=plan.attempt, action=plan.action, reason=plan.reason, resume_step=plan.step, **mark
        )
        return plan

    def _plan(self, number: int, action: str = "", reason: str = "", step: int | None = None) -> AttemptPlan:
        change = self._memory.plan
        path = "" if step is None else self._memory.checkpoints.path(step)
        skip, factor = tuple(change.skip), change.factor
        return AttemptPlan(self._run, number, action, reason, step, path, skip, rate=factor, clipping=factor)

    def start(self, plan: AttemptPlan, left_out: Collection[str]) -> RunningAttempt:
        """Start the attempt with this plan; raise OSError."""
        training = self._launcher.start(plan.environment(self._ledger.folder), left_out)
        self._plan_due, self._is_noted = plan, False
        self.note()
        return training

    def go_on(self, last: Entry, left_out: Collection[str]) -> RunningAttempt:
        """Return the attempt that an earlier supervisor began; raise OSError."""
        assert self._outliving is not None
        plan = self._plan(last["attempt"], last.get("action", ""), last["reason"], last["resume_step"])
        environment, is_created = plan.environment(self._ledger.folder), self._memory.is_started
        self._plan_due, self._is_noted = plan, is_created
        return self._outliving.go_on(
            environment, left_out, last["mark"], is_created=is_created, places=self._memory.places
        )

    def note(self) -> None:
        """Note and say once that an attempt has been started for sure; note where it is, for a next supervisor."""
        if not self._is_noted and (self._outliving is None or self._outliving.is_created):
            self._is_noted, plan = True, self._plan_due
            self._ledger.write(STARTED, attempt=self._memory.attempts - 1)
            if plan.action:
                to = "" if plan.step is None else f", from the checkpoint of step {count(plan.step)}"
                self._say(f"attempt {plan.attempt} of run {self._run} is started, after {words(plan.reason)}{to}")
        if self._outliving is not None and self._outliving.places not in ({}, self._memory.places):
            places = dict(self._outliving.places)
            self._ledger.write(
                PLACED, attempt=self._memory.attempts - 1, nodes=list(places), addresses=list(places.values())
            )
