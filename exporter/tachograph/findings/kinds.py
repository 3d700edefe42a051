"""Every kind of finding: the alert that reports it, and what else is known of the kind as such, a row for each.

The one that explains most comes first. Of several alerts of one severity the first row is the finding, and the others
are what follows from it. The order is that of the inhibitions in alertmanager/alertmanager.yml: a node that is down
explains a dead rank, a dead rank a hang, a hang a low speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tachograph.catalog.rank import FAILURE_CATEGORIES

ALIVE, STARTED, PROGRESS, NUMBERS, LEARNING = "alive", "started", "progress", "numbers", "learning"
SPEED, DATA, NETWORK, MEMORY = "speed", "data", "network", "memory"
CHECKPOINTS, HARDWARE, WATCHED = "checkpoints", "hardware", "watched"

SEVERITIES: Mapping[str, str] = {"critical": "page", "warning": "ticket", "info": "info"}
"""The severities of alerts, the worst first, and what each is here."""

PAGE_OR_TICKET = '{{ or $labels.severity "critical" }}'
"""The label of a rule that is a page, but for what its expression marks as a ticket."""

CATEGORIES = (*FAILURE_CATEGORIES, "learning", "compute", "monitoring", "none")
"""Where the cause lies, and so who looks: the categories of failures, and a few that no failure shows."""

WATCHDOG = "TachographWatchdog"
"""The alert that always fires, and is no finding: where it does not arrive, no page does."""

RUNBOOKS = "https://github.com/tachograph/tachograph/blob/main/runbooks"


@dataclass(frozen=True)
class Kind:
    """A kind of finding: its alert, the question that it answers with no, where its cause lies, and the failure mode.

    `trigger`: the name under which `tachograph supervise` acts upon what it reports, empty if it never does.
    `restart`: a planned restart of the run may cause it. `failure`: the run fails by it. `shown_with_loss`: it is
    marked on the chart of the loss.
    """

    alert: str
    question: str
    category: str
    mode: str
    trigger: str = ""
    restart: bool = False
    failure: bool = False
    shown_with_loss: bool = False

    @property
    def runbook(self) -> str:
        """The address of its runbook."""
        return f"{RUNBOOKS}/{self.alert}.md"


def severities(label: str) -> tuple[str, ...]:
    """Return the severities that an alert may have whose rule has this label."""
    return ("critical", "warning") if label == PAGE_OR_TICKET else (label,)


KINDS = (
    Kind("NodesUnreachable", WATCHED, "monitoring", "blind"),
    Kind("NodeDown", ALIVE, "hardware", "node_down"),
    Kind("GpuXidFatal", HARDWARE, "hardware", "gpu_fault", "gpu_fault"),
    Kind("GpuLost", HARDWARE, "hardware", "gpu_fault", "gpu_fault"),
    Kind("GpuHung", HARDWARE, "hardware", "gpu_fault", "gpu_fault"),
    Kind("GpuEccUncorrected", HARDWARE, "hardware", "gpu_fault", "gpu_fault"),
    Kind("GpuRecoveryNeeded", HARDWARE, "hardware", "gpu_fault", "gpu_fault"),
    Kind("NicLinkDown", NETWORK, "network", "link_down", "hung"),
    Kind("RestartLoop", ALIVE, "software", "restart_loop", "restart_loop", restart=True),
    Kind("RankDead", ALIVE, "software", "rank_died", "dead", restart=True, failure=True),
    Kind("LossNotFinite", NUMBERS, "numerical", "not_finite", "loss_not_finite", failure=True, shown_with_loss=True),
    Kind("SilentDataCorruptionSuspected", NUMBERS, "hardware", "silent_corruption", "silent_corruption"),
    Kind("GradientNormNotFinite", NUMBERS, "numerical", "not_finite", shown_with_loss=True),
    Kind("EngineDown", PROGRESS, "software", "engine_down", failure=True),
    Kind("RankFailed", ALIVE, "software", "rank_failed", "failed", restart=True, failure=True),
    Kind("RankFrozen", ALIVE, "software", "frozen", "frozen", restart=True, failure=True),
    Kind("StorageSlow", DATA, "storage", "storage_slow"),
    Kind("RunHung", PROGRESS, "network", "communication_stall", "hung", restart=True, failure=True),
    Kind("InvariantBroken", NUMBERS, "software", "ranks_differ"),
    Kind("RunDown", ALIVE, "software", "run_down", restart=True),
    Kind("LossSpikeNotRecovering", LEARNING, "learning", "divergence", "loss_spike", shown_with_loss=True),
    Kind("StragglerNode", SPEED, "compute", "straggler", "slow"),
    Kind("StragglerRank", SPEED, "compute", "straggler", "slow"),
    Kind("DataStall", DATA, "data", "data_stall"),
    Kind("MfuDropped", SPEED, "compute", "slow_steps", restart=True),
    Kind("ThroughputDropped", SPEED, "compute", "slow_steps", restart=True),
    Kind("SupervisorUnanswered", WATCHED, "monitoring", "unsupervised"),
    Kind("RunBlind", WATCHED, "monitoring", "blind"),
    # From here on the rows are of tickets alone.
    Kind("RanksMissing", ALIVE, "monitoring", "ranks_missing"),
    Kind("RankStepDesync", PROGRESS, "software", "ranks_differ"),
    Kind("RunNotRequeued", ALIVE, "preemption", "not_requeued", restart=True),
    Kind("RunEndedEarly", ALIVE, "software", "ended_early"),
    Kind("CollectiveSlow", NETWORK, "network", "slow_collectives"),
    Kind("RunStaysSlow", SPEED, "compute", "slow_steps"),
    Kind("MfuDeclining", SPEED, "compute", "decline"),
    Kind("ThroughputDeclining", SPEED, "compute", "decline"),
    Kind("LossDiverging", LEARNING, "learning", "divergence", "diverging", shown_with_loss=True),
    Kind("LearningRateStuck", LEARNING, "configuration", "plateau"),
    Kind("GradientNormVanished", LEARNING, "learning", "plateau", shown_with_loss=True),
    Kind("GradientNormSpike", LEARNING, "learning", "divergence", shown_with_loss=True),
    Kind("AmpSkippingSteps", NUMBERS, "numerical", "skipped_steps"),
    Kind("ValidationLossSpike", LEARNING, "learning", "validation"),
    Kind("MemoryLeak", MEMORY, "out_of_memory", "memory_leak"),
    Kind("MemoryNearlyFull", MEMORY, "out_of_memory", "memory_full"),
    Kind("CheckpointFailed", CHECKPOINTS, "storage", "unsaved"),
    Kind("CheckpointDiskNearlyFull", CHECKPOINTS, "storage", "disk_full"),
    Kind("CheckpointSlow", CHECKPOINTS, "storage", "slow_save"),
    Kind("CheckpointStale", CHECKPOINTS, "storage", "unsaved", restart=True),
    Kind("GpuThermalThrottling", HARDWARE, "hardware", "gpu_held_back"),
    Kind("GpuPowerCapped", HARDWARE, "hardware", "gpu_held_back"),
    Kind("GpuClockBelowPeers", HARDWARE, "hardware", "gpu_held_back"),
    Kind("GpuRowRemapFailed", HARDWARE, "hardware", "gpu_wear"),
    Kind("GpuRowRemapPending", HARDWARE, "hardware", "gpu_wear"),
    Kind("GpuEccCorrectedRising", HARDWARE, "hardware", "gpu_wear"),
    Kind("GpuXidRepeated", HARDWARE, "hardware", "gpu_wear"),
    Kind("GpuNvlinkDown", HARDWARE, "hardware", "gpu_link"),
    Kind("GpuNvlinkErrors", HARDWARE, "hardware", "gpu_link"),
    Kind("GpuPcieDegraded", HARDWARE, "hardware", "gpu_link"),
    Kind("GpuFabricNotReady", HARDWARE, "hardware", "gpu_link"),
    Kind("GpuFabricDegraded", HARDWARE, "hardware", "gpu_link"),
    Kind("NodeRepeatedlyBlamed", HARDWARE, "hardware", "repeated"),
    Kind("NodeGpuMissing", HARDWARE, "hardware", "gpu_missing"),
    Kind("NicErrorsRising", NETWORK, "network", "link_errors"),
    Kind("NicRateReduced", NETWORK, "network", "link_errors"),
    Kind("GoodputLow", SPEED, "compute", "goodput", restart=True),
    Kind("GpuIdleInRun", SPEED, "compute", "idle_gpus", restart=True),
    Kind("RunNameShared", WATCHED, "configuration", "name_shared"),
    Kind("BatchesSkippedAgain", DATA, "data", "bad_batches"),
    Kind("SupervisorOutOfBudget", WATCHED, "monitoring", "unsupervised"),
    Kind("SupervisorBlind", WATCHED, "monitoring", "unsupervised"),
    Kind("RecorderMisused", WATCHED, "configuration", "misuse"),
    Kind("TelemetryLost", WATCHED, "monitoring", "blind"),
    Kind("ExporterDown", WATCHED, "monitoring", "blind"),
    Kind("ExporterScrapedTwice", WATCHED, "monitoring", "scraped_twice"),
    Kind("RuleEvaluationFailing", WATCHED, "monitoring", "rules_fail"),
    Kind("NvmlCollectorStale", WATCHED, "monitoring", "blind"),
    Kind("ExporterOverloaded", WATCHED, "monitoring", "overload"),
    Kind("UserOverShare", WATCHED, "monitoring", "over_share"),
    Kind("NodeClockSkewed", WATCHED, "configuration", "wrong_clock"),
    Kind("LossSpike", LEARNING, "learning", "loss_spike", shown_with_loss=True),
)

ORDER: Mapping[str, int] = {kind.alert: position for position, kind in enumerate(KINDS)}


def kind_of(alert: str) -> Kind:
    """Return the row of an alert; one that is not shipped with these rules is named as it is."""
    return KINDS[ORDER[alert]] if alert in ORDER else Kind(alert, WATCHED, "none", "other")


RANK_DEAD, RANK_FAILED, RANK_FROZEN = kind_of("RankDead"), kind_of("RankFailed"), kind_of("RankFrozen")
RUN_HUNG, RUN_DOWN, RESTART_LOOP = kind_of("RunHung"), kind_of("RunDown"), kind_of("RestartLoop")
LOSS_NOT_FINITE, NORM_VANISHED = kind_of("LossNotFinite"), kind_of("GradientNormVanished")
SPIKE_STAYS = kind_of("LossSpikeNotRecovering")
STRAGGLER_RANK, DATA_STALL, STORAGE_SLOW = kind_of("StragglerRank"), kind_of("DataStall"), kind_of("StorageSlow")
NODES_UNREACHABLE, RULES_FAILING = kind_of("NodesUnreachable"), kind_of("RuleEvaluationFailing")
NIC_DOWN, NIC_ERRORS, NIC_SLOW = kind_of("NicLinkDown"), kind_of("NicErrorsRising"), kind_of("NicRateReduced")
ROW_REMAP_PENDING, ECC_RISING = kind_of("GpuRowRemapPending"), kind_of("GpuEccCorrectedRising")
"""Those that are meant one by one elsewhere, which never writes their alerts' names."""
