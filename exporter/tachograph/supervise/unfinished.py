"""The decisions, intentions and questions of an attempt that are not over yet: the next supervisor closes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tachograph.supervise.journal import DECISION, ENDED, INTENT, OUTCOME, Entry
from tachograph.supervise.policy import LEAVE, STOP
from tachograph.supervise.totals import ASKED, DECIDED, HELD

QUESTION = "ask"
"""What is noted as an action when a question is withdrawn."""


@dataclass
class Unfinished:
    """Decisions, intentions and questions, by what the journal has of them."""

    open: dict[str, Entry] = field(default_factory=dict)
    """Intentions without an outcome, by decision and action."""

    decided: Entry | None = None
    """The decision to restart or to stop of which not even the intention is noted yet."""

    unsaid: Entry | None = None
    """The decision of which nothing has been said yet, whatever it is."""

    asked: dict[str, Entry] = field(default_factory=dict)
    """The questions that wait for an answer, by decision."""

    stopping: bool = False
    """Whether the training was about to be ended for good, and of its end nothing is noted."""

    def take(self, entry: Entry) -> None:
        """Take one more entry into account."""
        kind = entry["kind"]
        if kind == DECISION:
            self._take_decision(entry)
        elif kind == INTENT:
            self.open[f"{entry['id']} {entry['action']}"] = entry
            if self.decided is not None and entry["action"] == self.decided["action"]:
                self.decided = None
            self.unsaid = None
            self.stopping |= entry["action"] == STOP
        elif kind == OUTCOME:
            self.open.pop(f"{entry['id']} {entry['action']}", None)
            if self.decided is not None and (entry["id"], entry["action"]) == (
                self.decided["id"],
                self.decided["action"],
            ):
                self.decided = self.unsaid = None  # what a next supervisor does not carry out
            if entry["action"] == QUESTION:
                self.asked.pop(entry["id"], None)
        elif kind == ENDED:
            self.decided, self.unsaid, self.stopping = None, None, False
            self.asked.clear()

    def _take_decision(self, entry: Entry) -> None:
        if entry["outcome"] == ASKED:
            self.asked[entry["id"]] = entry
        elif entry["outcome"] in (DECIDED, HELD):
            self.asked.pop(entry["id"], None)
            self.decided = entry if entry["action"] != LEAVE else None
            self.unsaid = entry if entry["outcome"] == DECIDED else None
