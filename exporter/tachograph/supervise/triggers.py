"""The triggers: what may be wrong with a run, of which ranks it holds, and which explains the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tachograph.catalog.rank import ALIVE
from tachograph.catalog.run import TOLD_REASONS
from tachograph.findings.kinds import KINDS, kind_of
from tachograph.supervise.run_seen import WITHHELD, NodeProblem, RankSeen, RunSeen
from tachograph.text.humanize import listed

GPU_FAULT, DEAD, FAILED, FROZEN, HUNG, NOT_FINITE, SPIKE, EXITED = (
    "gpu_fault", "dead", "failed", "frozen", "hung", "loss_not_finite", "loss_spike", "exited",
)  # fmt: skip
SLOW, DIVERGING, SILENT_CORRUPTION, RESTART_LOOP = "slow", "diverging", "silent_corruption", "restart_loop"
"""Those that no single node can conclude: the rules do, which compare nodes and hours, and Alertmanager has them."""
LEARNING = (NOT_FINITE, SPIKE)
"""Triggers whose step is the first at which the loss was in trouble: what was saved by then is in trouble, too."""


def words(name: str) -> str:
    """Return an action or a trigger as it is read in a sentence."""
    return name.replace("_", " ")


@dataclass(frozen=True)
class RunFinding:
    """A trigger that holds: which ranks, in which category, at which step and line, and in the exporter's words.

    `nodes` are those to blame: of the ranks that died, froze, hold the others up or are on a broken GPU. `since` is
    when an alert began, by the time of the day; None for what a node has concluded.
    """

    trigger: str
    ranks: tuple[int, ...]
    category: str
    step: int | None
    line: str
    text: str
    remedy: str = ""
    nodes: tuple[str, ...] = ()
    since: float | None = None

    @property
    def signature(self) -> tuple[str, str, int | None]:
        """Kind, category and step, which two failures of one cause have in common."""
        return self.trigger, self.category, self.step

    @property
    def subject(self) -> tuple[str, tuple[str, ...]]:
        """Kind and, if alerts report it, the nodes to blame: the same kind about another node is another finding."""
        return self.trigger, self.nodes if self.trigger in OF_ALERTS else ()


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


OF_NODES: Mapping[str, Callable[[RunSeen], list[RankSeen]]] = {
    GPU_FAULT: lambda run: _on_broken_gpus(run) if run.gpu_trouble else [],
    DEAD: _of_state("dead"),
    NOT_FINITE: lambda run: [rank for rank in run.ranks if rank.is_lost],
    FAILED: _of_state("failed"),
    FROZEN: _of_state("frozen"),
    HUNG: _hung,
    SPIKE: lambda run: [] if run.spiked_step is None else list(run.ranks),
}
"""What the exporters of the nodes conclude -> the ranks of which it holds. Of several that hold, the first one explains
the others, as the table of findings has it (`findings.kinds.KINDS`)."""

ALERTS: Mapping[str, tuple[str, ...]] = {
    trigger: tuple(kind.alert for kind in KINDS if kind.trigger == trigger)
    for trigger in dict.fromkeys(kind.trigger for kind in KINDS if kind.trigger)
}
"""Trigger -> the alerts that report the same, what explains most first, in the order of that table."""

OF_ALERTS = tuple(trigger for trigger in ALERTS if trigger not in OF_NODES)
"""Those that alerts alone report. Of the others the nodes' word counts, and their alerts, which come later, add
nothing: one fact is one event, however many tell of it."""

TRIGGERS = (*ALERTS, EXITED)
"""All of them; the last one is concluded from the command's own end."""


def worst(run: RunSeen) -> RunFinding | None:
    """Return the finding that explains all others, None if nothing is wrong; no alert hides what a node concludes."""
    return worst_of_nodes(run) or worst_of_alerts(run)


def worst_of_nodes(run: RunSeen) -> RunFinding | None:
    """Return the same of what nodes conclude, which is all that counts of a command that has ended."""
    for trigger, ranks_of in OF_NODES.items():
        if ranks := ranks_of(run):
            return _of_node(trigger, run, ranks)
    return None


def worst_of_alerts(run: RunSeen) -> RunFinding | None:
    """Return the same of what alerts report, whatever nodes say beside."""
    return next((found for trigger in OF_ALERTS if (found := _of_alerts(trigger, run))), None)


def _of_alerts(trigger: str, run: RunSeen) -> RunFinding | None:
    """Return what the alerts of one trigger say together, None if there are none or no single one is to blame."""
    alerts = [alert for alert in run.alerts or () if alert.trigger == trigger]
    if not alerts:
        return None
    first = min(alerts, key=lambda alert: alert.starts)
    nodes = {alert.node for alert in alerts}
    ranks = tuple(sorted({rank for alert in alerts for rank in alert.ranks}))
    if trigger == SLOW and (len(nodes) > 1 or not ranks):
        return None
    return RunFinding(
        trigger,
        ranks,
        listed([f"rank {rank}" for rank in ranks]) if ranks else trigger,
        run.step,
        "",
        first.text,
        kind_of(first.name).runbook,
        tuple(sorted(node for node in nodes if node)),
        first.starts,
    )


def _of_node(trigger: str, run: RunSeen, ranks: Sequence[RankSeen]) -> RunFinding:
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
        said, remedy = f"Run {run.name} is on a broken GPU: {run.gpu_trouble[0]}.", kind_of(ALERTS[trigger][0]).runbook
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
