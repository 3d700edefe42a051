"""All that a node concludes of its GPUs from their readings and their past."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tachograph.catalog import index as catalog
from tachograph.node.gpu.conclusions.full_memory import FullMemory
from tachograph.node.gpu.conclusions.nvlinks import NvLinks
from tachograph.node.gpu.conclusions.pcie import Pcie
from tachograph.node.gpu.conclusions.readings import Readings
from tachograph.node.gpu.conclusions.slowdowns import Slowdowns
from tachograph.node.gpu.conclusions.sm_clocks import SmClock, clocks_of_runs
from tachograph.node.samples import GpuSnapshot, Sample

EVERY_SECONDS = 5.0
FORGET_SECONDS = 86_400.0

READ = frozenset(
    metric.name
    for metric in (
        catalog.GPU_CLOCK_EVENT_SECONDS, catalog.GPU_CLOCK_EVENT, catalog.GPU_NVLINK_LINKS,
        catalog.GPU_NVLINK_LINKS_ACTIVE, catalog.GPU_NVLINK_ERRORS, catalog.GPU_PCIE_WIDTH,
        catalog.GPU_PCIE_WIDTH_MAX, catalog.GPU_PCIE_GENERATION, catalog.GPU_PCIE_GENERATION_MAX,
        catalog.GPU_PCIE_REPLAYS, catalog.GPU_UTILIZATION, catalog.GPU_CLOCK, catalog.GPU_MEMORY_USED,
        catalog.GPU_MEMORY_TOTAL,
    )
)  # fmt: skip


class _Gpu:
    """The past of one GPU."""

    def __init__(self) -> None:
        self.index = ""
        self.seen = -math.inf
        self.slowdowns, self.links, self.pcie, self.memory = Slowdowns(), NvLinks(), Pcie(), FullMemory()
        self.clock = SmClock()

    def look(self, readings: Readings) -> None:
        """Note its readings."""
        for part in (self.slowdowns, self.links, self.pcie, self.memory, self.clock):
            part.look(readings)


class GpuConclusions:
    """Looks at the node's GPUs every five seconds. What it finds is on the page only while it is so."""

    def __init__(self) -> None:
        self._looked = -math.inf
        self._gpus: dict[str, _Gpu] = {}

    def is_due(self, now: float) -> bool:
        """Return whether it is time to look again."""
        return now - self._looked >= EVERY_SECONDS

    def look(self, snapshot: GpuSnapshot, now: float) -> None:
        """Note the readings of a collection."""
        self._looked = now
        for (index, uuid), values in _by_gpu(snapshot.samples).items():
            gpu = self._gpus.setdefault(uuid, _Gpu())
            gpu.index, gpu.seen = index, now
            gpu.look(Readings(now, values))
        for uuid in [uuid for uuid, gpu in self._gpus.items() if gpu.seen < now - FORGET_SECONDS]:
            del self._gpus[uuid]

    def samples(self, now: float) -> Iterator[Sample]:
        """Yield what is amiss now."""
        up = [links for gpu in self._gpus.values() if (links := gpu.links.up(now)) is not None]
        for uuid, gpu in self._gpus.items():
            for metric, own, value in (
                *gpu.slowdowns.findings(now),
                *gpu.links.findings(now, up),
                *gpu.pcie.findings(now),
                *gpu.memory.findings(now),
            ):
                yield Sample(metric, (gpu.index, uuid, *own), value)

    def clocks(self, on_gpus: Iterable[Sample], now: float) -> Iterator[Sample]:
        """Yield the clocks that rules compare, given the samples of the ranks on GPUs."""
        working = {uuid: hertz for uuid, gpu in self._gpus.items() if (hertz := gpu.clock.working(now)) is not None}
        return clocks_of_runs(working, on_gpus)


def _by_gpu(samples: Iterable[Sample]) -> dict[tuple[str, str], dict[str, dict[tuple[str, ...], float]]]:
    """Return the readings that conclusions rest on, by GPU, family and label values; what is not a number is none."""
    found: dict[tuple[str, str], dict[str, dict[tuple[str, ...], float]]] = {}
    for metric, labels, value in samples:  # few calls here: 850 samples every five seconds
        if metric.name in READ and labels[1] and not math.isnan(value):
            found.setdefault((labels[0], labels[1]), {}).setdefault(metric.name, {})[labels[2:]] = value
    return found
