"""The journal in use: what it says of the past, decisions as they are written, and the mode that depends on it.

Where it cannot be written nothing is acted upon any more, since what is not on disk would be forgotten.
"""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tachograph.supervise.decision import Decision, Situation
from tachograph.supervise.journal import DECISION, FAULT, OUTCOME, RECOVERED, Journal
from tachograph.supervise.memory import remember, take
from tachograph.supervise.policy import LEAVE
from tachograph.supervise.run_seen import RunSeen
from tachograph.supervise.totals import HELD
from tachograph.supervise.unfinished import QUESTION

SHADOW, ASK, ACT = "shadow", "ask", "act"
MODES = (SHADOW, ASK, ACT)

MOST_FAULTS = 3
"""Faults of our own, after which this supervisor is trusted no more: one may pass, as a process that ends midway."""


class Ledger:
    """The journal of a run with its memory, and whether anything is done at all: `mode`."""

    def __init__(self, journal: Journal, mode: str, say: Callable[[str], None], now: Callable[[], float]) -> None:
        """`now` is the time of the day by a clock that nobody sets; what the journal has from after it is from now."""
        self.mode = self._given_mode = mode
        self.folder = journal.folder
        begin = now()
        self.memory = remember({**entry, "time": min(entry["time"], begin)} for entry in journal.entries)
        self._now = now
        self._journal, self._say, self._faults = journal, say, 0

    @property
    def has_failed(self) -> bool:
        """Whether nothing is done any more, or noted, by a fault of the supervisor's own or of its disk."""
        return self.mode != self._given_mode or self._faults >= MOST_FAULTS or bool(self._journal.full)

    def write(self, kind: str, **facts: object) -> bool:
        """Add to the journal; where that fails, nothing is acted upon any more."""
        if self._journal.write(kind, **facts):
            take(self.memory, {**self._journal.entries[-1], "time": self._now()})
            return True
        if self.mode != SHADOW:
            self.mode = SHADOW
            self._say(
                f"{self._journal.path} cannot be written: {self._journal.full}. The training goes on, and nothing is "
                "done any more until the supervisor is started again (shadow mode): make room on that disk"
            )
        return False

    def decided(self, situation: Situation, decision: Decision, outcome: str, guard: str = "", number: str = "") -> str:
        """Write a decision with all that is needed to carry it out, and return its id."""
        number = number or secrets.token_hex(3)
        finding = situation.finding
        self.write(
            DECISION, id=number, mode=self.mode, outcome=outcome, guard=guard, ranks=list(finding.ranks),
            step=situation.run.step, text=finding.text, why=decision.why,
            **restart_facts(situation, decision),
        )  # fmt: skip
        return number

    def hold(self, situation: Situation, guard: str, why: str) -> None:
        """Write and say that nothing is done about a finding."""
        self.decided(situation, Decision(LEAVE, why), HELD, guard)
        self._say(f"nothing is done about this, as {why}. {situation.finding.text}")

    def withdraw(self, number: str, run: str, why: str) -> None:
        """Write and say that a question about a run waits no more."""
        self.write(OUTCOME, id=number, action=QUESTION, ok=False, text=f"withdrawn: {why}")
        self._say(f"the question {number} about run {run} is withdrawn: {why}")

    def note_steps(self, first: int | None, seen: RunSeen) -> None:
        """Note that the training goes on after a restart, once it has made a step after the first that was seen."""
        step = seen.step
        if self.memory.recovering is None or first is None or step is None or step <= first:
            return
        found, best = self.memory.recovering
        seconds, lost = max(self._now() - found, 0.0), max((best or 0) - first, 0)
        self.write(
            RECOVERED, attempt=self.memory.attempts - 1, seconds=round(seconds, 1), lost_steps=lost,
            gpus=len(seen.ranks),
        )  # fmt: skip

    def fault(self, error: Exception) -> None:
        """Say that this supervisor has failed; after the third time nothing is acted upon any more."""
        self._faults += 1
        if self._faults >= MOST_FAULTS:
            self.mode = SHADOW
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        then = "nothing is done any more (shadow mode)" if self.mode == SHADOW else "it is looked at again"
        self._say(f"a fault of the supervisor's own: {said}. The training goes on, and {then}. Please report this")
        with suppress(Exception):
            self.write(FAULT, text=said)


def restart_facts(situation: Situation, decision: Decision) -> dict[str, object]:
    """Return what the journal has of a decision and of its intention, so that either is enough to carry it on."""
    finding = situation.finding
    return {
        "found": round(situation.now - situation.lasted, 3), "trigger": finding.trigger, "action": decision.action,
        "cost": decision.cost, "signature": list(finding.signature), "line": finding.line,
        "resume_step": decision.step,
        **({"nodes": list(finding.nodes)} if finding.nodes else {}),
        **({"skip": list(decision.skip)} if decision.skip else {}),
    }  # fmt: skip
