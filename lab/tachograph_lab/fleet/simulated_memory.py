"""Device and host memory of the ranks, sized like a 70-billion-parameter model on H100s."""

from __future__ import annotations

from tachograph_lab.fleet.simulated_gpus import memory_of
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.faults import Leak

ALLOCATED, PEAK, INACTIVE = 0.45, 0.70, 0.02
"""Shares of the board's memory; the scenario sets how much is reserved."""

EVAL_BYTES = 2e9
HOST_BYTES, SAVING_BYTES = 2.4e10, 6e9
"""Resident memory of the rank's process, and what a checkpoint adds while it is being written."""


class SimulatedMemory:
    """The memory of each rank: evaluation and checkpoints take it for a while, leaks keep it."""

    def __init__(self, scenario: Scenario) -> None:
        self._board = memory_of(scenario.fleet.gpu)
        self._reserved = scenario.memory.reserved
        self._leaks: dict[int, list[Leak]] = {}
        for fault in scenario.faults:
            if isinstance(fault, Leak):
                for rank in fault.ranks:
                    self._leaks.setdefault(rank, []).append(fault)

    def reserved(self, rank: int, now: float, phase: str) -> float:
        """Return the bytes that the allocator holds."""
        base = (0.1 if phase == "init" else self._reserved) * self._board + (EVAL_BYTES if phase == "eval" else 0.0)
        return float(int(min(0.985 * self._board, base + self._leaked(rank, now, "device"))))

    def metrics(self, rank: int, now: float, phase: str) -> dict[str, object]:
        """Return the memory metrics that the rank reports."""
        reserved = self.reserved(rank, now, phase)
        host = HOST_BYTES + self._leaked(rank, now, "host") + (SAVING_BYTES if phase == "checkpoint" else 0.0)
        if phase == "init":
            return {"memory_reserved_bytes": reserved, "host_memory_bytes": int(host / 2)}
        leaked = self._leaked(rank, now, "device")
        return {
            "memory_allocated_bytes": int(ALLOCATED * self._board + leaked),
            "memory_reserved_bytes": reserved,
            "memory_peak_bytes": int(min(reserved, PEAK * self._board + leaked)),
            "memory_inactive_bytes": int(INACTIVE * self._board),
            "host_memory_bytes": int(host),
        }

    def _leaked(self, rank: int, now: float, kind: str) -> float:
        return sum(
            leak.bytes_per_hour * (min(now, leak.until) - leak.at) / 3600
            for leak in self._leaks.get(rank, ())
            if leak.kind == kind and leak.at <= now
        )
