"""Whether hardly any of a GPU's memory is left."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.catalog import index as catalog
from tachograph.diagnosis import FULL_GPU_BYTES, FULL_GPU_RATIO
from tachograph.node.gpu.conclusions.readings import Finding, Readings
from tachograph.node.windows import Highest

WINDOW_SECONDS, KNOWN_SECONDS = 60.0, 150.0


class FullMemory:
    """Remembers the least that was in use of one GPU's memory."""

    def __init__(self) -> None:
        self._least = Highest(WINDOW_SECONDS)  # of what is in use, negated
        self._total = Highest(KNOWN_SECONDS)

    def look(self, gpu: Readings) -> None:
        """Note what is in use."""
        used, total = gpu.value(catalog.GPU_MEMORY_USED), gpu.value(catalog.GPU_MEMORY_TOTAL)
        if used is not None:
            self._least.note(gpu.now, -used)
        if total is not None:
            self._total.note(gpu.now, total)

    def findings(self, now: float) -> Iterator[Finding]:
        """Yield the share in use for all of a minute, if it leaves no room."""
        least, total = self._least.value(now), self._total.value(now)
        if least is not None and total and -least / total > min(1 - FULL_GPU_BYTES / total, FULL_GPU_RATIO):
            yield catalog.GPU_MEMORY_FULL, (), -least / total
