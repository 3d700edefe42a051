"""The finding that holds now: since when, what was said of it, and what was decided about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tachograph.supervise.decision import Decision, Situation
from tachograph.supervise.ledger import Ledger
from tachograph.supervise.triggers import OF_ALERTS, RunFinding

GAP_SECONDS = 20.0
"""Between two looks, after which a finding must hold anew: this process was stopped, or the exporter took so long."""

GONE, UNSURE = "what was found is gone", "whether it still holds is not known"
"""Why a question is withdrawn; the other where Alertmanager does not answer any more."""


@dataclass
class PendingFinding:
    """A finding that holds: since when, what was said of it, and the decision that waits for a confirmation.

    `nodes` are those to blame.
    """

    trigger: str
    nodes: tuple[str, ...]
    since: float
    seen: float
    looks: int = 0
    said: set[str] = field(default_factory=set)
    number: str = ""
    decision: Decision | None = None
    is_done: bool = False


class CurrentFinding:
    """One finding of nodes at most, as it is the one that explains the others, and beside it one of alerts.

    A node's comes first, and the other goes on holding meanwhile: the ranks of a restart loop fail again and again.
    `now` is a monotonic clock.
    """

    def __init__(self, ledger: Ledger, now: Callable[[], float], run: str) -> None:
        self._ledger, self._now, self._run = ledger, now, run
        self._of_nodes: PendingFinding | None = None
        self._of_alerts: PendingFinding | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether something stands still about which nothing has been done yet; what alerts say lasts for longer."""
        return self._of_nodes is not None and not self._of_nodes.is_done

    @property
    def is_open(self) -> bool:
        """Whether anything holds, whatever has been done about it."""
        return self._of_nodes is not None or self._of_alerts is not None

    def forget(self) -> None:
        """Forget both: another attempt begins."""
        self._of_nodes = self._of_alerts = None

    def open(self, finding: RunFinding, beside: RunFinding | None = None, *, unsure: bool = False) -> PendingFinding:
        """Return since when a finding has held, from now on if it is another than before.

        Another node to blame makes it another one if alerts report it, or if a person was asked about the first one.
        `beside` is what alerts report while a node's finding holds; `unsure` says that this is not known.
        """
        if finding.trigger in OF_ALERTS:
            self._of_nodes = self._continued(self._of_nodes, None, GONE)
            self._of_alerts = found = self._held(self._of_alerts, finding)
        else:
            self._of_alerts = self._continued(self._of_alerts, beside, UNSURE if unsure else GONE)
            self._of_nodes = found = self._held(self._of_nodes, finding)
        return found

    def withdraw(self, why: str = GONE, *, unsure: bool = False) -> None:
        """Forget what held until now, and withdraw what was asked about it; `unsure` as above."""
        self._of_nodes = self._continued(self._of_nodes, None, why)
        self._of_alerts = self._continued(self._of_alerts, None, UNSURE if unsure else why)

    def _continued(self, held: PendingFinding | None, finding: RunFinding | None, why: str) -> PendingFinding | None:
        """Return since when a finding has held; without one, withdraw what was asked about the last one."""
        if finding is not None:
            return self._held(held, finding)
        if held is not None and held.number and not held.is_done:
            self._ledger.withdraw(held.number, self._run, why)
        return None

    def _held(self, held: PendingFinding | None, finding: RunFinding) -> PendingFinding:
        now = self._now()
        if held is not None and held.trigger != finding.trigger:
            held = self._continued(held, None, GONE)
        elif held is not None and held.nodes != finding.nodes and (finding.trigger in OF_ALERTS or held.number):
            held = self._continued(held, None, "other nodes are to blame now")
        if held is None:
            return PendingFinding(finding.trigger, finding.nodes, now, now)
        if now - held.seen > GAP_SECONDS:
            held.since, held.looks = now, 0
        held.nodes, held.seen = finding.nodes, now
        return held

    def hold_once(self, pending: PendingFinding, situation: Situation, guard: str, why: str) -> None:
        """Write and say that nothing is done about a finding, once for each guard."""
        if guard not in pending.said:
            pending.said.add(guard)
            self._ledger.hold(situation, guard, why)
