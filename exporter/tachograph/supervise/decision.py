"""Decides what to do about a finding: whether a guard holds us back, else which action of the policy's ladder.

Nothing is done in here, nothing is asked, and time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tachograph.humanize import age, count, plural
from tachograph.supervise.findings import DEAD, EXITED, FROZEN, HUNG, NOT_FINITE, RankSeen, RunFinding, RunSeen
from tachograph.supervise.memory import EVER, HOUR, NO_GAIN_COST, RunMemory
from tachograph.supervise.policy import RESTART_FROM_CHECKPOINT, Budget, Policy, Rule

DEBUGGED = "t (tracing stop)"
"""The state of a process that a debugger has stopped, in the kernel's words."""


class Hold(NamedTuple):
    """Why nothing is done now although a finding holds: one of the guards below, and in words."""

    guard: str
    why: str


CONTRADICTION, TOGETHER, EXCUSE, WAIT, COOL_DOWN, GONE, SILENCE = (
    "contradiction", "together", "excuse", "wait", "cool_down", "gone", "silence",
)  # fmt: skip


@dataclass(frozen=True)
class Situation:
    """A finding that holds, for how many seconds it has, and what surrounds it; `now` is the time of the day.

    `ended` says that the command has ended: nothing is disturbed any more by acting. `is_there` says whether a rank's
    process is there as the kernel has it, None where that is not known. `checkpoints` are the steps of those that were
    seen, `gained` is whether the attempt made a step that no earlier one had made, `silence` what a maintenance silence
    holds back.
    """

    finding: RunFinding
    run: RunSeen
    lasted: float
    now: float
    ended: bool
    steps_moved: bool
    is_there: Callable[[RankSeen], bool | None]
    checkpoints: Sequence[int]
    gained: bool
    silence: Hold | None = None

    @property
    def good_step(self) -> int | None:
        """The step of the last checkpoint from before the fault."""
        bad = self.finding.step if self.finding.trigger == NOT_FINITE else None
        return max((step for step in self.checkpoints if bad is None or step < bad), default=None)


@dataclass(frozen=True)
class Decision:
    """The next action, why, at what cost to the budget, and the step of the checkpoint to go back to."""

    action: str
    why: str
    cost: int = 0
    step: int | None = None


def held_back(situation: Situation, policy: Policy, rule: Rule, memory: RunMemory) -> Hold | None:
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
    if finding.trigger == EXITED and run.ranks and all(rank.state == "finished" for rank in run.ranks):
        return "the command failed, and all ranks had finished: what failed came after the training"
    return ""


def _excuse(situation: Situation, policy: Policy) -> str:
    """Return what a run without a step may be doing for good reason."""
    if situation.finding.trigger not in (HUNG, FROZEN):
        return ""
    for rank in situation.run.ranks:
        if rank.process == DEBUGGED:
            return f"a debugger has stopped rank {rank.rank}: a person is at it"
        excused = policy.excuses.get(rank.phase, 0.0)
        if rank.ended_seconds is None and rank.phase_seconds < excused and not rank.process.startswith("T"):
            return (
                f"rank {rank.rank} has been in phase {rank.phase} for {age(rank.phase_seconds)}, "
                f"for which it has {age(excused)}"
            )
    return ""


def decide(situation: Situation, policy: Policy, rule: Rule, memory: RunMemory) -> Decision:
    """Return the first action of the ladder that is within its budget, or the end of the ladder."""
    finding = situation.finding
    cost = 1 if situation.gained else NO_GAIN_COST
    if repeated := memory.repeats(finding):
        return Decision(rule.end, f"the same failure came before {repeated}: a restart would meet it again")
    doubled = "" if situation.gained else ", and this attempt made no new step, so the restart counts twice"
    if not rule.restarts:
        return Decision(rule.end, "the policy has no restart for it")
    if not memory.allows(policy.restarts, cost, situation.now):
        within, run = memory.cost(situation.now, HOUR), memory.cost(situation.now, EVER)
        return Decision(
            rule.end,
            f"the budget of all restarts is used up ({within} of {policy.restarts.per_hour} in the last hour, "
            f"{run} of {policy.restarts.per_run} in this run{doubled})",
        )
    reasons = []
    for action, budget in rule.restarts.items():
        if not memory.allows(budget, cost, situation.now, finding.trigger, action):
            reasons.append(f"the budget of {action} is used up ({_of(budget)}{doubled})")
        elif action == RESTART_FROM_CHECKPOINT and situation.good_step is None:
            reasons.append("no checkpoint from before the fault is known")
        else:
            step = situation.good_step if action == RESTART_FROM_CHECKPOINT else None
            to = f", from the checkpoint of step {count(step)}" if step is not None else ""
            return Decision(action, f"within its budget ({_of(budget)}){to}{doubled}", cost, step)
    return Decision(rule.end, "; ".join(reasons))


def _of(budget: Budget) -> str:
    """Return a budget in words."""
    return f"{plural(budget.per_hour, 'restart')} an hour, {budget.per_run} a run"


def not_before(rule: Rule, memory: RunMemory) -> float:
    """Return the time of the day before which the cool-down allows no action."""
    return 0.0 if memory.last_restart is None else memory.last_restart + rule.cool_down
