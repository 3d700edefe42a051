"""The fixed numbers of the alert rules, and the words that they sort phases, Xids and clock reasons by.

For views of a single node, which have no Prometheus to ask: the exporter's own pages and `tachograph top`. The
numbers are those of prometheus/rules/; tests/test_diagnosis.py compares each with the rule that it comes from. What a
site or a run may set is in findings/limits.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from tachograph.catalog.rank import GENERATION

HANG_STEPS = 3
"""A run hangs without a step for longer than its limit and three usual steps: tachograph_run_hang_limit_seconds."""
LONG_STEP_SECONDS = 15.0
"""A step that is so much longer than the usual one says nothing of the speed, and counts as a pause. No rule has it."""
FIRST_STEPS_SECONDS, FIRST_STEPS_APART_SECONDS = 1800.0, 240.0
"""Before the first step a run hangs once no rank has moved on for so long; the second, if some have come to a
collective and others have not: run:hung_seconds:min."""
TOLD_SECONDS = 90.0
"""A run whose ranks were asked to end does not hang for so long: run:hung_seconds:min."""
STILL_SECONDS = 120.0
"""Most ranks are not starting, saving or evaluating, as they say, if none has come to a collective for so long to which
others have: run:standstill_limit_seconds:max."""
SPIKE_STEPS = 20
"""A spike of the loss that has lasted for so many steps does not recover by itself: LossSpikeNotRecovering."""
UNKNOWN_STEP_SECONDS = 240.0
"""A run is overdue after this while its usual step is not known: tachograph_run_hang_limit_seconds."""
STALL_SECONDS, STALL_STEPS = 10.0, 10
"""A screen says that there is no step after this, and so many usual steps, where nobody pauses: sooner than it is a
hang, for whoever looks already. No rule has it."""


def stall_limit(step_seconds: float) -> float:
    """Return the seconds without a step after which a screen says so, of a run whose usual step takes so long."""
    return max(STALL_SECONDS, STALL_STEPS * step_seconds)


OLD_SECONDS = 300.0
"""A screen shows what runs before runs that ended this long ago. No rule has it."""
WAITING_PHASES = frozenset({"backward", "collective"})
"""Phases in which a rank may be waiting for the others: run:standstill_limit_seconds:max."""
IDLE_PHASES = ("data", "collective")
"""Phases in which a rank only waits. No rule has it."""
CROWD = 8
"""More suspects than this, or than half of the ranks, are no culprit: RunHung."""

LAG_SECONDS, LAG_RATIO = 0.005, 0.06
"""A smaller lag, in seconds and as a share of the step, is noise: rank:late_ratio:mean."""
STRAGGLER_WAIT = 0.6
"""A straggler waits less than this share of the usual wait: rank:straggler:level."""

MEMORY_FULL_RATIO = 0.95
"""Share of a GPU's memory that tensors took at most, from which on a larger batch may not fit. No rule has it."""

FULL_GPU_RATIO, FULL_GPU_BYTES = 0.98, 8e8
"""A GPU's memory is full at this share, or where so little of a small one is left, because drivers hold up to 0.6 GB
that counts neither as used nor as free: MemoryNearlyFull."""

THERMAL, POWER_BRAKE, POWER_CAP = "thermal", "power brake", "power cap"
SLOWDOWN_RATIO = 0.05
"""Share of the time with clocks held down from which on it explains why a rank is late: StragglerRank."""
SLOW_CLOCK_RATIO = 0.95
"""A clock below this share of the median one is slow: node:gpu_clock_of_peers:ratio."""
BUSY_GPU_RATIO = 0.5
"""A GPU that is used for a smaller share of the time may clock down, and lower its PCIe link:
node:gpu_sm_clock_hertz:mean30s."""
CRC_ERRORS_PER_MINUTE, LINK_RETRIES_PER_MINUTE = 6000.0, 1.0
"""From so many wrong checksums, and so many retries or recoveries, the errors of a GPU's NVLinks are more than usual:
node:gpu_nvlink_errors_per_minute:mean5m. They are those of DCGM's health watch (DcgmGPUHardwareLimits.h, DCGM 4.6)."""
UNKNOWN_LINK_REPLAYS = 16.0
"""What a PCIe link whose lanes and generation are not known may resend in a minute, that of 16 lanes of generation 4:
node:gpu_pcie_replays_per_minute:mean5m."""
PORT_ERRORS_PER_HOUR = 1000.0
"""A network port that makes more errors of a kind than this in an hour corrupts packets: NicErrorsRising."""
READINGS_STALE_SECONDS = 30.0
"""Older readings of GPUs say nothing about now: NvmlCollectorStale."""
XID_OF_PROGRAM = frozenset({"application", "ignore"})
"""Actions of Xids that say nothing about the GPU: GpuLost."""

STATES = ("hung", "dead", "failed", "frozen", "overdue", "running", "finished")
"""The states of a run, the worst first; those of a rank are all but hung and overdue."""


def slowdown_cause(reason: str) -> str:
    """Return why a GPU's clocks are held down, from NVML's reason; empty where that is none of the three."""
    if "thermal" in reason:
        return THERMAL
    return POWER_CAP if reason == "sw_power_cap" else POWER_BRAKE if reason.startswith("hw_power_") else ""


def nvlink_errors_per_minute(error: str) -> float:
    """Return from how many NVLink errors of a kind in a minute they are too many; any are, of failed recoveries."""
    if error == "recovery_failed":
        return 0.0
    return CRC_ERRORS_PER_MINUTE if error.startswith("crc_") else LINK_RETRIES_PER_MINUTE


def step_parts(phases: Mapping[str, float]) -> dict[str, float]:
    """Return what the steps of a loop that generates go into, by the seconds of a step in each phase.

    Parts are those of GENERATION, `update`, and `idle`: waits for data and for others. A loop that does not generate
    has none.
    """
    if not any(name in phases for name in GENERATION):
        return {}
    parts = {name: phases[name] for name in GENERATION if name in phases}
    idle = sum(seconds for name, seconds in phases.items() if name in IDLE_PHASES)
    own = sum(seconds for name, seconds in phases.items() if name not in {*GENERATION, *IDLE_PHASES})
    return {**parts, "update": own, "idle": idle}
