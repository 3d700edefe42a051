"""Judges later what shadow mode would have done, by what happened to the run without it.

Wrong: the run made steps again, or finished, and nobody had restarted it. Right: it ended by itself, or what was found
stood until somebody ended it. Else it is not known.
"""

from __future__ import annotations

from collections.abc import Callable

from tachograph.supervise.journal import JUDGED, Entry
from tachograph.supervise.ledger import Ledger
from tachograph.supervise.memory import EXTERNAL, FINISHED, LOST
from tachograph.supervise.run_seen import RunSeen
from tachograph.supervise.triggers import DIVERGING, LEARNING, SILENT_CORRUPTION, SLOW, SPIKE, RunFinding
from tachograph.text.humanize import age, count

RIGHT, WRONG, UNKNOWN = "right", "wrong", "unknown"

GONE_BY_ITSELF = {
    SLOW: (WRONG, "nothing holds the run up any more"),
    DIVERGING: (UNKNOWN, "the loss no longer climbs, and may or may not have recovered"),
    SILENT_CORRUPTION: (UNKNOWN, "the ranks agree again, and which of their numbers is right is not known"),
}
"""Of a trigger while which a run makes steps: the verdict once its alert is over without us."""
GOING_ON = tuple(GONE_BY_ITSELF)

LONGEST_SECONDS = 86_400.0
"""After a decision, within which it is judged: whoever ends a run that stands in the night does it in the morning."""

LEVEL_SECONDS = 60.0
"""After a decision about a spike: one that is over by then may have recovered; a later end is that of the 200 steps and
two minutes after which the recorder takes the new level for the usual one."""

STALE_SECONDS = 60.0
"""Since the run was last seen, after which it is not known what somebody ended."""


class Hindsight:
    """The judgement of the decisions that a journal has; it writes each once."""

    def __init__(self, ledger: Ledger, now: Callable[[], float]) -> None:
        self._ledger, self._now = ledger, now
        self._standing: tuple[str, float] | None = None
        """The trigger that held at the last look, and when that was."""

    def look(self, seen: RunSeen, finding: RunFinding | None) -> None:
        """Judge by what is known of a run that goes on."""
        self._standing = None if finding is None else (finding.trigger, self._now())
        for decision in list(self._ledger.memory.totals.unjudged.values()):
            before, step = decision["step"], seen.step
            if decision["trigger"] in GOING_ON:
                self._look_at_what_goes_on(decision, seen, finding)
            elif finding is None and decision["trigger"] == SPIKE and self._now() - decision["time"] >= LEVEL_SECONDS:
                self._write(decision, RIGHT, "the loss has stayed where it went, which counts as its usual level now")
            elif finding is None and step is not None and (before is None or step > before):
                self._write(decision, WRONG, f"the run made steps again by itself, and is at step {count(step)}")
            elif self._now() - decision["time"] > LONGEST_SECONDS:
                self._write(decision, UNKNOWN, f"nothing has ended it within {age(LONGEST_SECONDS)}")

    def _look_at_what_goes_on(self, decision: Entry, seen: RunSeen, finding: RunFinding | None) -> None:
        """Judge by whether it goes away by itself, and where nobody knows of it not at all."""
        if finding is None and seen.alerts is not None:
            self._write(decision, *GONE_BY_ITSELF[decision["trigger"]])
        elif self._now() - decision["time"] > LONGEST_SECONDS:
            if seen.alerts is not None:
                self._write(decision, RIGHT, f"it stood for {age(LONGEST_SECONDS)}")
            else:
                self._write(decision, UNKNOWN, f"after {age(LONGEST_SECONDS)} it is not known whether it still stands")

    def end(self, how: str) -> None:
        """Judge by the end of the attempt, of which the journal has been written."""
        for decision in list(self._ledger.memory.totals.unjudged.values()):
            self._write(decision, *self._by_end(decision["trigger"], how))
        self._standing = None

    def catch_up(self) -> None:
        """Judge what an earlier supervisor left: by the end of its attempt, which is all that is known of it."""
        last = self._ledger.memory.totals.last_end
        if last is not None:
            self.end(last["how"])

    def _by_end(self, trigger: str, how: str) -> tuple[str, str]:
        standing, at = self._standing or ("", 0.0)
        stood = standing != "" and self._now() - at <= STALE_SECONDS
        if how == FINISHED:
            if trigger not in (*LEARNING, *GOING_ON):
                return WRONG, "the command finished by itself"
            said = "it finished with its loss in trouble" if trigger in LEARNING else "it stood until the run finished"
            return (RIGHT, said) if stood else (UNKNOWN, "the command finished")
        if how == LOST:
            return UNKNOWN, "its supervisor ended, and the training with it"
        if how == EXTERNAL:
            return (
                (RIGHT, "what was found stood until somebody ended the run")
                if stood
                else (UNKNOWN, "somebody ended the run, and it is not known whether what was found still stood")
            )
        if trigger in GOING_ON and not stood:
            return UNKNOWN, "the attempt failed, and it is not known whether what was found still stood"
        return RIGHT, "the attempt failed by itself"

    def _write(self, decision: Entry, verdict: str, why: str) -> None:
        self._ledger.write(JUDGED, id=decision["id"], action=decision["action"], verdict=verdict, why=why)
