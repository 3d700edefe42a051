"""The past of a run, as its journal has it: attempts, restarts and their cost, failures, what was left undone.

All of it is worked out from the entries, so that a supervisor that is restarted remembers what the last one knew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tachograph.supervise.checkpoint_memory import CheckpointMemory
from tachograph.supervise.journal import (
    ATTEMPT,
    CHECKPOINT,
    DECISION,
    ENDED,
    INTENT,
    PLACED,
    RECOVERED,
    STARTED,
    Entry,
)
from tachograph.supervise.node_memory import NodeMemory
from tachograph.supervise.plan_memory import PlanMemory
from tachograph.supervise.policy import EXCLUDE_NODE, RESTARTS, Budget
from tachograph.supervise.totals import JournalTotals
from tachograph.supervise.triggers import RunFinding
from tachograph.supervise.unfinished import Unfinished

FINISHED, EXTERNAL, FAILED, STOPPED, LOST = "finished", "external", "failed", "stopped", "lost"
"""How an attempt ended: well, by a person or a scheduler, by itself, by the policy, or with its supervisor."""

HOUR, EVER = 3600.0, math.inf

NO_GAIN_COST = 2
"""Of a restart after an attempt that made no new step: it would have ended the same way without us."""


@dataclass
class RunMemory:
    """The run since it last finished; steps are the furthest that the exporter saw."""

    attempts: int = 0
    began: float = math.inf
    """When its first attempt began, by the time of the day."""

    best_step: int | None = None
    spent: list[tuple[float, str, str, int]] = field(default_factory=list)
    """Restarts: when, by which trigger and action, and what each cost."""

    failures: list[tuple[tuple[str, str, int | None], str]] = field(default_factory=list)
    """Signature and line of the failures after which the training was restarted."""

    due: Entry | None = None
    """The restart whose attempt has not been started yet, or ended from outside before it made a step."""

    sent_back: Entry | None = None
    """The last restart, until its attempt makes a step, or saves: before that the loop may not have gone back yet."""

    running: Entry | None = None
    """The attempt that began, and of whose end nothing is noted."""

    is_started: bool = False
    """Whether that is known to have been started."""

    places: dict[str, str] = field(default_factory=dict)
    """The nodes that it is on, and their addresses, if it outlives its supervisor."""

    marks: list[str] = field(default_factory=list)
    """Those of its attempts that outlive their supervisor."""

    checkpoints: CheckpointMemory = field(default_factory=CheckpointMemory)
    plan: PlanMemory = field(default_factory=PlanMemory)
    nodes: NodeMemory = field(default_factory=NodeMemory)
    unfinished: Unfinished = field(default_factory=Unfinished)
    recovering: tuple[float, int | None] | None = None
    """When the failure was found for which the training was restarted, and the furthest step before that; None once
    the training has made a step again."""

    totals: JournalTotals = field(default_factory=JournalTotals)

    def cost(self, now: float, within: float, trigger: str = "", action: str = "") -> int:
        """Return what restarts cost within the last seconds: by one trigger and action, or all but swaps of nodes."""
        return sum(
            cost
            for at, by, what, cost in self.spent
            if now - at < within and trigger in ("", by) and (what == action if action else what != EXCLUDE_NODE)
        )

    def allows(self, budget: Budget, cost: int, now: float, trigger: str = "", action: str = "") -> bool:
        """Return whether a restart of this cost is within a budget."""
        return (
            self.cost(now, HOUR, trigger, action) + cost <= budget.per_hour
            and self.cost(now, EVER, trigger, action) + cost <= budget.per_run
        )

    def repeats(self, finding: RunFinding) -> str:
        """Return in which way a failure repeats an earlier one, empty if it does not."""
        if any(signature == finding.signature for signature, _ in self.failures):
            return "at the same step" if finding.step is not None else "before the first step"
        if finding.line and any(line == finding.line for _, line in self.failures):
            return "with the same message or line"
        return ""

    @property
    def last_restart(self) -> float | None:
        """When the training was last restarted, by the time of the day."""
        return max((at for at, *_ in self.spent), default=None)


def remember(entries: Iterable[Entry]) -> RunMemory:
    """Return what entries say, in their order."""
    memory = RunMemory()
    for entry in entries:
        take(memory, entry)
    return memory


def take(memory: RunMemory, entry: Entry) -> None:
    """Take one more entry into account."""
    memory.nodes.take(entry)
    memory.checkpoints.take(entry)
    memory.plan.take(entry)
    memory.totals.take(entry)
    memory.unfinished.take(entry)
    kind = entry["kind"]
    if kind == ATTEMPT:
        memory.attempts += 1
        memory.began = min(memory.began, entry["time"])
        memory.running, memory.is_started, memory.places = entry, False, {}
        if "mark" in entry:
            memory.marks.append(entry["mark"])
    elif kind == STARTED:
        memory.due, memory.is_started = None, True
    elif kind == INTENT and entry["action"] in RESTARTS:
        memory.spent.append((entry["time"], entry["trigger"], entry["action"], entry["cost"]))
        memory.failures.append((_signature(entry["signature"]), entry["line"]))
        memory.due = memory.sent_back = entry
        if memory.recovering is None:
            memory.recovering = entry.get("found", entry["time"]), memory.best_step
    elif kind == PLACED:
        memory.places = dict(zip(entry["nodes"], entry["addresses"], strict=False))
    elif kind == RECOVERED:
        memory.recovering = memory.sent_back = None
    elif kind == CHECKPOINT and memory.sent_back is not None:
        back = memory.sent_back["resume_step"]
        if back is None or entry["checkpoint"] > back:
            memory.sent_back = None
    elif kind in (ENDED, DECISION):
        step = entry.get("step")
        if step is not None:
            memory.best_step = step if memory.best_step is None else max(memory.best_step, step)
        if kind == ENDED:
            _end(memory, entry["how"])


def _end(memory: RunMemory, how: str) -> None:
    memory.running = None
    if how in (LOST, EXTERNAL) and memory.due is None:
        memory.due = memory.sent_back
    if how in (EXTERNAL, STOPPED):
        memory.recovering = None
    if how == FINISHED:
        vars(memory).update(vars(RunMemory(totals=memory.totals)))


def _signature(said: Sequence[Any]) -> tuple[str, str, int | None]:
    trigger, category, step = said
    return str(trigger), str(category), step
