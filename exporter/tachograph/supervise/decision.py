"""Decides what to do about a finding: whether a guard holds us back, else which action of the policy's ladder.

Nothing is done in here, nothing is asked, and time is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from tachograph.supervise.launcher import IN_PLACE, NOWHERE, QUEUED_AGAIN, Outlook
from tachograph.supervise.memory import EVER, HOUR, NO_GAIN_COST, RunMemory
from tachograph.supervise.policy import CHANGES, EXCLUDE_NODE, ROLLBACKS, SKIP_BATCHES, Budget, Policy, Rule
from tachograph.supervise.run_seen import RankSeen, RunSeen
from tachograph.supervise.triggers import (
    DEAD,
    DIVERGING,
    EXITED,
    FAILED,
    FROZEN,
    GPU_FAULT,
    HUNG,
    NOT_FINITE,
    RESTART_LOOP,
    SILENT_CORRUPTION,
    SLOW,
    SPIKE,
    RunFinding,
)  # fmt: skip
from tachograph.text.humanize import age, count, listed, plural

DEBUGGED = "t (tracing stop)"
"""The state of a process that a debugger has stopped, in the kernel's words."""


class Hold(NamedTuple):
    """Why nothing is done now although a finding holds: one of the guards below, and in words."""

    guard: str
    why: str


SKIP_BEFORE: Mapping[str, int] = {NOT_FINITE: 2, SPIKE: 20}
SKIP_FROM = 8
"""Steps around the first at which the loss was in trouble. A NaN by the update of a bad batch shows in the next loss.
A spike builds up: Adam's first moment, with its usual beta of 0.9, goes on into the direction of a batch for ten steps,
and a slow climb is told from noise as many steps later.
Bad data seldom comes alone. Each further time twice as many are left out from there on."""

NOTICED_LATER = {DIVERGING: (1_500.0, 7_500.0), SILENT_CORRUPTION: (3_600.0, 3_600.0)}
"""Trigger -> how long before its alert the trouble may have begun, for a run of fast and of slow steps: a loss that
climbs is judged over 20 minutes or two hours (prometheus/src/loss_trend.yml); replicas are compared now and then."""
TREND_STEP_SECONDS = 50.0
"""Of a step, from which on a trend is judged over two hours."""

AT_ONCE = {
    GPU_FAULT: "has a broken GPU", SLOW: "holds the run up for good", SILENT_CORRUPTION: "may compute wrong numbers",
}  # fmt: skip
"""Triggers for which the node to blame is left out the first time, and why in words."""

NOT_AGAIN = re.compile(r"(exit code|status) 17\b")
"""The end of a rank, or of the command, by which Megatron-LM (rerun_state_machine.py) says that a result has failed its
validation for good. Its 16 asks for the same on another GPU, and is restarted as any failure."""

CONTRADICTION, TOGETHER, EXCUSE, WAIT, RESTARTER, SCHEDULER, TIME_LEFT, COOL_DOWN, GONE, SILENCE = (
    "contradiction", "together", "excuse", "wait", "restarter", "scheduler", "time_left", "cool_down", "gone",
    "silence",
)  # fmt: skip


class Restorable(NamedTuple):
    """The step of a checkpoint to restart from, None if there is none; and why newer ones were passed over."""

    step: int | None = None
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True)
class Situation:
    """A finding that holds, for how many seconds it has, and what surrounds it; `now` is the time of the day.

    `ended` says that the command has ended: nothing is disturbed any more by acting. `is_there` says whether a rank's
    process is there as the kernel has it, None where that is not known. `newest` returns the newest checkpoint from
    before a step and a time of the day that the run can be restarted from, `gained` is whether the attempt made a step
    that no earlier one had made, `gained_at` when it last did, `silence` what a maintenance silence holds back,
    `step_seconds` how long a step takes. `outlook` asks the scheduler of a next attempt without some nodes.
    """

    finding: RunFinding
    run: RunSeen
    lasted: float
    now: float
    ended: bool
    steps_moved: bool
    is_there: Callable[[RankSeen], bool | None]
    newest: Callable[[int | None, float | None], Restorable]
    gained: bool
    outlook: Callable[[Collection[str]], Outlook]
    silence: Hold | None = None
    step_seconds: float | None = None
    gained_at: float | None = None

    @cached_property
    def restorable(self) -> Restorable:
        """The newest checkpoint from before the fault that the run can be restarted from."""
        return self.newest(None if self.trouble is None else self.trouble[0] + 1, self.saved_before)

    @property
    def saved_before(self) -> float | None:
        """The time of the day from which on what was saved may be in trouble, by when an alert began; None if never."""
        finding = self.finding
        if finding.since is None or finding.trigger not in NOTICED_LATER:
            return None
        is_slow = self.step_seconds is None or self.step_seconds > TREND_STEP_SECONDS
        return finding.since - NOTICED_LATER[finding.trigger][is_slow]

    @property
    def trouble(self) -> tuple[int, int] | None:
        """The steps whose batches may have put the loss in trouble; None if it is not, or since when is not known."""
        before, first = SKIP_BEFORE.get(self.finding.trigger), self.finding.step
        return None if before is None or first is None else (max(first - before, 0), first + SKIP_FROM)


@dataclass(frozen=True)
class Decision:
    """The next action, why, at what cost to the budget, from the checkpoint of which step, and without which steps.

    `needs_person` says that it is not done without a confirmation, whatever the mode.
    """

    action: str
    why: str
    cost: int = 0
    step: int | None = None
    needs_person: bool = False
    skip: tuple[int, int] | None = None


def held_back(  # noqa: PLR0911 - a list of guards
    situation: Situation, policy: Policy, rule: Rule, memory: RunMemory
) -> Hold | None:
    """Return what holds us back from acting on a finding now."""
    contradiction = _contradiction(situation)
    if situation.silence is not None or contradiction:
        return situation.silence or Hold(CONTRADICTION, contradiction)
    if not situation.ended:
        if situation.finding.trigger == FROZEN and len(situation.finding.ranks) == len(situation.run.ranks) > 1:
            return Hold(TOGETHER, "all ranks froze together: what stopped them is something that they share")
        if excuse := _excuse(situation, policy):
            return Hold(EXCUSE, excuse)
        if situation.lasted < rule.wait:
            return Hold(WAIT, f"it must last for {age(rule.wait)}, and has for {age(situation.lasted)}")
    outlook = situation.outlook(memory.nodes.left_out)
    if outlook.restarter and not situation.ended and situation.finding.trigger in (DEAD, FAILED, FROZEN, HUNG):
        return Hold(RESTARTER, f"{outlook.restarter} restarts ranks itself, and is still running")
    if outlook.withdrawn or outlook.unknown:
        return Hold(SCHEDULER, outlook.withdrawn or outlook.unknown)
    if outlook.seconds_left is not None and outlook.seconds_left < policy.time_left and outlook.where == IN_PLACE:
        text = (
            f"the job has {age(max(outlook.seconds_left, 0.0))} left, and a restart must have {age(policy.time_left)}"
        )
        return Hold(TIME_LEFT, text)
    if (left := not_before(rule, memory) - situation.now) > 0:
        return Hold(COOL_DOWN, f"the last restart was less than {age(rule.cool_down)} ago: {age(left)} to go")
    return None


def _contradiction(situation: Situation) -> str:
    """Return which two facts exclude each other."""
    finding, run = situation.finding, situation.run
    if finding.trigger == DEAD:
        for rank in run.ranks:
            if rank.rank in finding.ranks and situation.is_there(rank):
                return f"the exporter says that rank {rank.rank} died, and its process is there"
    if finding.trigger == HUNG:
        if situation.steps_moved:
            return "the exporter says that the run hangs, and its ranks have made steps since"
        if run.seconds_without_step is not None and run.seconds_without_step <= run.hang_limit:
            return "the exporter says that the run hangs, and that its last step is within the limit"
    if finding.trigger == RESTART_LOOP and (situation.gained_at or 0.0) > (finding.since or 0.0):
        return "Alertmanager says that the run restarts in vain, and it has made new steps since"
    if finding.trigger == EXITED and run.ranks and all(rank.state == "finished" for rank in run.ranks):
        return "the command failed, and all ranks had finished: what failed came after the training"
    return ""


def _excuse(situation: Situation, policy: Policy) -> str:
    """Return what a run without a step may be doing for good reason."""
    if situation.finding.trigger not in (HUNG, FROZEN):
        return ""
    for rank in situation.run.ranks:
        if rank.process == DEBUGGED:
            return f"a debugger has stopped rank {rank.rank}: a person is working on it"
        excused = policy.excuses.get(rank.phase, 0.0)
        if rank.ended_seconds is None and rank.phase_seconds < excused and not rank.process.startswith("T"):
            return (
                f"rank {rank.rank} has been in phase {rank.phase} for {age(rank.phase_seconds)}, "
                f"for which it has {age(excused)}"
            )
    return ""


def decide(situation: Situation, policy: Policy, rule: Rule, memory: RunMemory) -> Decision:
    """Return the first action of the ladder that is within its budget, or the end of the ladder."""
    decision = _rung(situation, policy, rule, memory)
    return replace(decision, needs_person=decision.needs_person or decision.action in rule.asked)


def _rung(  # noqa: PLR0911 - a ladder
    situation: Situation, policy: Policy, rule: Rule, memory: RunMemory
) -> Decision:
    finding = situation.finding
    if finding.trigger in (FAILED, EXITED) and NOT_AGAIN.match(finding.line or finding.category):
        return Decision(
            rule.end, "17 is the exit code of Megatron-LM for a job that must not go on: a result was wrong"
        )
    repeated = memory.repeats(finding)
    no_exclusion = ""
    if not repeated or (finding.step is None and len(finding.nodes) == 1):  # a broken node lets no rank begin
        exclusion = _exclusion(situation, rule, memory)
        if isinstance(exclusion, Decision):
            return exclusion
        no_exclusion = exclusion
    restarts = {
        action: budget
        for action, budget in rule.restarts.items()
        if action != EXCLUDE_NODE and (action in CHANGES or not repeated)
    }
    if repeated and not restarts:
        return Decision(rule.end, f"the same failure came before {repeated}: a restart would meet it again")
    is_single = situation.gained or all(action in CHANGES for action in restarts)
    cost = 1 if is_single else NO_GAIN_COST
    doubled = "" if is_single else ", and this attempt made no new step, so the restart counts twice"
    if not restarts:
        return Decision(rule.end, no_exclusion or "the policy has no restart for it")
    if not memory.allows(policy.restarts, cost, situation.now):
        within, run = memory.cost(situation.now, HOUR), memory.cost(situation.now, EVER)
        return Decision(
            rule.end,
            f"the budget of all restarts is used up ({within} of {policy.restarts.per_hour} in the last hour, "
            f"{run} of {policy.restarts.per_run} in this run{doubled})",
        )
    outlook = situation.outlook(memory.nodes.left_out)
    if outlook.where == NOWHERE:
        return Decision(rule.end, outlook.why)
    queued = f", once it is queued again, as {outlook.why}" if outlook.where == QUEUED_AGAIN else ""
    reasons = []
    for action, budget in restarts.items():
        if not memory.allows(budget, cost, situation.now, finding.trigger, action):
            reasons.append(f"the budget of {action} is used up ({_of(budget)}{doubled})")
        elif no_rollback := _no_rollback(situation, action, memory):
            reasons.append(no_rollback)
        else:
            skip = _skip(situation, memory) if action == SKIP_BATCHES else None
            without = f", without steps {count(skip[0])} to {count(skip[1] - 1)}" if skip else ""
            why = f"within its budget ({_of(budget)}){doubled}{queued}{without}"
            return _from_checkpoint(situation, Decision(action, why, cost, skip=skip))
    return Decision(rule.end, "; ".join(reasons))


def _exclusion(situation: Situation, rule: Rule, memory: RunMemory) -> Decision | str:
    """Return the decision to leave out the nodes that are to blame, or why not; empty if none is to be."""
    finding, nodes, budget = situation.finding, situation.finding.nodes, rule.restarts.get(EXCLUDE_NODE)
    if budget is not None and not nodes and finding.trigger in AT_ONCE:
        return "no node is to blame" if any(rank.node for rank in situation.run.ranks) else "the run is on one node"
    if budget is None or not nodes or not (finding.trigger in AT_ONCE or memory.nodes.failed_before(nodes)):
        return ""
    outlook = situation.outlook({*memory.nodes.left_out, *nodes})
    if outlook.where == NOWHERE:
        return outlook.why
    if not memory.allows(budget, 1, situation.now, finding.trigger, EXCLUDE_NODE):
        return f"the budget of {EXCLUDE_NODE} is used up ({_of(budget)})"
    then = f"the job is queued again, as {outlook.why}" if outlook.where == QUEUED_AGAIN else "another takes its place"
    if many := memory.nodes.too_many(nodes, outlook.size, situation.now):
        why = f"{many}, and the program, the network or the storage is likelier to be the cause; if not, {then}"
    else:
        why = f"{listed(nodes)} {AT_ONCE.get(finding.trigger, 'failed before')}; {then}"
    return _from_checkpoint(situation, Decision(EXCLUDE_NODE, why, 1, needs_person=bool(many)))


def _no_rollback(situation: Situation, action: str, memory: RunMemory) -> str:
    """Return why an action cannot take the run back to before the fault, empty if it can, or need not."""
    if action not in ROLLBACKS:
        return ""
    if memory.plan.ignored:
        return f"the loop did not follow an earlier plan: {memory.plan.ignored}"
    if action == SKIP_BATCHES and situation.trouble is None:
        return "at which step it began is not known"
    return "no checkpoint is known" if situation.restorable == Restorable() else ""


def _skip(situation: Situation, memory: RunMemory) -> tuple[int, int] | None:
    """Return the steps to leave out: more of them each time."""
    if situation.trouble is None:
        return None
    begin, end = situation.trouble
    return begin, end + SKIP_FROM * (2**memory.plan.skips - 1)


def _from_checkpoint(situation: Situation, decision: Decision) -> Decision:
    """Return a restart with the checkpoint that it begins from, if any is known; with a person if all are bad."""
    step, passed_over = situation.restorable
    if step is not None:
        newer = f" (not {'; '.join(passed_over)})" if passed_over else ""
        return replace(decision, step=step, why=f"{decision.why}, from the checkpoint of step {count(step)}{newer}")
    if not passed_over:
        return decision
    why = f"{decision.why}, but no checkpoint can be restored: {'; '.join(passed_over)}. To restart it anyway"
    return replace(decision, needs_person=True, why=why)


def _of(budget: Budget) -> str:
    """Return a budget in words."""
    return f"{plural(budget.per_hour, 'restart')} an hour, {budget.per_run} a run"


def not_before(rule: Rule, memory: RunMemory) -> float:
    """Return the time of the day before which the cool-down allows no action."""
    return 0.0 if memory.last_restart is None else memory.last_restart + rule.cool_down
