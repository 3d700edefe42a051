"""`tachograph supervise history`: the journal of a run as a table, the newest entry last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tachograph.supervise.hindsight import RIGHT, UNKNOWN, WRONG
from tachograph.supervise.journal import (
    ATTEMPT,
    BLIND,
    DECISION,
    ENDED,
    FAULT,
    IGNORED,
    INTENT,
    JUDGED,
    OUTCOME,
    RECOVERED,
    SUPERVISOR,
    Entry,
)
from tachograph.supervise.memory import EVER, FINISHED, HOUR, remember
from tachograph.supervise.totals import ASKED, DECIDED, HELD, PERSON_SECONDS, WOULD, JournalTotals
from tachograph.supervise.triggers import words
from tachograph.text.humanize import age, count, listed, plural, utc

OUTCOMES = {WOULD: "would", ASKED: "asked to", DECIDED: "decided to", HELD: "held back"}


def lines(entries: Sequence[Entry], now: float) -> list[str]:
    """Return the table, then what is left of the budget."""
    found = [f"{utc(entry['time'], '%Y-%m-%d %H:%M:%S')}  {what:12} {text}" for entry, what, text in _rows(entries)]
    is_over = bool(entries) and entries[-1]["kind"] == ENDED and entries[-1]["how"] == FINISHED
    memory = remember(entries[:-1] if is_over else entries)
    found.append(
        f"attempts: {memory.attempts}, furthest step {count(memory.best_step)}, restarts that count: "
        f"{memory.cost(now, HOUR)} in the last hour, {memory.cost(now, EVER)} since the run began"
    )
    if checkpoints := memory.checkpoints.by_step:
        good = [step for step, entry in checkpoints.items() if not entry["suspect"]]
        suspect = [count(step) for step, entry in checkpoints.items() if entry["suspect"]]
        also = f"; suspect: {listed(suspect)}" if suspect else ""
        found.append(f"checkpoints: newest good one of step {count(max(good, default=None))}{also}")
    found += [line for line in (_judged(memory.totals), _saved(memory.totals)) if line]
    return found


def _saved(totals: JournalTotals) -> str:
    """Return what restarts have saved, empty if that is nothing."""
    if not totals.saved_gpu_seconds:
        return ""
    hours = totals.saved_gpu_seconds / 3600
    return f"GPU-hours saved: {hours:.3g}, against a person who restarts the run in {age(PERSON_SECONDS)}"


def _judged(totals: JournalTotals) -> str:
    """Return what became of what shadow mode would have done, empty if that was nothing."""
    by = {
        verdict: sum(n for (_, came), n in totals.actions.items() if came == verdict)
        for verdict in (RIGHT, WRONG, UNKNOWN)
    }
    whole = sum(by.values()) + len(totals.unjudged)
    open_ones = f", {len(totals.unjudged)} not judged yet" if totals.unjudged else ""
    if not whole:
        return ""
    return (
        f"of {plural(whole, 'action')} that it would have taken {by[RIGHT]} were right, {by[WRONG]} wrong, "
        f"{by[UNKNOWN]} unknown{open_ones}"
    )


def _rows(entries: Sequence[Entry]) -> Iterator[tuple[Entry, str, str]]:
    undone = {(entry["id"], entry["action"]) for entry in entries if entry["kind"] == INTENT}
    undone -= {(entry["id"], entry["action"]) for entry in entries if entry["kind"] == OUTCOME}
    for entry in entries:
        kind = entry["kind"]
        if kind == SUPERVISOR:
            yield entry, "supervisor", f"{entry['mode']} mode, process {entry['pid']} on {entry['host']}"
        elif kind == ATTEMPT:
            back = (
                "" if entry["resume_step"] is None else f", from the checkpoint of step {count(entry['resume_step'])}"
            )
            why = f", after {words(entry['reason'])}{back}" if entry["reason"] else ""
            yield entry, f"attempt {entry['attempt']}", f"begins{why}"
        elif kind == DECISION:
            yield entry, OUTCOMES.get(entry["outcome"], str(entry["outcome"])), _decision(entry)
        elif kind == OUTCOME:
            yield (
                entry,
                "done" if entry["ok"] else "not done",
                f"{words(entry['action'])}: {entry['text']} ({entry['id']})",
            )
        elif kind == INTENT and (entry["id"], entry["action"]) in undone:
            yield entry, "under way", f"{words(entry['action'])} ({entry['id']})"
        elif kind == ENDED:
            step = "" if entry["step"] is None else f" at step {count(entry['step'])}"
            yield entry, entry["how"], f"the attempt ended{step}: {entry['why']}"
        elif kind == RECOVERED:
            lost = f", and {plural(entry['lost_steps'], 'step')} were made again" if entry["lost_steps"] else ""
            yield entry, "recovered", f"attempt {entry['attempt']} makes steps {age(entry['seconds'])} later{lost}"
        elif kind == JUDGED:
            yield entry, entry["verdict"], f"to {words(entry['action'])}: {entry['why']} ({entry['id']})"
        elif kind == BLIND:
            yield entry, "blind" if not entry["over"] else "sees again", entry["why"]
        elif kind == IGNORED:
            yield entry, "not followed", entry["why"]
        elif kind == FAULT:
            yield entry, "fault", entry["text"]


def _decision(entry: Entry) -> str:
    ranks = f", rank {listed(list(map(str, entry['ranks'])))}" if entry["ranks"] else ""
    found = f"{words(entry['trigger'])}{ranks}"
    if entry["outcome"] == HELD:
        return f"{found}: {entry['why']} ({entry['id']})"
    why = f"{entry['why'][:1].upper()}{entry['why'][1:]}"
    return f"{words(entry['action'])}, as {found}: {entry['text']} {why}. ({entry['id']})"
