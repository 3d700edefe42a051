"""Which nodes of a run failed, and which are left out of it, as its journal has it: across restarts, jobs and swaps.

A false exclusion costs a node that is not to blame, and a cause that is not found: so few of them without a person.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tachograph.supervise.journal import INTENT, QUEUED, STARTED, Entry
from tachograph.supervise.policy import EXCLUDE_NODE, RESTARTS

HOUR = 3600.0
MOST_AN_HOUR = 2
ONE_IN = 10
"""So few nodes are left out without a person: two an hour, and of a run's nodes one in ten, but at least one."""


@dataclass
class NodeMemory:
    """The nodes of a run since it last finished."""

    blamed: list[tuple[str, ...]] = field(default_factory=list)
    """Of each failure after which the training was restarted, the nodes to blame."""

    left_out: dict[str, float] = field(default_factory=dict)
    """The nodes that are left out, and since when."""

    is_queued: bool = False
    """Whether the job was queued again, and no attempt has been started since."""

    def take(self, entry: Entry) -> None:
        """Take one more entry into account."""
        kind = entry["kind"]
        if kind == INTENT and entry["action"] in RESTARTS:
            self.blamed.append(tuple(entry.get("nodes", ())))
            if entry["action"] == EXCLUDE_NODE:
                self.left_out.update(dict.fromkeys(entry.get("nodes", ()), entry["time"]))
        elif kind == QUEUED:
            self.is_queued = True
        elif kind == STARTED:
            self.is_queued = False

    def failed_before(self, nodes: Collection[str]) -> bool:
        """Return whether these nodes failed before: one node alone, or any of several, with whichever others."""
        if len(nodes) == 1:
            return tuple(nodes) in self.blamed
        return any(node in earlier for earlier in self.blamed for node in nodes)

    def too_many(self, nodes: Collection[str], size: int, now: float) -> str:
        """Return why a person must say whether to leave these nodes out of a run of that size; empty if nobody must."""
        new = [node for node in nodes if node not in self.left_out]
        if len(new) > 1:
            return f"{len(new)} nodes failed at once"
        most = max(size // ONE_IN, 1)
        if len(self.left_out) + len(new) > most:
            return f"that would be {len(self.left_out) + len(new)} nodes left out of a run of {size}, and {most} may be"
        if sum(1 for at in self.left_out.values() if now - at < HOUR) + len(new) > MOST_AN_HOUR:
            return f"{MOST_AN_HOUR} nodes were left out in the last hour"
        return ""
