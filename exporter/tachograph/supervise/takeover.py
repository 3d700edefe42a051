"""Closes what an earlier supervisor of the run left open in its journal, before another attempt begins."""

from __future__ import annotations

from collections.abc import Callable

from tachograph.supervise.journal import DECISION, ENDED, INTENT, OUTCOME
from tachograph.supervise.ledger import Ledger
from tachograph.supervise.memory import LOST, STOPPED
from tachograph.supervise.permission import is_confirmed
from tachograph.supervise.policy import KEEP_EVIDENCE, NOTIFY, STOP
from tachograph.supervise.totals import DECIDED
from tachograph.supervise.triggers import SLOW, words
from tachograph.text.humanize import count

TEXTS = {
    NOTIFY: "said again by the next supervisor",
    KEEP_EVIDENCE: "not repeated: the training ended with its supervisor",
    STOP: "the training ended with its supervisor, and is not started again",
}


def take_over(run: str, ledger: Ledger, say: Callable[[str], None]) -> bool:
    """Note what became of what was under way; return whether the run was about to be stopped, once that is said."""
    unfinished = ledger.memory.unfinished
    _take_answers(ledger, say)
    if (unsaid := unfinished.unsaid) is not None:
        say(
            f"{unsaid['text']} To be done: {words(unsaid['action'])}, {unsaid['why']} (decided by the last supervisor, "
            "which ended before it said this)"
        )
    for entry in list(unfinished.open.values()):
        action = entry["action"]
        if action == NOTIFY:
            say(f"{entry['text']} (said again: the last supervisor ended as it said this)")
        text = TEXTS.get(action, "the training ended with its supervisor; the next attempt is started now")
        ledger.write(OUTCOME, id=entry["id"], action=action, ok=action != KEEP_EVIDENCE, text=text)
    if (decided := unfinished.decided) is not None:
        names = ("id", "trigger", "action", "cost", "signature", "line", "resume_step", "found", "nodes", "skip")
        ledger.write(INTENT, **{name: decided[name] for name in names if name in decided})
        text = "decided by the last supervisor, and the training ended with it"
        ledger.write(OUTCOME, id=decided["id"], action=decided["action"], ok=True, text=text)
    stopped = unfinished.stopping
    if stopped:
        say(
            f"run {run} was being stopped by policy when its last supervisor ended: the training has ended with it, "
            "and is not started. To start it anyway, run the command again"
        )
    if ledger.memory.runs:
        how, why = STOPPED if stopped else LOST, "its supervisor ended, and the training with it"
        ledger.write(ENDED, how=how, status=None, step=None, why=why)
    return stopped


def _take_answers(ledger: Ledger, say: Callable[[str], None]) -> None:
    """Decide what a person has confirmed and the last supervisor has not heard."""
    memory = ledger.memory
    for asked in list(memory.unfinished.asked.values()):
        if not is_confirmed(ledger.folder, asked["id"]):
            continue
        step = asked["resume_step"]
        if asked["trigger"] == SLOW:  # the run has gone on since, and nothing is wrong with what it saved
            step = None
        elif step is not None and step not in memory.checkpoints.by_step:
            say(
                f"the question {asked['id']} was confirmed as the last supervisor ended, and is withdrawn: the "
                f"checkpoint of step {count(step)}, which it was about, is not among the last any more"
            )
            continue
        facts = {name: value for name, value in asked.items() if name not in ("v", "time", "kind")}
        ledger.write(DECISION, **{**facts, "outcome": DECIDED, "resume_step": step})
