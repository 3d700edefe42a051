"""The end of a command: how its ranks ended, what its scheduler says, and which finding explains it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from tachograph.catalog.run import TOLD_REASONS
from tachograph.supervise.launcher import FT_LAUNCHER, Launcher, Outlook
from tachograph.supervise.memory import EXTERNAL, FINISHED
from tachograph.supervise.observer import RunObserver
from tachograph.supervise.run_seen import RunSeen, Silent, Unknown, nothing_seen
from tachograph.supervise.signals import ENDING, EndSignals
from tachograph.supervise.training import RunningAttempt
from tachograph.supervise.triggers import EXITED, FROZEN, HUNG, RunFinding, worst_of_nodes
from tachograph.text.humanize import listed

SETTLE_SECONDS, UNSEEN_SECONDS = 5.0, 1.0
"""How long the exporter may take to show how ranks ended whose command has, and ranks that it never showed."""
WAIT_SECONDS = 0.5
"""How often it is looked for."""
SCHEDULER_SECONDS, ASK_SCHEDULER_SECONDS = 120.0, 2.0
"""How long a scheduler may take to answer after a restart of its own; and how often it is asked again."""
LOST_SECONDS = 420.0
"""How long a silent node is waited for, or its scheduler to say that it is lost: Slurm takes 5 minutes by default."""

ASKED_TO_END = {-number for number in ENDING} | {128 + number for number in ENDING}
"""Statuses of a command that somebody asked to end."""

NOT_AGAIN = 93
"""The status with which NVIDIA's ft_launcher ends a job that its scheduler is not to start again."""


def known_outlook(
    launcher: Launcher, now: Callable[[], float], signals: EndSignals, left_out: Collection[str] = ()
) -> Outlook:
    """Return what the scheduler says, which may be restarted meanwhile."""
    deadline = now() + SCHEDULER_SECONDS
    while (outlook := launcher.outlook(left_out, fresh=True)).unknown and now() < deadline:
        if signals.came_within(ASK_SCHEDULER_SECONDS):
            break
    return outlook


class Aftermath:
    """The end of one command; `seen` is what is known of its ranks.

    `lost` are nodes that are lost as a whole, `withdrawn` is why the scheduler was ending it.
    """

    def __init__(
        self, run: str, observer: RunObserver, launcher: Launcher, now: Callable[[], float], signals: EndSignals
    ) -> None:
        """`now` is a monotonic clock."""
        self._run, self._observer, self._launcher, self._now, self._signals = run, observer, launcher, now, signals
        self._before = observer.seen
        self.seen: RunSeen | Unknown = Unknown("its ranks were not looked at")
        self.lost: Sequence[str] = ()
        self.withdrawn = ""

    def look(self, training: RunningAttempt) -> None:
        """Take in what is known of a command that has ended, once the exporter shows it, or after a while."""
        if training.status != 0:
            self.withdrawn = known_outlook(self._launcher, self._now, self._signals).withdrawn
        if not self.acquitted(training, training.status):
            self.seen = self._settled(training)
        if isinstance(self.seen, RunSeen):
            self._observer.note(self.seen)
        elif training.status != 0:
            self.lost = self._launcher.outlook((), fresh=True).lost

    def acquitted(self, training: RunningAttempt, status: int | None) -> str:
        """Return how the command ended if nothing failed, empty otherwise."""
        if status == 0:
            return FINISHED
        # The status of an srun is that of its tasks, which it asks to end itself after one has failed.
        was_asked = status in ASKED_TO_END and (not training.job or (status or 0) < 0)
        if self._signals.told or was_asked or self.withdrawn or self._declines(status):
            return EXTERNAL
        if isinstance(self.seen, Unknown) or (status or 0) < 0:  # a launcher that died: its ranks were ended by us
            return ""
        ends = [rank for rank in self.seen.ranks if rank.state in ("dead", "failed")]
        return EXTERNAL if ends and all(rank.end_reason in TOLD_REASONS for rank in ends) else ""

    def cause(self, training: RunningAttempt, status: int) -> tuple[RunFinding, RunSeen]:
        """Return the finding that explains the end, and the run as it was seen last.

        Where a signal ended a launcher, its ranks were ended after it, by us.
        """
        if isinstance(self.seen, Unknown):
            seen = self._before or nothing_seen(self._run)
            return self._loss(seen), seen
        launcher_died = (
            status < 0
            and self._before is not None
            and worst_of_nodes(self._before) is None
            and str(training.pid) not in {rank.pid for rank in self._before.ranks}
        )
        found = None if launcher_died else worst_of_nodes(self.seen)
        if found is not None and found.trigger not in (HUNG, FROZEN):
            return found, self.seen
        said = f"The command of run {self._run} ended with {status_words(status)}, and no rank failed before it."
        return RunFinding(EXITED, (), status_words(status), self.seen.step, "", said), self.seen

    def why(self, how: str, status: int) -> str:
        """Return in words why nothing failed."""
        if self.withdrawn:
            return self.withdrawn
        if how == FINISHED:
            return "the command has finished"
        if self._declines(status):
            return f"{FT_LAUNCHER} ended with status {status}, which says that the job is not to be started again"
        names = listed([signal.Signals(number).name for number in self._signals.told])
        return f"ended from outside, by {names or status_words(status)}: left alone, and no part of the budget"

    def _declines(self, status: int | None) -> bool:
        """Return whether a launcher with restarts of its own says that there should be no others."""
        return status == NOT_AGAIN and self._launcher.outlook(()).restarter == FT_LAUNCHER

    def _loss(self, seen: RunSeen) -> RunFinding:
        """Return the finding that nodes are lost as a whole, with whatever ran on them, as their scheduler says."""
        nodes = listed(self.lost)
        said = f"The command of run {self._run} has ended, and {nodes} is down or does not answer its scheduler."
        return RunFinding(EXITED, (), "node_lost", seen.step, "", said)

    def _settled(self, training: RunningAttempt) -> RunSeen | Unknown:
        """Return what is known once the exporter shows how the ranks have ended, or after a while."""
        deadline = self._now() + (SETTLE_SECONDS if self._before is not None else UNSEEN_SECONDS)
        lost = deadline + LOST_SECONDS
        while True:
            seen = self._observer.look_for_news(training)
            is_settled = isinstance(seen, RunSeen) and not seen.is_alive
            now = self._now()
            if is_settled or now >= (lost if isinstance(seen, Silent) else deadline):
                return seen
            if now >= deadline:
                outlook = self._launcher.outlook((), fresh=True)
                self.withdrawn = outlook.withdrawn
                if outlook.withdrawn or outlook.lost or self._signals.came_within(ASK_SCHEDULER_SECONDS):
                    return seen
            self._signals.came_within(WAIT_SECONDS)


def status_words(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return f"status {status}"
    with suppress(ValueError):
        return f"signal {signal.Signals(-status).name}"
    return f"signal {-status}"
