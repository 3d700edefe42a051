"""Reads the node's ports in a thread of its own: an adapter whose firmware hangs blocks nothing else."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from tachograph.node.driver.driver_thread import DriverThread, Outcomes, gather
from tachograph.node.nic.port_reading import PortReading
from tachograph.node.nic.sysfs import read_ports

FULLY_SECONDS = 30.0
HUNG_SECONDS = 15.0

_log = logging.getLogger(__name__)


class SysfsPorts:
    """The ports below a sysfs; speeds and errors are read every 30 s."""

    def __init__(self, sysfs: Path, clock: Callable[[], float]) -> None:
        self._sysfs, self._clock = sysfs, clock
        self._outcomes: Outcomes = SimpleQueue()
        self._thread = DriverThread("ports", self._outcomes, clock)
        self._fully = -math.inf
        self._read: Sequence[PortReading] | None = None
        self._trouble = ""

    def take(self) -> Sequence[PortReading] | None:
        """Return what has been read; if that was taken before, have it read again and return None."""
        gather(self._outcomes, (), 0)
        read, self._read = self._read, None
        if read is None and self._thread.since is None:
            now = self._clock()
            fully = now - self._fully >= FULLY_SECONDS
            self._fully = now if fully else self._fully
            self._thread.ask(partial(read_ports, self._sysfs, fully=fully), self._note)
        return read

    def trouble(self) -> str:
        """Return "hung" if a file has not been read for 15 s, "error" after a fault of ours."""
        return "hung" if self._thread.busy_for() >= HUNG_SECONDS else self._trouble

    def _note(self, outcome: list[PortReading] | Exception) -> None:
        if not isinstance(outcome, Exception):
            self._read, self._trouble = outcome, ""
            return
        if not self._trouble:
            _log.error("network ports cannot be read", exc_info=outcome)
        self._trouble = "error"
