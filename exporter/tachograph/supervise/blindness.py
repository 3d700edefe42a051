"""For how long nothing has been known of a run, and that this is said once."""

from __future__ import annotations

from collections.abc import Callable

from tachograph.supervise.journal import BLIND
from tachograph.supervise.ledger import Ledger
from tachograph.supervise.run_seen import RunSeen, Unknown
from tachograph.text.humanize import age

BLIND_SECONDS = 120.0
"""After so long without findings that is said: a training takes as long to make its recorder."""


class Blindness:
    """Says that nothing has been known, and that something is again; `now` is a monotonic clock."""

    def __init__(self, run: str, ledger: Ledger, say: Callable[[str], None], now: Callable[[], float]) -> None:
        self._run, self._ledger, self._say, self._now = run, ledger, say, now
        self._since: float | None = None
        self.is_said = False

    @property
    def is_blind(self) -> bool:
        """Whether nothing was known at the last look."""
        return self._since is not None

    @property
    def seconds(self) -> float:
        """For how long nothing has been known."""
        return 0.0 if self._since is None else self._now() - self._since

    def begin(self) -> None:
        """Another attempt begins."""
        self._since, self.is_said = None, False

    def note(self, seen: RunSeen | Unknown) -> None:
        """Take in what a look has found."""
        if isinstance(seen, RunSeen):
            if self.is_said:
                self._ledger.write(BLIND, over=True, why="the exporter shows the run again")
                self._say(f"the exporter shows run {self._run} again")
            self.begin()
            return
        self._since = self._now() if self._since is None else self._since
        if self.seconds >= BLIND_SECONDS and not self.is_said:
            self.is_said = True
            self._ledger.write(BLIND, over=False, why=seen.why)
            self._say(
                f"for {age(self.seconds)} nothing has been known of run {self._run}, and nothing is done until it is: "
                f"{seen.why}. If the script names its run itself, give that name with --run"
            )
