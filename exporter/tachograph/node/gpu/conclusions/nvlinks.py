"""Whether NVLinks of a GPU are down, and whether they make more errors than they should."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from tachograph import diagnosis
from tachograph.catalog import index as catalog
from tachograph.node.gpu.conclusions.readings import Finding, Readings
from tachograph.node.windows import Growth, Highest

UP_SECONDS, DAY_SECONDS = 120.0, 86_400.0
KNOWN_SECONDS = 150.0
ERRORS_SECONDS = 300.0


class NvLinks:
    """Remembers the links of one GPU that were up, and the errors on all of them.

    Not every link of a model is wired (bridges, boards of four), so the total does not tell how many should be up.
    """

    def __init__(self) -> None:
        self._all = Highest(KNOWN_SECONDS)
        self._up, self._up_within_a_day = Highest(UP_SECONDS), Highest(DAY_SECONDS)
        self._errors: dict[str, Growth] = {}

    def look(self, gpu: Readings) -> None:
        """Note links and errors."""
        links, up = gpu.value(catalog.GPU_NVLINK_LINKS), gpu.value(catalog.GPU_NVLINK_LINKS_ACTIVE)
        if links is not None:
            self._all.note(gpu.now, links)
        if up is not None:
            self._up.note(gpu.now, up)
            self._up_within_a_day.note(gpu.now, up)
        for (error,), count in gpu.each(catalog.GPU_NVLINK_ERRORS):
            self._errors.setdefault(error, Growth(ERRORS_SECONDS)).note(gpu.now, count)

    def up(self, now: float) -> float | None:
        """Return how many links are up, or were within two minutes: a reset takes one."""
        return self._up.value(now)

    def findings(self, now: float, up_on_node: Sequence[float]) -> Iterator[Finding]:
        """Yield what is amiss, given how many links are up on each GPU of the node."""
        links, up, before = self._all.value(now), self.up(now), self._up_within_a_day.value(now)
        if links is not None and up is not None and before is not None and up < max(before, median(up_on_node)):
            yield catalog.GPU_NVLINKS_DOWN, (), links - up
        for error, growth in self._errors.items():
            rate = growth.per_second(now)
            if rate and 60 * rate >= diagnosis.nvlink_errors_per_minute(error):
                yield catalog.GPU_NVLINK_ERROR_RATE, (error,), rate
