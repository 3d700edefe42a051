"""Closes what an earlier supervisor of the run left open in its journal, before another attempt begins."""

from __future__ import annotations

from collections.abc import Callable

from tachograph.supervise.journal import ENDED, INTENT, OUTCOME
from tachograph.supervise.ledger import Ledger
from tachograph.supervise.memory import LOST
from tachograph.supervise.policy import KEEP_EVIDENCE, NOTIFY, STOP

TEXTS = {
    NOTIFY: "said again by the next supervisor",
    KEEP_EVIDENCE: "not repeated: the training ended with its supervisor",
    STOP: "the training ended with its supervisor, and is not started again",
}


def take_over(ledger: Ledger, say: Callable[[str], None]) -> bool:
    """Note what became of what was under way; return whether the run was about to be stopped."""
    memory, stopped = ledger.memory, False
    for entry in list(memory.open.values()):
        action = entry["action"]
        if action == NOTIFY:
            say(f"{entry['text']} (said again: the last supervisor ended as it said this)")
        stopped |= action == STOP
        text = TEXTS.get(action, "the training ended with its supervisor; the next attempt is started now")
        ledger.write(OUTCOME, id=entry["id"], action=action, ok=action != KEEP_EVIDENCE, text=text)
    if (decided := memory.decided) is not None:
        stopped |= decided["action"] == STOP
        names = ("id", "trigger", "action", "cost", "signature", "line", "resume_step", "found", "nodes", "skip")
        ledger.write(INTENT, **{name: decided[name] for name in names if name in decided})
        text = "decided by the last supervisor, and the training ended with it"
        ledger.write(OUTCOME, id=decided["id"], action=decided["action"], ok=True, text=text)
    if memory.runs:
        ledger.write(
            ENDED, how=LOST, status=None, step=None, why="its supervisor ended, and the training with it"
        )  # fmt: skip
    return stopped
