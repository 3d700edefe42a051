"""Closes what an earlier supervisor of the run left open in its journal, before another attempt begins."""

from __future__ import annotations

from collections.abc import Callable

from tachograph.supervise.journal import DECISION, ENDED, INTENT, OUTCOME, Entry
from tachograph.supervise.ledger import Ledger
from tachograph.supervise.memory import LOST, STOPPED
from tachograph.supervise.permission import is_confirmed
from tachograph.supervise.policy import KEEP_EVIDENCE, NOTIFY, RESTART, STOP
from tachograph.supervise.totals import DECIDED
from tachograph.supervise.triggers import SLOW, words
from tachograph.text.humanize import count

GOES_ON, BEGINS, STOPS = "goes on", "begins", "stops"
"""What comes next: the attempt goes on, another one begins, or none does."""

RESTARTED = "the training ended with its supervisor; the next attempt is started now"
TEXTS = {
    NOTIFY: "said again by the next supervisor",
    KEEP_EVIDENCE: "not repeated: the training ended with its supervisor",
    STOP: "the training ended with its supervisor, and is not started again",
}
CARRIED_OUT = {
    NOTIFY: TEXTS[NOTIFY],
    KEEP_EVIDENCE: "not kept, or a part of it: its supervisor ended",
    STOP: "the next supervisor has ended the training",
    RESTART: "the next supervisor ends the training, and starts the next attempt",
}
"""The same of an attempt that outlives its supervisor."""


def take_over(run: str, ledger: Ledger, say: Callable[[str], None], end: Callable[[Entry], bool] | None = None) -> str:
    """Note what became of what was under way; return what comes next.

    An attempt that outlives its supervisor goes on, unless its end has begun or a person has agreed to it: `end` ends
    one, and returns whether it has.
    """
    unfinished, running = ledger.memory.unfinished, ledger.memory.running
    _take_answers(ledger, say)
    outlives = False
    if end is not None and running is not None and "mark" in running:
        outlives = True
        if not _is_ending(ledger):
            _leave_undone(run, ledger, say)
            return GOES_ON
        is_decided = unfinished.decided is not None and unfinished.decided["action"] == STOP
        if (unfinished.stopping or is_decided) and not end(running):
            return STOPS
    if (unsaid := unfinished.unsaid) is not None:
        say(
            f"{unsaid['text']} To be done: {words(unsaid['action'])}, {unsaid['why']} (decided by the last supervisor, "
            "which ended before it said this)"
        )
    for entry in list(unfinished.open.values()):
        action = entry["action"]
        if action == NOTIFY:
            say(f"{entry['text']} (said again: the last supervisor ended as it said this)")
        text = (CARRIED_OUT if outlives else TEXTS).get(action, CARRIED_OUT[RESTART] if outlives else RESTARTED)
        ledger.write(OUTCOME, id=entry["id"], action=action, ok=action != KEEP_EVIDENCE, text=text)
    if (decided := unfinished.decided) is not None:
        names = ("id", "trigger", "action", "cost", "signature", "line", "resume_step", "found", "nodes", "skip")
        ledger.write(INTENT, **{name: decided[name] for name in names if name in decided})
        text = CARRIED_OUT[RESTART] if outlives else "decided by the last supervisor, and the training ended with it"
        ledger.write(OUTCOME, id=decided["id"], action=decided["action"], ok=True, text=text)
    stopped = unfinished.stopping
    if stopped:
        say(
            f"run {run} was being stopped by policy when its last supervisor ended: the training has ended"
            f"{'' if outlives else ' with it'}, and is not started. To start it anyway, run the command again"
        )
    if ledger.memory.running is not None:
        why = f"its supervisor ended, and {'the next one ended it' if outlives else 'the training with it'}"
        ledger.write(ENDED, how=STOPPED if stopped else LOST, status=None, step=None, why=why)
    return STOPS if stopped else BEGINS


def _is_ending(ledger: Ledger) -> bool:
    """Return whether the end of the attempt had begun, or a person has confirmed it."""
    memory, decided = ledger.memory, ledger.memory.unfinished.decided
    has_begun = memory.unfinished.stopping or (memory.is_started and memory.due is not None)
    return has_begun or (decided is not None and is_confirmed(ledger.folder, decided["id"]))


def _leave_undone(run: str, ledger: Ledger, say: Callable[[str], None]) -> None:
    """Close what was open about an attempt that goes on: what still holds is found, decided and asked anew."""
    unfinished = ledger.memory.unfinished
    for entry in list(unfinished.open.values()):
        if entry["action"] == NOTIFY:
            say(f"{entry['text']} (said again: the last supervisor ended as it said this)")
        ok, text = entry["action"] == NOTIFY, CARRIED_OUT[entry["action"]]
        ledger.write(OUTCOME, id=entry["id"], action=entry["action"], ok=ok, text=text)
    if (decided := unfinished.decided) is not None:
        text = "not done: the last supervisor ended before, and it is decided again if it still holds"
        ledger.write(OUTCOME, id=decided["id"], action=decided["action"], ok=False, text=text)
    for number in list(unfinished.asked):
        ledger.withdraw(number, run, "its supervisor ended; if it still holds, it is asked again")


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
