"""Totals over all runs of a journal: actions by what came of them, what restarts cost, and what is not judged yet."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tachograph.supervise.journal import DECISION, ENDED, JUDGED, OUTCOME, RECOVERED, Entry
from tachograph.supervise.policy import ACTIONS, LEAVE

WOULD, ASKED, DECIDED, HELD = "would", "asked", "act", "held"
"""What comes of a decision: written only, put to a person, carried out, or held back by a guard."""

DONE, NOT_DONE = "done", "failed"
"""What comes of carrying one of its actions out."""

PERSON_SECONDS = 900.0
"""How long a run stands still until a person who is paged has restarted it: 5 minutes to answer, as a page asks for,
and 10 to look and to act. A restart of ours saves what is left of that, for each rank; a slower one saves nothing."""


@dataclass
class JournalTotals:
    """The counts; `recovery_seconds` is the last time to recover. A rank counts as a GPU."""

    actions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By action and by what came of it, for shadow mode also by what was judged of it later."""

    lost_steps: int = 0
    saved_gpu_seconds: float = 0.0
    recovery_seconds: float | None = None
    unjudged: dict[str, Entry] = field(default_factory=dict)
    """Decisions of shadow mode, by id, of which it is not known yet whether they would have been right."""

    last_end: Entry | None = None
    """The last end of an attempt."""

    def take(self, entry: Entry) -> None:
        """Take one more entry into account."""
        kind = entry["kind"]
        if kind == DECISION and entry["outcome"] != DECIDED:
            self.actions[entry["action"], entry["outcome"]] += 1
            if entry["outcome"] == WOULD and entry["action"] != LEAVE:
                self.unjudged[entry["id"]] = entry
        elif kind == OUTCOME and entry["action"] in ACTIONS:
            self.actions[entry["action"], DONE if entry["ok"] else NOT_DONE] += 1
        elif kind == RECOVERED:
            self.recovery_seconds = entry["seconds"]
            self.lost_steps += entry["lost_steps"]
            self.saved_gpu_seconds += entry.get("gpus", 0) * max(PERSON_SECONDS - entry["seconds"], 0.0)
        elif kind == JUDGED:
            self.actions[entry["action"], entry["verdict"]] += 1
            self.unjudged.pop(entry["id"], None)
        elif kind == ENDED:
            self.last_end = entry
