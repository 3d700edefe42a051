"""For how much of the time a GPU's clocks have been held down, by cause."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.catalog import index as catalog
from tachograph.diagnosis import SLOWDOWN_RATIO, slowdown_cause
from tachograph.node.gpu.conclusions.readings import Finding, Readings
from tachograph.node.windows import Growth, Mean

WINDOW_SECONDS = 120.0
COUNTED, ACTIVE = catalog.GPU_CLOCK_EVENT_SECONDS, catalog.GPU_CLOCK_EVENT


class Slowdowns:
    """Remembers for which reasons, and how much, the clocks of one GPU were held down.

    As the driver counts it, or else, for causes that it does not count, as readings found them.
    """

    def __init__(self) -> None:
        self._counted: dict[str, Growth] = {}
        self._active: dict[str, Mean] = {}

    def look(self, gpu: Readings) -> None:
        """Note the reasons."""
        for (reason,), seconds in gpu.each(COUNTED):
            if slowdown_cause(reason):
                self._counted.setdefault(reason, Growth(WINDOW_SECONDS)).note(gpu.now, seconds)
        for (reason,), active in gpu.each(ACTIVE):
            if slowdown_cause(reason):
                self._active.setdefault(reason, Mean(WINDOW_SECONDS)).note(gpu.now, active)

    def findings(self, now: float) -> Iterator[Finding]:
        """Yield the share of the time for each cause that took enough of it; two kinds of heat may coincide."""
        counted: dict[str, float] = {}
        for reason, growth in self._counted.items():
            if (share := growth.per_second(now)) is not None:
                cause = slowdown_cause(reason)
                counted[cause] = max(counted.get(cause, 0.0), share)
        found: dict[str, float] = {}
        for reason, mean in self._active.items():
            cause = slowdown_cause(reason)
            found[cause] = max(found.get(cause, 0.0), mean.value(now) or 0.0)
        for cause, share in (found | counted).items():
            if share >= SLOWDOWN_RATIO:
                yield catalog.GPU_SLOWDOWN, (cause.replace(" ", "_"),), min(share, 1.0)
