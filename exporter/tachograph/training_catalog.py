"""Every metric of a rank: what it reports, and what the exporter concludes of it.

The client knows these rows alone: they cost it import time and memory, so what is not a rank's stands elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tachograph.metric import COUNTER, GAUGE, HISTOGRAM, INFO, RANK, TRAIN_PREFIX, Metric, Rows

PHASES = ("init", "data", "forward", "backward", "optimizer", "collective", "checkpoint", "eval", "other")
"""What a rank can be doing; `other` is a step's time outside every named phase."""

STATES = ("running", "frozen", "dead", "failed", "finished")
"""What the exporter concludes of a rank; exactly one is 1."""

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "barrier", "other")
"""Collective operations, in PyTorch's words."""

NONFINITE_SOURCES = ("loss", "grad_norm")

FAILURE_CATEGORIES = ("oom", "nonfinite", "collective", "data", "terminated", "interrupted", "exception")
"""Why a rank said it ended: `terminated` by SIGTERM, `interrupted` from the keyboard, `exception` for all else."""

ROWS = Rows()
_row = ROWS.add

# What the exporter knows of a rank.
RANK_INFO = _row(
    "rank_info", INFO, "",
    (*RANK, "local_rank", "world_size", "attempt", "gpu", "uuid"),
    "A rank and where it sits: always 1. Empty gpu and uuid: the rank has no GPU that this node knows.",
)  # fmt: skip
RANK_JOB_INFO = _row(
    "rank_job_info", INFO, "", (*RANK, "scheduler", "job_id", "namespace", "pod"),
    "The batch job that a rank belongs to, by its own environment: always 1, absent outside of Slurm and Kubernetes.",
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

TRAIN_METRICS: Mapping[str, Metric] = MappingProxyType(
    {row.key: row for row in ROWS if row.name.startswith(TRAIN_PREFIX) and row.kind in (COUNTER, GAUGE)}
)
"""Wire key -> metric: what a rank may put under `metrics`."""
TRAIN_HISTOGRAMS: Mapping[str, Metric] = MappingProxyType(
    {row.key: row for row in ROWS if row.name.startswith(TRAIN_PREFIX) and row.kind == HISTOGRAM}
)
