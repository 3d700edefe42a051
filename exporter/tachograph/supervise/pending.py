"""The finding that holds now: since when, what was said of it, and what was decided about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tachograph.supervise.decision import Decision, Situation
from tachograph.supervise.ledger import Ledger
from tachograph.supervise.triggers import OF_ALERTS, RunFinding

GAP_SECONDS = 20.0
"""Between two looks, after which a finding must hold anew: this process was stopped, or the exporter took so long."""


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
    """At most one finding, as it is the one that explains the others; `now` is a monotonic clock."""

    def __init__(self, ledger: Ledger, now: Callable[[], float], run: str) -> None:
        self._ledger, self._now, self._run = ledger, now, run
        self._current: PendingFinding | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether something stands still about which nothing has been done yet; what alerts say lasts for longer."""
        return self._current is not None and not self._current.is_done and not self.is_of_alerts

    @property
    def is_of_alerts(self) -> bool:
        """Whether alerts report it."""
        return self._current is not None and self._current.trigger in OF_ALERTS

    def forget(self) -> None:
        """Forget it: another attempt begins, or it was gone before it was acted upon."""
        self._current = None

    def open(self, finding: RunFinding) -> PendingFinding:
        """Return since when a finding has held, from now on if it is another than before.

        Another node to blame makes it another one if alerts report it, or if a person was asked about the first one.
        """
        now, held = self._now(), self._current
        if held is not None and held.trigger == finding.trigger and held.nodes != finding.nodes:
            if self.is_of_alerts or held.number:
                self.withdraw("other nodes are to blame now")
            held.nodes = finding.nodes
        if self._current is None or self._current.trigger != finding.trigger:
            self.withdraw()
            self._current = PendingFinding(finding.trigger, finding.nodes, now, now)
        elif now - self._current.seen > GAP_SECONDS:
            self._current.since, self._current.looks = now, 0
        self._current.seen = now
        return self._current

    def withdraw(self, why: str = "what was found is gone") -> None:
        """Forget the finding that held until now, and withdraw what was asked about it."""
        if self._current is not None and self._current.number and not self._current.is_done:
            self._ledger.withdraw(self._current.number, self._run, why)
        self._current = None

    def hold_once(self, pending: PendingFinding, situation: Situation, guard: str, why: str) -> None:
        """Write and say that nothing is done about a finding, once for each guard."""
        if guard not in pending.said:
            pending.said.add(guard)
            self._ledger.hold(situation, guard, why)
