"""Carries a decision out: each action has its intention in the journal before and its outcome after it."""

from __future__ import annotations

from collections.abc import Callable

from tachograph.supervise.decision import Decision, Situation
from tachograph.supervise.evidence import NOT_KEPT
from tachograph.supervise.journal import INTENT, OUTCOME
from tachograph.supervise.ledger import Ledger, restart_facts
from tachograph.supervise.policy import KEEP_EVIDENCE, LEAVE, NOTIFY, Rule
from tachograph.supervise.run_seen import RunSeen
from tachograph.supervise.training import AttemptEnd, RunningAttempt
from tachograph.supervise.triggers import words

DONE, NOT_DONE, UNKILLABLE = "done", "not done", "processes are left that cannot be killed"
"""What comes of carrying a decision out."""

CANNOT_END = {
    False: "some of its processes cannot be killed, because they wait in the kernel, for a GPU or a file system. "
    "Restart the node, or start the run on another one",
    True: "its scheduler does not agree to end it: see whether it answers, and whether this user may delete the job",
}
"""Why a training could not be ended, by whether it outlives its supervisor."""

Keep = Callable[[str, RunSeen], str]
"""Keeps the evidence of a decision; returns in words where it is, or why there is none."""


class Deeds:
    """The side effects."""

    def __init__(self, ledger: Ledger, keep: Keep, say: Callable[[str], None]) -> None:
        self._ledger, self._keep, self._say = ledger, keep, say

    def carry_out(
        self,
        number: str,
        decision: Decision,
        situation: Situation,
        rule: Rule,
        *,
        training: RunningAttempt,
        still_holds: Callable[[], bool],
    ) -> str:
        """Return one of three: done; not done, as it cannot be noted or no longer holds; or processes are left."""
        notice = _notice(situation, decision)
        deeds: dict[str, Callable[[], str]] = {
            NOTIFY: lambda: self._notify(notice),
            KEEP_EVIDENCE: lambda: self._keep(number, situation.run),
        }
        for action in rule.first:
            if not self._effect(number, deeds[action], action=action, text=notice):
                return NOT_DONE
        if decision.action == LEAVE:
            return DONE
        if not situation.ended and not still_holds():
            return NOT_DONE
        ended: list[AttemptEnd] = []

        def end() -> str:
            ended.append(training.wait() if situation.ended else training.end())
            return UNKILLABLE if ended[0].left < 0 else ended[0].note or "the training has ended"

        if not self._effect(number, end, **restart_facts(situation, decision)):
            return NOT_DONE
        return UNKILLABLE if ended[0].left < 0 else DONE

    def _effect(self, number: str, do: Callable[[], str], **facts: object) -> bool:
        """Do something with its intention written before and its outcome after; return False if it was not done."""
        action = facts["action"]
        if not self._ledger.write(INTENT, id=number, **facts):
            return False
        text = do()
        ok = text != UNKILLABLE and not text.startswith(NOT_KEPT)
        self._ledger.write(OUTCOME, id=number, action=action, ok=ok, text=text)
        return True

    def _notify(self, notice: str) -> str:
        self._say(notice)
        return "written to standard error"


def _notice(situation: Situation, decision: Decision) -> str:
    remedy = f" What usually helps: {situation.finding.remedy}" if situation.finding.remedy else ""
    return f"{situation.finding.text} To be done: {words(decision.action)}, {decision.why}.{remedy}"
