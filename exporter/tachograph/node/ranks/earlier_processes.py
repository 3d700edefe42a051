"""The facts that are remembered of a rank's process once the next one is there, or the rank has been forgotten."""

from __future__ import annotations

from typing import NamedTuple

from tachograph.node.ranks.frames import Hello
from tachograph.node.ranks.rank import Rank
from tachograph.node.ranks.saved_totals import SavedProcess, SavedRank

MAX_USERS = 64
MAX_FORGOTTEN = 512
"""Forgotten ranks of one user whose last step is kept, since a requeued job may come back after hours: more than any
node has, fewer than a malicious sender can make up."""


class EarlierProcess(NamedTuple):
    """The remembered facts of an earlier process of a rank: its step, its last heartbeat (Unix time), how it ended.

    `heard` is the time of the heartbeat by the monotonic clock, which all exporters of one boot share; None if it was
    saved by one that did not say.
    """

    step: int | None
    heartbeat: float
    attempt: int
    finished: bool
    heard: float | None = None

    @classmethod
    def of(cls, rank: Rank) -> EarlierProcess:
        """Return the facts of a rank's present process."""
        return cls(rank.step, rank.heartbeat, rank.hello.attempt, rank.outcome == "finished", rank.heard)

    @classmethod
    def restored(cls, saved: SavedProcess | SavedRank) -> EarlierProcess:
        """Return the facts of a process known to a previous exporter."""
        return cls(saved.step, saved.heartbeat, saved.attempt, saved.finished, saved.heard)

    def continues_in(self, hello: Hello) -> bool:
        """Return whether a hello continues it: not after it finished, unless the hello has a later attempt."""
        return not self.finished or hello.attempt > self.attempt


class EarlierProcesses:
    """Those of ranks that were forgotten: each user's own, so that nobody takes away another's."""

    def __init__(self) -> None:
        self._of: dict[int, dict[tuple[str, int], EarlierProcess]] = {}

    def pop(self, uid: int, run: str, rank: int) -> EarlierProcess | None:
        """Return the last process of a rank that is back."""
        return self._of.get(uid, {}).pop((run, rank), None)

    def remember(self, uid: int, run: str, rank: int, process: EarlierProcess) -> None:
        """Remember the last process of a rank, and forget the oldest where they are too many."""
        own = self._of.setdefault(uid, {})
        own[run, rank] = process
        if len(own) > MAX_FORGOTTEN:
            del own[next(iter(own))]
        if len(self._of) > MAX_USERS:
            del self._of[next(iter(self._of))]

    def saved(self) -> list[SavedRank]:
        """Return what `restore` needs."""
        return [
            SavedRank(uid, run, rank, *process) for uid, own in self._of.items() for (run, rank), process in own.items()
        ]

    def restore(self, saved: SavedRank) -> None:
        """Remember what a previous exporter did."""
        self.remember(saved.uid, saved.run, saved.rank, EarlierProcess.restored(saved))
