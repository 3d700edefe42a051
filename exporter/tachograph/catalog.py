"""Every metric Tachograph exposes, once: name, kind, unit, labels, help, DCGM twin.

Exposition, the wire protocol, `docs/metrics.md`, rule and dashboard contract tests all read these rows. Adding a
training metric is one row here and one call in the client; adding an NVML metric is one row here and one row in
`node/readings.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

PREFIX = "tachograph_"
TRAIN_PREFIX = "tachograph_train_"

COUNTER, GAUGE, HISTOGRAM, INFO = "counter", "gauge", "histogram", "info"

PHASES = ("init", "data", "forward", "backward", "optimizer", "collective", "checkpoint", "eval", "other")
"""What a rank can be doing; `other` is a step's time outside every named phase."""

STATES = ("running", "frozen", "dead", "failed", "finished")
"""What the exporter concludes of a rank; exactly one is 1."""

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "barrier", "other")
"""Collective operations, in PyTorch's words."""

NONFINITE_SOURCES = ("loss", "grad_norm")

FAILURE_CATEGORIES = ("oom", "nonfinite", "collective", "data", "terminated", "interrupted", "exception")
"""Why a rank said it ended: `terminated` by SIGTERM, `interrupted` from the keyboard, `exception` for all else."""

CLOCK_EVENT_REASONS = (
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
    "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting", "board_limit", "reliability",
)  # fmt: skip
"""NVML's clock-event ("throttle") reasons, lowest bit first (nvml.h, nvmlClocksEventReason*)."""

REJECT_REASONS = (
    "malformed", "version", "oversized", "type", "invalid", "no_hello", "owner", "conflict", "rank_limit", "rate",
)  # fmt: skip
"""Why a whole frame is refused."""

DROP_REASONS = (
    "unknown_metric", "wrong_type", "bad_label", "label_limit", "series_limit", "counter_decrease", "unknown_phase",
    "bad_histogram",
)  # fmt: skip
"""Why one series of an accepted frame is left out."""


class Metric(NamedTuple):  # and not a dataclass: those cost `import tachograph` 4 ms and 1 MB
    """One metric family; `labels` are all its labels, `values` the label values that exist from the start."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    help: str
    values: tuple[str, ...] = ()
    dcgm: str | None = None
    dcgm_scale: float = 1.0

    @property
    def key(self) -> str:
        """The wire key of a training metric: its name without the common prefix."""
        return self.name[len(TRAIN_PREFIX) :]

    @property
    def own_label(self) -> str | None:
        """The one label a rank fills in itself, or None for a plain number."""
        return self.labels[2] if len(self.labels) > 2 else None


_rows: list[Metric] = []
RANK = ("run", "rank")
GPU = ("gpu", "uuid")


def _row(  # noqa: PLR0917 - a table's columns
    name: str,
    kind: str,
    unit: str,
    labels: tuple[str, ...],
    text: str,
    values: tuple[str, ...] = (),
    dcgm: str | None = None,
    dcgm_scale: float = 1.0,
) -> Metric:
    row = Metric(PREFIX + name, kind, unit, labels, text, values, dcgm, dcgm_scale)
    _rows.append(row)
    return row


# What the exporter knows of a rank.
RANK_INFO = _row(
    "rank_info", INFO, "",
    (*RANK, "local_rank", "world_size", "attempt", "gpu", "uuid"),
    "A rank and where it sits: always 1. Empty gpu and uuid: the rank has no GPU that this node knows.",
)  # fmt: skip
RANK_UP = _row("rank_up", GAUGE, "", RANK, "1 while the rank's process holds its connection, 0 once it died.")
RANK_STATE = _row(
    "rank_state", GAUGE, "", (*RANK, "state"),
    "1 for the state the rank is in: running, frozen (connected, silent for 10 s), dead, failed or finished.", STATES,
)  # fmt: skip
RANK_HEARTBEAT = _row("rank_heartbeat_timestamp_seconds", GAUGE, "seconds", RANK, "Unix time of the rank's last frame.")
RANK_PROGRESS = _row(
    "rank_progress_timestamp_seconds", GAUGE, "seconds", RANK, "Unix time at which the rank completed its last step."
)
RANK_PHASE = _row(
    "rank_phase_seconds", GAUGE, "seconds", (*RANK, "phase"),
    "Seconds the rank has been in its current phase; only that phase is present.",
)  # fmt: skip
RANK_PEAK_FLOPS = _row(
    "rank_peak_flops", GAUGE, "", RANK,
    "Dense peak FLOP/s of the device this rank computes on, at its precision: as the rank gave it, else from the GPU "
    "table; absent for an unknown device.",
)  # fmt: skip

# What a rank reports.
TRAIN_STEP = _row("train_step", GAUGE, "", RANK, "The optimizer step the rank is at.")
TRAIN_STEPS = _row("train_steps_total", COUNTER, "", RANK, "Steps the rank completed in this attempt.")
TRAIN_STEP_SECONDS = _row(
    "train_step_seconds", HISTOGRAM, "seconds", ("run",), "Wall time of a step, all ranks of this node together."
)
TRAIN_PHASE_SECONDS = _row(
    "train_phase_seconds_total", COUNTER, "seconds", (*RANK, "phase"),
    "Wall seconds spent in each phase; nested phases never count twice.", PHASES,
)  # fmt: skip
TRAIN_COLLECTIVE_WAIT = _row(
    "train_collective_wait_seconds_total", COUNTER, "seconds", (*RANK, "op"),
    "Exposed wait: seconds in which the rank had nothing left to do but wait for a collective. The rank that waits "
    "least arrived last.",
)  # fmt: skip
TRAIN_COLLECTIVES = _row(
    "train_collectives_total", COUNTER, "", (*RANK, "op"), "Collectives the rank entered and that were observed."
)
TRAIN_COLLECTIVE_BYTES = _row(
    "train_collective_bytes_total", COUNTER, "bytes", (*RANK, "op"), "Payload bytes this rank gave to collectives."
)
TRAIN_COLLECTIVE_FAILURES = _row(
    "train_collective_failures_total", COUNTER, "", (*RANK, "op"), "Collectives that ended with an error on this rank."
)
TRAIN_COLLECTIVE_ENQUEUED = _row(
    "train_collective_enqueued", GAUGE, "", (*RANK, "group"),
    "Sequence number of the last collective this rank entered in a process group. In a hang, the lowest one is the "
    "culprit's.",
)  # fmt: skip
TRAIN_COLLECTIVE_COMPLETED = _row(
    "train_collective_completed", GAUGE, "", (*RANK, "group"),
    "Sequence number of the last collective completed in a process group.",
)  # fmt: skip
TRAIN_TOKENS = _row("train_tokens_total", COUNTER, "", RANK, "Tokens this rank trained on.")
TRAIN_SAMPLES = _row("train_samples_total", COUNTER, "", RANK, "Samples this rank trained on.")
TRAIN_FLOPS = _row(
    "train_flops_total", COUNTER, "", RANK, "Model floating-point operations of this rank, without recomputation."
)
TRAIN_BATCHES = _row("train_batches_total", COUNTER, "", RANK, "Batches the data loader delivered to this rank.")
TRAIN_LOSS = _row("train_loss", GAUGE, "", RANK, "The last training loss this rank logged; NaN if it was NaN.")
TRAIN_GRAD_NORM = _row("train_grad_norm", GAUGE, "", RANK, "The last gradient norm this rank logged.")
TRAIN_LEARNING_RATE = _row("train_learning_rate", GAUGE, "", RANK, "The last learning rate this rank logged.")
TRAIN_LOSS_ZSCORE = _row(
    "train_loss_zscore", GAUGE, "", RANK,
    "Rise of the last loss above the median of the recent ones, in robust standard deviations of such rises; spikes "
    "never enter that past.",
)  # fmt: skip
TRAIN_LOSS_SPIKES = _row("train_loss_spikes_total", COUNTER, "", RANK, "Loss spikes that began on this rank.")
TRAIN_LOSS_SPIKE_STEPS = _row(
    "train_loss_spike_steps", GAUGE, "", RANK, "Steps since the current loss spike began; 0 while the loss is normal."
)
TRAIN_NONFINITE = _row(
    "train_nonfinite_total", COUNTER, "", (*RANK, "source"), "Steps whose loss or gradient norm was NaN or infinite.",
    NONFINITE_SOURCES,
)  # fmt: skip
TRAIN_NONFINITE_STEP = _row(
    "train_nonfinite_step", GAUGE, "", (*RANK, "source"),
    "Step of the first NaN or infinite value in this attempt; absent while there was none. The lowest one is the "
    "culprit's.",
)  # fmt: skip
TRAIN_CHECKPOINTS = _row("train_checkpoints_total", COUNTER, "", RANK, "Checkpoints this rank reported as saved.")
TRAIN_CHECKPOINT_SECONDS = _row(
    "train_checkpoint_seconds_total", COUNTER, "seconds", RANK, "Wall seconds spent in the checkpoint phase."
)
TRAIN_CHECKPOINT_TIMESTAMP = _row(
    "train_checkpoint_timestamp_seconds", GAUGE, "seconds", RANK, "Unix time of the last saved checkpoint."
)
TRAIN_CHECKPOINT_STEP = _row("train_checkpoint_step", GAUGE, "", RANK, "Step of the last saved checkpoint.")
TRAIN_CHECKPOINT_BYTES = _row("train_checkpoint_bytes", GAUGE, "bytes", RANK, "Size of the last saved checkpoint.")
TRAIN_CHECKPOINT_FAILURES = _row(
    "train_checkpoint_failures_total", COUNTER, "", RANK, "Checkpoint phases that ended with an exception."
)
TRAIN_FAILURES = _row(
    "train_failures_total", COUNTER, "", (*RANK, "category"),
    "Ends of this rank's process with an error, by the category of its goodbye; absent while it lives, and for one "
    "that was killed.",
)  # fmt: skip
TRAIN_MEMORY_ALLOCATED = _row(
    "train_memory_allocated_bytes", GAUGE, "bytes", RANK, "GPU memory in live tensors, by PyTorch's allocator."
)
TRAIN_MEMORY_RESERVED = _row(
    "train_memory_reserved_bytes", GAUGE, "bytes", RANK, "GPU memory PyTorch's allocator holds from the driver."
)
TRAIN_MEMORY_PEAK = _row(
    "train_memory_peak_bytes", GAUGE, "bytes", RANK, "Highest GPU memory in live tensors since the process started."
)
TRAIN_CONFIG_INFO = _row(
    "train_config_info", INFO, "", (*RANK, "precision", "global_batch", "framework"),
    "Static facts a rank gave at hello: always 1. Empty: not given.",
)  # fmt: skip

# A GPU, from NVML.
GPU_INFO = _row("gpu_info", INFO, "", (*GPU, "name", "pci_bus_id", "driver_version"), "A GPU of this node: always 1.")
GPU_UP = _row("gpu_up", GAUGE, "", GPU, "1 if the last collection could read this GPU, 0 if it could not.")
GPU_READINGS_FAILED = _row(
    "gpu_readings_failed", GAUGE, "", GPU,
    "Readings that failed in the last collection and are absent for it; what the part does not support does not count.",
)  # fmt: skip
GPU_UTILIZATION = _row(
    "gpu_utilization_ratio", GAUGE, "ratio", GPU,
    "Share of the driver's last sample period in which at least one kernel ran. 1 does not mean busy: see MFU.",
    dcgm="DCGM_FI_DEV_GPU_UTIL", dcgm_scale=100,
)  # fmt: skip
GPU_MEMORY_UTILIZATION = _row(
    "gpu_memory_controller_ratio", GAUGE, "ratio", GPU,
    "Share of the driver's last sample period in which device memory was read or written.",
    dcgm="DCGM_FI_DEV_MEM_COPY_UTIL", dcgm_scale=100,
)  # fmt: skip
GPU_MEMORY_USED = _row(
    "gpu_memory_used_bytes", GAUGE, "bytes", GPU, "Device memory in use.",
    dcgm="DCGM_FI_DEV_FB_USED", dcgm_scale=2**-20,
)  # fmt: skip
GPU_MEMORY_FREE = _row(
    "gpu_memory_free_bytes", GAUGE, "bytes", GPU, "Device memory free.",
    dcgm="DCGM_FI_DEV_FB_FREE", dcgm_scale=2**-20,
)  # fmt: skip
GPU_MEMORY_RESERVED = _row(
    "gpu_memory_reserved_bytes", GAUGE, "bytes", GPU, "Device memory the driver keeps for itself.",
    dcgm="DCGM_FI_DEV_FB_RESERVED", dcgm_scale=2**-20,
)  # fmt: skip
GPU_MEMORY_TOTAL = _row("gpu_memory_total_bytes", GAUGE, "bytes", GPU, "Device memory installed.")
GPU_TEMPERATURE = _row(
    "gpu_temperature_celsius", GAUGE, "celsius", (*GPU, "sensor"), "Temperature of the GPU die or of its memory.",
    ("gpu", "memory"), dcgm="DCGM_FI_DEV_GPU_TEMP",
)  # fmt: skip
GPU_TEMPERATURE_THRESHOLD = _row(
    "gpu_temperature_threshold_celsius", GAUGE, "celsius", (*GPU, "threshold"),
    "Temperature at which the GPU slows down or shuts down, as the part reports it.", ("slowdown", "shutdown"),
)  # fmt: skip
GPU_POWER = _row(
    "gpu_power_watts", GAUGE, "watts", GPU, "Board power as the driver reports it (1 s mean from Ampere on).",
    dcgm="DCGM_FI_DEV_POWER_USAGE",
)  # fmt: skip
GPU_POWER_LIMIT = _row("gpu_power_limit_watts", GAUGE, "watts", GPU, "Power limit the driver enforces now.")
GPU_ENERGY = _row(
    "gpu_energy_joules_total", COUNTER, "joules", GPU,
    "Energy used since the driver was loaded; its rate is the exact mean power.",
    dcgm="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", dcgm_scale=1000,
)  # fmt: skip
GPU_CLOCK = _row(
    "gpu_clock_hertz", GAUGE, "hertz", (*GPU, "domain"), "Clock now.", ("sm", "memory"),
    dcgm="DCGM_FI_DEV_SM_CLOCK", dcgm_scale=1e-6,
)  # fmt: skip
GPU_CLOCK_MAX = _row(
    "gpu_clock_max_hertz", GAUGE, "hertz", (*GPU, "domain"), "Highest clock the part allows.", ("sm", "memory")
)
GPU_CLOCK_EVENT = _row(
    "gpu_clock_event_active", GAUGE, "", (*GPU, "reason"), "1 while the driver holds clocks down for this reason.",
    CLOCK_EVENT_REASONS,
)  # fmt: skip
GPU_ECC_ERRORS = _row(
    "gpu_ecc_errors_total", COUNTER, "", (*GPU, "error", "scope"),
    "ECC errors, corrected or uncorrected; volatile counts since the driver was loaded, aggregate over the part's "
    "life.",
)  # fmt: skip
GPU_PEAK_FLOPS = _row(
    "gpu_peak_flops", GAUGE, "", (*GPU, "dtype"),
    "Dense peak FLOP/s from the vendor's figures, without sparsity; absent for a device that is not in the table.",
)  # fmt: skip

# The exporter itself.
EXPORTER_INFO = _row("exporter_info", INFO, "", ("version", "python"), "The exporter that serves this page: always 1.")
COLLECTOR_SUCCESS = _row(
    "exporter_collector_success", GAUGE, "", ("collector",),
    "1 if the collector's last collection succeeded, 0 if it failed or there is nothing it could read.",
    ("gpu", "ranks"),
)  # fmt: skip
COLLECTOR_DURATION = _row(
    "exporter_collector_duration_seconds", GAUGE, "seconds", ("collector",), "Time the last collection took."
)
COLLECTOR_AGE = _row(
    "exporter_collector_age_seconds", GAUGE, "seconds", ("collector",), "Age of the snapshot that this page shows."
)
FRAMES = _row("exporter_frames_total", COUNTER, "", (), "Frames accepted from ranks.")
FRAMES_REJECTED = _row(
    "exporter_frames_rejected_total", COUNTER, "", ("reason",), "Frames refused, by reason.", REJECT_REASONS
)
SERIES_DROPPED = _row(
    "exporter_series_dropped_total", COUNTER, "", ("reason",),
    "Series left out of accepted frames, by reason.", DROP_REASONS,
)  # fmt: skip
CLIENT_DROPPED = _row(
    "exporter_client_dropped_total", COUNTER, "", RANK,
    "What the rank's own client had to drop: unknown names, values it could not read, events beyond its memory.",
)  # fmt: skip

METRICS: tuple[Metric, ...] = tuple(_rows)
BY_NAME: Mapping[str, Metric] = MappingProxyType({row.name: row for row in METRICS})
TRAIN_METRICS: Mapping[str, Metric] = MappingProxyType(
    {row.key: row for row in METRICS if row.name.startswith(TRAIN_PREFIX) and row.kind in (COUNTER, GAUGE)}
)
"""Wire key -> metric: what a rank may put under `metrics`."""
TRAIN_HISTOGRAMS: Mapping[str, Metric] = MappingProxyType(
    {row.key: row for row in METRICS if row.name.startswith(TRAIN_PREFIX) and row.kind == HISTOGRAM}
)


def gpu_metrics() -> Iterator[Metric]:
    """Yield the families that describe a GPU."""
    return (row for row in METRICS if row.labels[:2] == GPU)
