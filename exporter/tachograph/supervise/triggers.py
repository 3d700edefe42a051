"""The triggers: what may be wrong with a run, of which ranks it holds, and which explains the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tachograph.catalog.rank import ALIVE
from tachograph.catalog.run import TOLD_REASONS
from tachograph.findings.kinds import (
    GPU_XID_FATAL,
    LOSS_NOT_FINITE,
    ORDER,
    RANK_DEAD,
    RANK_FAILED,
    RANK_FROZEN,
    RUN_HUNG,
    SPIKE_STAYS,
    kind_of,
)
from tachograph.humanize import listed
from tachograph.supervise.run_seen import WITHHELD, NodeProblem, RankSeen, RunSeen

GPU_FAULT, DEAD, FAILED, FROZEN, HUNG, NOT_FINITE, SPIKE, EXITED = (
    "gpu_fault", "dead", "failed", "frozen", "hung", "loss_not_finite", "loss_spike", "exited",
)  # fmt: skip
LEARNING = (NOT_FINITE, SPIKE)
"""Triggers whose step is the first at which the loss was in trouble: what was saved by then is in trouble, too."""


def words(name: str) -> str:
    """Return an action or a trigger as it is read in a sentence."""
    return name.replace("_", " ")


@dataclass(frozen=True)
class RunFinding:
    """A trigger that holds: which ranks, in which category, at which step and line, and in the exporter's words.

    `nodes` are those to blame: of the ranks that died, froze, hold the others up or are on a broken GPU.
    """

    trigger: str
    ranks: tuple[int, ...]
    category: str
    step: int | None
    line: str
    text: str
    remedy: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def signature(self) -> tuple[str, str, int | None]:
        """Kind, category and step, which two failures of one cause have in common."""
        return self.trigger, self.category, self.step


def _of_state(state: str) -> Callable[[RunSeen], list[RankSeen]]:
    return lambda run: [rank for rank in run.ranks if rank.state == state and rank.end_reason not in TOLD_REASONS]


def _hung(run: RunSeen) -> list[RankSeen]:
    if run.state != "hung":
        return []
    return [rank for rank in run.ranks if rank.rank == run.culprit] or [
        rank for rank in run.ranks if rank.state in ALIVE
    ]


def _on_broken_gpus(run: RunSeen) -> list[RankSeen]:
    known = [rank for rank in run.ranks if rank.has_gpu_trouble]
    return known or [rank for rank in run.ranks if rank.uuid]


TRIGGERS: Mapping[str, Callable[[RunSeen], list[RankSeen]]] = {
    GPU_FAULT: lambda run: _on_broken_gpus(run) if run.gpu_trouble else [],
    DEAD: _of_state("dead"),
    NOT_FINITE: lambda run: [rank for rank in run.ranks if rank.is_lost],
    FAILED: _of_state("failed"),
    FROZEN: _of_state("frozen"),
    HUNG: _hung,
    SPIKE: lambda run: [] if run.spiked_step is None else list(run.ranks),
    EXITED: lambda _: [],  # concluded from the command's own end
}
"""Trigger -> the ranks of which it holds. Of several that hold, the first one explains the others, as the table of
findings has it (`findings.kinds.KINDS`)."""

ALERTS: Mapping[str, str] = {
    GPU_FAULT: GPU_XID_FATAL.alert, DEAD: RANK_DEAD.alert, NOT_FINITE: LOSS_NOT_FINITE.alert,
    FAILED: RANK_FAILED.alert, FROZEN: RANK_FROZEN.alert, HUNG: RUN_HUNG.alert, SPIKE: SPIKE_STAYS.alert,
}  # fmt: skip
"""Trigger -> the alert that pages for the same finding."""


def worst(run: RunSeen) -> RunFinding | None:
    """Return the finding that explains all others, None if nothing is wrong."""
    for trigger in sorted(ALERTS, key=lambda trigger: ORDER[ALERTS[trigger]]):
        if ranks := TRIGGERS[trigger](run):
            return _finding(trigger, run, ranks)
    return None


def _finding(trigger: str, run: RunSeen, ranks: Sequence[RankSeen]) -> RunFinding:
    first = max(ranks, key=lambda rank: rank.ended_seconds or 0.0)
    step = first.step
    if trigger == NOT_FINITE:
        known = [rank.nonfinite_step for rank in ranks if rank.nonfinite_step is not None]
        step = min(known) if known else step
    elif trigger == SPIKE:
        step = run.spiked_step
    line = ""
    if trigger == FAILED and first.end_reason != "collective":  # a timeout is raised at the same line, whoever is late
        line = "" if first.message.startswith(WITHHELD) else first.message
    elif trigger in (FROZEN, HUNG) and (trigger == FROZEN or run.culprit is not None):
        line = first.where
    unsaid = NodeProblem(f"Run {run.name}: {words(trigger)}.", "")
    said, remedy, _ = next((problem for problem in run.problems if problem.node == first.node), unsaid)
    if trigger == GPU_FAULT:
        said, remedy = f"Run {run.name} is on a broken GPU: {run.gpu_trouble[0]}.", kind_of(ALERTS[trigger]).runbook
    said = said if said.endswith((".", "…")) else f"{said}."
    is_of_nodes = trigger in (DEAD, FROZEN, GPU_FAULT) or (trigger == HUNG and run.culprit is not None)
    nodes = tuple(sorted({rank.node for rank in ranks if rank.node})) if is_of_nodes else ()
    return RunFinding(
        trigger,
        tuple(sorted(rank.rank for rank in ranks)),
        first.end_reason or trigger,
        step,
        line,
        f"{said} It is on {listed(nodes, 4)}." if nodes else said,
        remedy,
        nodes,
    )
