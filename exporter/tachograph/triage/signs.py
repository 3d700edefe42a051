"""The meaning of each alert for a run: a row for each, the one that explains most first.

Of several alerts of one severity the first row is the finding, and the others are what follows from it. The order is
that of the inhibitions in alertmanager/alertmanager.yml: a node that is down explains a dead rank, a dead rank a hang,
a hang a low speed. `refinements.py` then looks at the figures and may put a nearer cause in place of the row's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ALIVE, STARTED, PROGRESS, NUMBERS, LEARNING = "alive", "started", "progress", "numbers", "learning"
SPEED, DATA, NETWORK, MEMORY = "speed", "data", "network", "memory"
CHECKPOINTS, HARDWARE, WATCHED = "checkpoints", "hardware", "watched"

SEVERITIES: Mapping[str, str] = {"critical": "page", "warning": "ticket", "info": "info"}
"""The severities of alerts, the worst first, and what each is here."""

CATEGORIES = (
    "hardware", "communication", "data", "storage", "out_of_memory", "numerical", "learning", "compute", "software",
    "preemption", "configuration", "monitoring", "none",
)  # fmt: skip
"""Where the cause lies, and so who looks: those of `tachograph logs`, and a few that no log shows."""


@dataclass(frozen=True)
class Sign:
    """An alert, the question that it answers with no, where its cause lies, and the failure mode (modes.py)."""

    alert: str
    question: str
    category: str
    mode: str


SIGNS = (
    Sign("NodesUnreachable", WATCHED, "monitoring", "blind"),
    Sign("NodeDown", ALIVE, "hardware", "node_down"),
    Sign("GpuXidFatal", HARDWARE, "hardware", "gpu_fault"),
    Sign("GpuLost", HARDWARE, "hardware", "gpu_fault"),
    Sign("GpuHung", HARDWARE, "hardware", "gpu_fault"),
    Sign("GpuEccUncorrected", HARDWARE, "hardware", "gpu_fault"),
    Sign("GpuRecoveryNeeded", HARDWARE, "hardware", "gpu_fault"),
    Sign("NicLinkDown", NETWORK, "communication", "link_down"),
    Sign("RestartLoop", ALIVE, "software", "restart_loop"),
    Sign("RankDead", ALIVE, "software", "rank_died"),
    Sign("LossNotFinite", NUMBERS, "numerical", "not_finite"),
    Sign("SilentDataCorruptionSuspected", NUMBERS, "hardware", "silent_corruption"),
    Sign("GradientNormNotFinite", NUMBERS, "numerical", "not_finite"),
    Sign("RankFailed", ALIVE, "software", "rank_failed"),
    Sign("RankFrozen", ALIVE, "software", "frozen"),
    Sign("StorageSlow", DATA, "storage", "storage_slow"),
    Sign("RunHung", PROGRESS, "communication", "communication_stall"),
    Sign("InvariantBroken", NUMBERS, "software", "ranks_differ"),
    Sign("RunDown", ALIVE, "software", "run_down"),
    Sign("LossSpikeNotRecovering", LEARNING, "learning", "divergence"),
    Sign("StragglerNode", SPEED, "compute", "straggler"),
    Sign("StragglerRank", SPEED, "compute", "straggler"),
    Sign("DataStall", DATA, "data", "data_stall"),
    Sign("MfuDropped", SPEED, "compute", "slow_steps"),
    Sign("ThroughputDropped", SPEED, "compute", "slow_steps"),
    Sign("RunBlind", WATCHED, "monitoring", "blind"),
    # From here on the rows are of tickets alone.
    Sign("RanksMissing", ALIVE, "monitoring", "ranks_missing"),
    Sign("RankStepDesync", PROGRESS, "software", "ranks_differ"),
    Sign("RunNotRequeued", ALIVE, "preemption", "not_requeued"),
    Sign("RunEndedEarly", ALIVE, "software", "ended_early"),
    Sign("CollectiveSlow", NETWORK, "communication", "slow_collectives"),
    Sign("RunStaysSlow", SPEED, "compute", "slow_steps"),
    Sign("MfuDeclining", SPEED, "compute", "decline"),
    Sign("ThroughputDeclining", SPEED, "compute", "decline"),
    Sign("LossDiverging", LEARNING, "learning", "divergence"),
    Sign("LearningRateStuck", LEARNING, "configuration", "plateau"),
    Sign("GradientNormVanished", LEARNING, "learning", "plateau"),
    Sign("GradientNormSpike", LEARNING, "learning", "divergence"),
    Sign("AmpSkippingSteps", NUMBERS, "numerical", "skipped_steps"),
    Sign("ValidationLossSpike", LEARNING, "learning", "validation"),
    Sign("MemoryLeak", MEMORY, "out_of_memory", "memory_leak"),
    Sign("MemoryNearlyFull", MEMORY, "out_of_memory", "memory_full"),
    Sign("CheckpointFailed", CHECKPOINTS, "storage", "unsaved"),
    Sign("CheckpointDiskNearlyFull", CHECKPOINTS, "storage", "disk_full"),
    Sign("CheckpointSlow", CHECKPOINTS, "storage", "slow_save"),
    Sign("CheckpointStale", CHECKPOINTS, "storage", "unsaved"),
    Sign("GpuThermalThrottling", HARDWARE, "hardware", "gpu_held_back"),
    Sign("GpuPowerCapped", HARDWARE, "hardware", "gpu_held_back"),
    Sign("GpuClockBelowPeers", HARDWARE, "hardware", "gpu_held_back"),
    Sign("GpuRowRemapFailed", HARDWARE, "hardware", "gpu_wear"),
    Sign("GpuRowRemapPending", HARDWARE, "hardware", "gpu_wear"),
    Sign("GpuEccCorrectedRising", HARDWARE, "hardware", "gpu_wear"),
    Sign("GpuXidRepeated", HARDWARE, "hardware", "gpu_wear"),
    Sign("GpuNvlinkDown", HARDWARE, "hardware", "gpu_link"),
    Sign("GpuNvlinkErrors", HARDWARE, "hardware", "gpu_link"),
    Sign("GpuPcieDegraded", HARDWARE, "hardware", "gpu_link"),
    Sign("GpuFabricNotReady", HARDWARE, "hardware", "gpu_link"),
    Sign("NodeRepeatedlyBlamed", HARDWARE, "hardware", "repeated"),
    Sign("NodeGpuMissing", HARDWARE, "hardware", "gpu_missing"),
    Sign("NicErrorsRising", NETWORK, "communication", "link_errors"),
    Sign("NicRateReduced", NETWORK, "communication", "link_errors"),
    Sign("GoodputLow", SPEED, "compute", "goodput"),
    Sign("GpuIdleInRun", SPEED, "compute", "idle_gpus"),
    Sign("RunNameShared", WATCHED, "configuration", "name_shared"),
    Sign("RecorderMisused", WATCHED, "configuration", "misuse"),
    Sign("TelemetryLost", WATCHED, "monitoring", "blind"),
    Sign("ExporterDown", WATCHED, "monitoring", "blind"),
    Sign("ExporterScrapedTwice", WATCHED, "monitoring", "scraped_twice"),
    Sign("RuleEvaluationFailing", WATCHED, "monitoring", "rules_fail"),
    Sign("NvmlCollectorStale", WATCHED, "monitoring", "blind"),
    Sign("ExporterOverloaded", WATCHED, "monitoring", "overload"),
    Sign("UserOverShare", WATCHED, "monitoring", "over_share"),
    Sign("NodeClockSkewed", WATCHED, "configuration", "wrong_clock"),
    Sign("LossSpike", LEARNING, "learning", "loss_spike"),
)

ORDER: Mapping[str, int] = {sign.alert: position for position, sign in enumerate(SIGNS)}


def sign_of(alert: str) -> Sign:
    """Return the row of an alert; one that is not shipped with these rules is named as it is."""
    return SIGNS[ORDER[alert]] if alert in ORDER else Sign(alert, WATCHED, "none", "other")
