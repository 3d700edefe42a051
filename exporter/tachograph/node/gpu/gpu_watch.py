"""One GPU under watch: its last reading, or why there is none."""

from __future__ import annotations

from functools import partial

from tachograph.node.driver.driver_thread import DriverThread
from tachograph.node.driver.nvml import DriverAbsent, DriverMismatch
from tachograph.node.gpu.gpu_collector import GpuCollector
from tachograph.node.gpu.worker_protocol import STARTING, GpuReading

START_SECONDS = 10.0
"""How long a driver call may take while a GPU is opened: without persistence mode the driver needs seconds for it. It
opens one after the other, so each further GPU of the node may take CALL_SECONDS more."""

CALL_SECONDS = 3.0
"""How long any other driver call may take before it counts as hung, or three intervals if they are longer.

However short the interval: a healthy call takes milliseconds, the slowest some tens, so one of 3 s is stuck, not slow.
"""


class GpuWatch:
    """Collects one GPU in a thread of its own, and knows at any moment what to report of it.

    A GPU is hung once one driver call has not returned for CALL_SECONDS, until its collection comes back. One whose
    calls all return, but so slowly that its collection is late, stays up: its last values stand for `patience` seconds,
    after them it has none until new ones come.
    """

    def __init__(self, collector: GpuCollector, thread: DriverThread, patience: float) -> None:
        self.driver_failure: DriverAbsent | DriverMismatch | None = None
        self.collector = collector
        self.thread = thread
        self.stuck_call, self.stuck_for = "", 0.0
        """The driver call that makes it hung, and for how many seconds it has not returned."""
        self._patience = patience
        self._last = collector.known

    def look(self, calling: tuple[str, float] | None, now: float, gpus: int) -> None:
        """See which driver call its thread is in, and since when; None if it is in none. The node has so many GPUs."""
        if calling is None:
            return
        call, since = calling
        opening = START_SECONDS + (gpus - 1) * CALL_SECONDS
        limit = max(self._patience, opening if self._last.word == STARTING else CALL_SECONDS)
        if now - since >= limit:
            self.stuck_call, self.stuck_for = call, now - since

    def ask(self, driver_version: str, cuda_version: str) -> None:
        """Have it collected, unless its thread is still at the last collection."""
        if self.thread.since is None:
            self.thread.ask(partial(self.collector.collect, driver_version, cuda_version), self._take)

    def fail(self, word: str, why: str = "") -> None:
        """Report that it cannot be read; without a sentence where the driver as a whole is the reason."""
        self._last = self.collector.known.down(word, why)

    def reading(self) -> GpuReading:
        """Return what is known of it now."""
        if self.stuck_call:
            return self._last.down("hung", no_return(self.stuck_call))
        return self._last.stale() if self.thread.busy_for() >= self._patience else self._last

    def _take(self, outcome: GpuReading | Exception) -> None:
        self.stuck_call, self.stuck_for = "", 0.0
        if isinstance(outcome, GpuReading):
            self._last = outcome
        elif isinstance(outcome, (DriverAbsent, DriverMismatch)):
            self.driver_failure = outcome
        else:  # a fault of ours in one reading must not take the other GPUs off the page
            self.fail("error", f"{type(outcome).__name__}: {outcome}")


def no_return(call: str, seconds: float | None = None) -> str:
    """Return the sentence for a driver call that hangs; without seconds it stays the same from line to line."""
    words = "driver call does not return" if seconds is None else f"driver call has not returned for {seconds:.0f} s"
    return words + (f" ({call})" if call else "")
