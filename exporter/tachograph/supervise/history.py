"""`tachograph supervise history`: the journal of a run as a table, the newest entry last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tachograph.humanize import count, listed, utc
from tachograph.supervise.journal import ATTEMPT, BLIND, DECISION, ENDED, FAULT, INTENT, OUTCOME, SUPERVISOR, Entry
from tachograph.supervise.memory import ASKED, DECIDED, EVER, FINISHED, HELD, HOUR, WOULD, remember

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
    return found


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
            why = f", after {_words(entry['reason'])}{back}" if entry["reason"] else ""
            yield entry, f"attempt {entry['attempt']}", f"begins{why}"
        elif kind == DECISION:
            yield entry, OUTCOMES.get(entry["outcome"], str(entry["outcome"])), _decision(entry)
        elif kind == OUTCOME:
            yield (
                entry,
                "done" if entry["ok"] else "not done",
                f"{_words(entry['action'])}: {entry['text']} ({entry['id']})",
            )
        elif kind == INTENT and (entry["id"], entry["action"]) in undone:
            yield entry, "under way", f"{_words(entry['action'])} ({entry['id']})"
        elif kind == ENDED:
            step = "" if entry["step"] is None else f" at step {count(entry['step'])}"
            yield entry, entry["how"], f"the attempt ended{step}: {entry['why']}"
        elif kind == BLIND:
            yield entry, "blind" if not entry["over"] else "sees again", entry["why"]
        elif kind == FAULT:
            yield entry, "fault", entry["text"]


def _decision(entry: Entry) -> str:
    ranks = f", rank {listed(list(map(str, entry['ranks'])))}" if entry["ranks"] else ""
    found = f"{_words(entry['trigger'])}{ranks}"
    if entry["outcome"] == HELD:
        return f"{found}: {entry['why']} ({entry['id']})"
    return f"{_words(entry['action'])}, as {found}: {entry['text']} {entry['why'].capitalize()}. ({entry['id']})"


def _words(name: str) -> str:
    return name.replace("_", " ")
