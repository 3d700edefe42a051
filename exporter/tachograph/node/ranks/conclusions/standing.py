"""How the part of a run that is on this node stands: its state, and who holds it up while a step is missing."""

from __future__ import annotations

from typing import NamedTuple

from tachograph.catalog.rank import PAUSES
from tachograph.diagnosis import STATES, stall_limit
from tachograph.node.ranks.conclusions.hangs import TimeWithoutStep
from tachograph.node.ranks.conclusions.suspects import culprits
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.ranks.rank import Rank


class RunStanding(NamedTuple):
    """One of `diagnosis.STATES`, and what stands behind it.

    A run is overdue without a step for longer than a hang takes where nobody pauses. `is_stalled` comes before that:
    whoever looks should hear of a step that is missing, though it is no hang yet. Then `culprit` is the rank that holds
    it up as far as this node can tell, `behind` by how many collectives.
    """

    state: str
    is_hung: bool
    is_overdue: bool
    is_stalled: bool
    culprit: Rank | None
    behind: float
    seconds: float | None
    """Without a step; None where no rank runs, or none has made one."""
    is_shared: bool
    """Whether other ranks here live beside the culprit."""

    @property
    def marked(self) -> str:
        """The mark of its culprit, `culprit` or `behind`; empty where there is none, or nobody to be behind."""
        if self.culprit is None or not self.is_overdue:
            return ""
        return "culprit" if self.is_hung else "behind" if self.is_shared else ""


def standing(view: RunView, without_step: TimeWithoutStep) -> RunStanding:
    """Return how the part of a run stands, given what was concluded of its time without a step."""
    seconds, is_hung = view.without_step if view.running else None, without_step.is_hung
    is_quiet = any(rank.phase in PAUSES for rank in view.running)
    is_overdue = is_hung or (without_step.seconds > 0 and not is_quiet)
    is_missing = view.step_seconds is not None and (seconds or 0.0) > stall_limit(view.step_seconds)
    is_stalled = is_overdue or (is_missing and not is_quiet)
    states = {*view.states.values(), *["hung"] * is_hung, *["overdue"] * is_overdue}
    found = culprits(view) if is_stalled else {}
    culprit, behind = max(found.items(), key=lambda item: item[1], default=(None, 0.0))
    state = min(states, key=STATES.index)
    return RunStanding(state, is_hung, is_overdue, is_stalled, culprit, behind, seconds, len(view.alive) > 1)
