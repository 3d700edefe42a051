"""Whether a GPU's PCIe link is slower than it should be, and whether it resends more packets than it may."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tachograph.catalog import index as catalog
from tachograph.diagnosis import BUSY_GPU_RATIO, UNKNOWN_LINK_REPLAYS
from tachograph.node.gpu.conclusions.readings import Finding, Readings
from tachograph.node.windows import Growth, Highest, Mean

NOW_SECONDS, KNOWN_SECONDS, REPLAYS_SECONDS = 120.0, 150.0, 300.0


class Pcie:
    """Remembers lanes, generations and replays of one GPU."""

    def __init__(self) -> None:
        self._lanes, self._generation = Highest(NOW_SECONDS), Highest(NOW_SECONDS)
        self._most_lanes, self._best_generation = Highest(KNOWN_SECONDS), Highest(KNOWN_SECONDS)
        self._limit_lanes, self._limit_generation = Highest(REPLAYS_SECONDS), Highest(REPLAYS_SECONDS)
        self._replays = Growth(REPLAYS_SECONDS)
        self._utilization = Mean(NOW_SECONDS)

    def look(self, gpu: Readings) -> None:
        """Note them."""
        for metric, kept in (
            (catalog.GPU_PCIE_WIDTH, (self._lanes, self._limit_lanes)),
            (catalog.GPU_PCIE_GENERATION, (self._generation, self._limit_generation)),
            (catalog.GPU_PCIE_WIDTH_MAX, (self._most_lanes,)),
            (catalog.GPU_PCIE_GENERATION_MAX, (self._best_generation,)),
            (catalog.GPU_PCIE_REPLAYS, (self._replays,)),
            (catalog.GPU_UTILIZATION, (self._utilization,)),
        ):
            if (value := gpu.value(metric)) is not None:
                for each in kept:
                    each.note(gpu.now, value)

    def findings(self, now: float) -> Iterator[Finding]:
        """Yield what is amiss."""
        speed = self._speed(now)
        if speed < 1:
            yield catalog.GPU_PCIE_SPEED, (), speed
        replays = self._replays.per_second(now) or 0.0
        if 60 * replays > self._replay_limit(now):
            yield catalog.GPU_PCIE_REPLAY_RATE, (), replays

    def _speed(self, now: float) -> float:
        """Return what is left: by lanes, otherwise by generations, each of half the speed of the next.

        An idle GPU lowers its generation.
        """
        lanes, most = self._lanes.value(now), self._most_lanes.value(now)
        if lanes is not None and most and lanes < most:
            return lanes / most
        generation, best = self._generation.value(now), self._best_generation.value(now)
        if generation is not None and best is not None and (self._utilization.value(now) or 0.0) > BUSY_GPU_RATIO:
            return 2 ** (generation - best)
        return 1.0

    def _replay_limit(self, now: float) -> float:
        """Return how many packets the link may resend in a minute."""
        lanes, generation = self._limit_lanes.value(now), self._limit_generation.value(now)
        if lanes is None or generation is None:
            return UNKNOWN_LINK_REPLAYS
        return replay_limit(lanes, generation)


def replay_limit(lanes: float, generation: float) -> float:
    """Return DCGM's limit of replays in a minute: per lane 0.15 on generation 1, 0.3 on 2, 0.48 on 3, then twice that.

    Of DcgmGPUHardwareLimits.h, DCGM 4.6.
    """
    return math.ceil(lanes * (0.06 if generation >= 3 else 0.075) * 2**generation)
