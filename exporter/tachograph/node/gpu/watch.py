"""One GPU under watch: what it last said, or why it says nothing."""

from __future__ import annotations

from functools import partial

from tachograph.catalog import index as catalog
from tachograph.node.driver.driver_thread import DriverThread
from tachograph.node.driver.nvml import DriverAbsent, DriverMismatch, GpuFailed
from tachograph.node.gpu.collector import GpuCollector
from tachograph.node.samples import GpuIdentity, Row

STARTING = "starting"
START_SECONDS = 10.0
"""How long a driver call may take while a GPU is opened: without persistence mode the driver needs seconds for it."""

CALL_SECONDS = 3.0
"""How long any other driver call may take before it counts as hung, or three intervals if they are longer.

However short the interval: a healthy call takes milliseconds, the slowest some tens, so one of 3 s is stuck, not slow.
"""


class GpuWatch:
    """Collects one GPU in a thread of its own, and tells at any moment what is known of it.

    A GPU is hung once one driver call has not returned for CALL_SECONDS, until its collection comes back. One whose
    calls all return, but so slowly that its collection is late, stays up: its last rows stand for `patience` seconds,
    after them it has none until new ones come.
    """

    def __init__(self, index: int, collector: GpuCollector, thread: DriverThread, patience: float) -> None:
        self.identity = GpuIdentity(str(index), "", "")
        self.driver_failure: DriverAbsent | DriverMismatch | None = None
        self.pids: tuple[int, ...] = ()
        self.gpm = ""
        self.gpm_reason = ""
        self.failures: dict[str, str] = {}
        self.notes: dict[str, str] = {}
        self.collector = collector
        self.thread = thread
        self.stuck_call, self.stuck_for = "", 0.0
        """The driver call that makes it hung, and for how many seconds it has not returned."""
        self._patience = patience
        self._info: Row | None = None
        self._rows: list[Row] = []
        self._word = STARTING
        self._why = ""

    @property
    def word(self) -> str:
        """Why it cannot be read, one of UNAVAILABLE_REASONS; "" if it can, STARTING until that is known."""
        return "hung" if self.stuck_call else self._word

    def look(self, calling: tuple[str, float] | None, now: float) -> None:
        """See which driver call its thread is in, and since when; None if it is in none."""
        if calling is None:
            return
        call, since = calling
        limit = max(self._patience, START_SECONDS if self._word == STARTING else CALL_SECONDS)
        if now - since >= limit:
            self.stuck_call, self.stuck_for = call, now - since

    def ask(self, driver_version: str, cuda_version: str) -> None:
        """Have it collected, unless its thread is still at the last collection."""
        if self.thread.since is None:
            self.thread.ask(partial(self.collector.collect, driver_version, cuda_version), self._take)

    def fail(self, word: str, why: str = "") -> None:
        """Say that it cannot be read; without a sentence of its own where the driver as a whole is the reason."""
        self._word, self._why = word, why
        self.pids, self.failures = (), {}

    def rows(self) -> list[Row]:
        """Return its samples: all of them if it can be read, else only who it is and why it cannot; none at first."""
        word = self.word
        labels = (self.identity.index, self.identity.uuid)
        if word == STARTING:
            return []
        if not word:
            return [(catalog.GPU_UP.name, labels, 1.0), *self._fresh_rows()]
        down = [(catalog.GPU_UP.name, labels, 0.0), (catalog.GPU_UNAVAILABLE.name, (*labels, word), 1.0)]
        return down if self._info is None else [*down, self._info]

    def trouble(self) -> dict[str, str]:
        """Return what cannot be read and why."""
        word = self.word
        if word in {"", STARTING}:
            return self.failures
        why = no_return(self.stuck_call) if word == "hung" else self._why
        return {f"GPU {self.identity.index} ({self.identity.uuid or 'never opened'})": why} if why else {}

    def _fresh_rows(self) -> list[Row]:
        if self.thread.busy_for() < self._patience:
            return self._rows
        return [] if self._info is None else [self._info]

    def _take(self, outcome: list[Row] | Exception) -> None:
        collector = self.collector
        self.stuck_call, self.stuck_for = "", 0.0
        self.identity = collector.identity
        self._info = collector.info_row
        self.notes = dict(collector.notes)
        if isinstance(outcome, list):
            self.failures, self.pids = dict(collector.failures), collector.pids
            labels = (self.identity.index, self.identity.uuid)
            failed = (catalog.GPU_READINGS_FAILED.name, labels, float(len(self.failures)))
            self._rows, self._word, self._why = [*outcome, failed], "", ""
            self.gpm, self.gpm_reason = collector.gpm, collector.gpm_reason
        elif isinstance(outcome, GpuFailed):
            self.fail(outcome.word, str(outcome))
        elif isinstance(outcome, (DriverAbsent, DriverMismatch)):
            self.driver_failure = outcome
        else:  # a fault of ours in one reading must not take the other GPUs off the page
            self.fail("error", f"{type(outcome).__name__}: {outcome}")


def no_return(call: str, seconds: float | None = None) -> str:
    """Return the sentence for a driver call that hangs; without seconds it stays the same from line to line."""
    so_long = "" if seconds is None else f" for {seconds:.0f} s"
    return f"driver call does not return{so_long}" + (f" ({call})" if call else "")
