"""Whether a decision may be carried out: by the mode, by the journal, and by a person where one is asked."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tachograph.supervise.decision import Decision, Situation
from tachograph.supervise.journal import NAME, owners
from tachograph.supervise.ledger import ASK, SHADOW, Ledger
from tachograph.supervise.pending import PendingFinding
from tachograph.supervise.signals import EndSignals
from tachograph.supervise.totals import ASKED, DECIDED, WOULD
from tachograph.supervise.triggers import OF_ALERTS, words

WAIT_SECONDS = 0.5
"""How often a confirmation is looked for."""
CONFIRMATIONS = "confirmed"
"""The folder in which `tachograph supervise confirm` leaves a file for each decision."""


class Permission:
    """Asks for it; `beat` is called while a person is waited for."""

    def __init__(
        self,
        ledger: Ledger,
        say: Callable[[str], None],
        now: Callable[[], float],
        signals: EndSignals,
        beat: Callable[[], None],
    ) -> None:
        self._ledger, self._say, self._now, self._signals, self._beat = ledger, say, now, signals, beat

    def granted(
        self,
        situation: Situation,
        decision: Decision,
        pending: PendingFinding,
        *,
        renew: Callable[[], Decision],
        wait: float = 0.0,
    ) -> Decision | None:
        """Return the decision if it is to be carried out now: in act mode, or once a person has confirmed it.

        A run of which alerts tell goes on meanwhile, and saves: `renew` returns what would be decided now. Where that
        is another action, or the checkpoint to go back to is gone, the question is asked anew. `wait` is for how many
        seconds to wait for a person here.
        """
        mode = self._ledger.mode
        if situation.silence is not None:  # made while a restart waited for its cool-down
            self._ledger.hold(situation, *situation.silence)
            return None
        if mode == SHADOW:
            if not pending.is_done:
                pending.is_done = True
                self._ledger.decided(situation, decision, WOULD)
                self._say(
                    f"would {words(decision.action)} (shadow mode: nothing is done): {decision.why}. "
                    f"{situation.finding.text}"
                )
            return None
        if mode == ASK or decision.needs_person:
            if not self._agreed(situation, decision, pending, wait):
                return None
            if situation.finding.trigger in OF_ALERTS:
                asked, decision = decision, renew()
                if decision.action != asked.action or (decision.step is None and asked.step is not None):
                    self._ledger.withdraw(pending.number, situation.run.name, "what can be done has changed since")
                    pending.number, pending.decision = "", None
                    return None
        pending.number = self._ledger.decided(situation, decision, DECIDED, number=pending.number)
        return decision if self._ledger.mode == mode else None  # None: the journal has failed, and it is not on disk

    def _agreed(self, situation: Situation, decision: Decision, pending: PendingFinding, wait: float) -> bool:
        """Return whether a person has confirmed a decision, who is asked at first."""
        folder = self._ledger.folder
        if not pending.number:
            pending.decision = decision
            pending.number = self._ledger.decided(situation, decision, ASKED)
            with suppress(OSError):  # ours, so that an answer of root's is seen
                (folder / CONFIRMATIONS).mkdir(mode=0o700, exist_ok=True)
            if self._ledger.mode == SHADOW:  # the question is not on disk, so nobody can confirm it
                return False
            self._say(
                f"{situation.finding.text} Confirm “{words(decision.action)}” ({decision.why}) with: "
                f"tachograph supervise confirm {pending.number} --state {folder.absolute()}"
            )
        deadline = self._now() + wait
        while not is_confirmed(folder, pending.number):
            self._beat()
            if self._now() >= deadline or self._signals.came_within(WAIT_SECONDS):
                return False
        return True


def is_confirmed(folder: Path, number: str) -> bool:
    """Return whether the answer to a question is there: a file of root's or of the journal's owner, in their folder.

    Whoever else may write to the journal's folder could move a file of theirs into one of his own.
    """
    try:
        owned = owners(folder / NAME)
        place = os.open(folder / CONFIRMATIONS, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            around, found = os.fstat(place), os.stat(number, dir_fd=place, follow_symlinks=False)
        finally:
            os.close(place)
    except OSError:
        return False
    is_theirs = around.st_uid in owned and not around.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_theirs and stat.S_ISREG(found.st_mode) and found.st_uid in owned
