"""Every metric of a rank: what it reports, and what the exporter concludes of it.

The client knows these rows alone: they cost it import time and memory, so what is not a rank's stands elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tachograph.catalog.metric import COUNTER, GAUGE, HISTOGRAM, INFO, RANK, TRAIN_PREFIX, Metric, Rows

PHASES = ("init", "data", "copy", "forward", "backward", "optimizer", "collective", "checkpoint", "eval", "other")
"""What a rank can be doing; `copy` moves a batch to the device, `other` is time outside every named phase."""

STEP_TAGS = ("gc", "eval", "checkpoint", "compile", "warm-up", "restart")
"""Why a step is no ordinary one, and stays out of every baseline."""

LOST_CAUSES = ("init", "data", "collective", "checkpoint", "eval", "restart", "rework", "hang")
"""What a second was lost to. `rework` repeats steps that an earlier attempt had done; `restart` is the time between two
attempts."""

STATES = ("running", "frozen", "dead", "failed", "finished")
"""What the exporter concludes of a rank; exactly one is 1."""

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "barrier", "other")
"""Collective operations, in PyTorch's words."""

NONFINITE_SOURCES = ("loss", "grad_norm")

TIERS = ("hero", "standard", "dev")
"""How much a run is worth waking people for; a run that does not say is a standard one."""

THRESHOLDS = ("hang_seconds", "straggler_ratio", "throughput_drop_ratio", "data_stall_ratio", "checkpoint_age_seconds")
"""What a run may set for itself in place of the rules' defaults (`run:…_threshold:…` in rules/runs.yml)."""

FAILURE_CATEGORIES = ("oom", "nonfinite", "collective", "data", "terminated", "interrupted", "exception")
"""Why a rank said it ended: `terminated` by SIGTERM, `interrupted` from the keyboard, `exception` for all else."""

ROWS = Rows()
_row = ROWS.add

# What the exporter knows of a rank.
RANK_INFO = _row(
    "rank_info", INFO, "",
    (*RANK, "local_rank", "world_size", "attempt", "gpu", "uuid", "owner"),
    "A rank, where it sits, and the uid of its process as the kernel gives it: always 1. Empty gpu and uuid: the rank "
    "has no GPU that this node knows.",
)  # fmt: skip
RANK_BEYOND_WORLD = _row(
    "rank_beyond_world_info", INFO, "", (*RANK, "world_size", "owner"),
    "A rank whose number is not below its own world size: always 1, absent for all others.",
)  # fmt: skip
RANK_JOB_INFO = _row(
    "rank_job_info", INFO, "", (*RANK, "scheduler", "job_id", "namespace", "pod"),
    "The batch job that a rank belongs to, by its own environment: always 1, absent outside of Slurm and Kubernetes.",
)  # fmt: skip
RANK_NEW = _row(
    "rank_new_info", INFO, "", (*RANK, "owner"),
    "A rank in the first minute in which this exporter knows its process: always 1. Rules ask these whether they "
    "belong.",
)  # fmt: skip
RANK_UP = _row("rank_up", GAUGE, "", RANK, "1 while the rank's process holds its connection, 0 once it died.")
RANK_STATE = _row(
    "rank_state", GAUGE, "", (*RANK, "state"),
    "1 for the state the rank is in: running, frozen (connected, silent for 10 s), dead, failed or finished.", STATES,
)  # fmt: skip
RANK_HEARTBEAT = _row(
    "rank_heartbeat_timestamp_seconds", GAUGE, "seconds", RANK, "Unix time of the rank's last frame or its death."
)
RANK_PROGRESS = _row(
    "rank_progress_timestamp_seconds", GAUGE, "seconds", RANK, "Unix time at which the rank completed its last step."
)
RANK_PHASE = _row(
    "rank_phase_seconds", GAUGE, "seconds", (*RANK, "phase"),
    "Seconds the rank has been in its current phase; only that phase is present.", vocabulary=PHASES,
)  # fmt: skip
RANK_PEAK_FLOPS = _row(
    "rank_peak_flops", GAUGE, "", RANK,
    "Dense peak FLOP/s of the device this rank computes on, at its precision: as the rank gave it, else from the GPU "
    "table; absent for an unknown device.",
)  # fmt: skip

# What a rank reports.
TRAIN_STEP = _row("train_step", GAUGE, "", RANK, "The optimizer step the rank is at.", lasts=True)
TRAIN_STEPS = _row("train_steps_total", COUNTER, "", RANK, "Steps the rank completed in this attempt.")
TRAIN_STEP_SECONDS = _row(
    "train_step_seconds",
    HISTOGRAM,
    "seconds",
    ("run",),
    "Wall time of an ordinary step, all ranks of this node together; tagged steps are left out.",
)
TRAIN_PHASE_SECONDS = _row(
    "train_phase_seconds_total", COUNTER, "seconds", (*RANK, "phase"),
    "Wall seconds spent in each phase; nested phases never count twice.", PHASES,
)  # fmt: skip
TRAIN_TAGGED_STEPS = _row(
    "train_tagged_steps_total", COUNTER, "", (*RANK, "tag"),
    "Steps that are no ordinary ones and stay out of baselines, by tag; absent while there was none.",
    vocabulary=STEP_TAGS,
)  # fmt: skip
TRAIN_PHASE_DEVICE_SECONDS = _row(
    "train_phase_device_seconds_total", COUNTER, "seconds", (*RANK, "phase"),
    "GPU seconds between the start and the end of each phase, by CUDA events; absent on CPU.",
    vocabulary=PHASES, detail=True,
)  # fmt: skip
TRAIN_PHASE_EXCESS = _row(
    "train_phase_excess_seconds_total", COUNTER, "seconds", ("run", "phase"),
    "Seconds by which phases of single ordinary steps took longer than usual for their rank (its own running median), "
    "waits for collectives left out; all ranks of this node together.", PHASES,
)  # fmt: skip
TRAIN_COLLECTIVE_WAIT = _row(
    "train_collective_wait_seconds_total", COUNTER, "seconds", (*RANK, "op"),
    "Exposed wait: seconds in which the rank had nothing left to do but wait for a collective. The rank that waits "
    "least arrived last.", vocabulary=OPERATIONS,
)  # fmt: skip
TRAIN_COLLECTIVES = _row(
    "train_collectives_total", COUNTER, "", (*RANK, "op"),
    "Collectives the rank entered and that were observed.", vocabulary=OPERATIONS, detail=True,
)  # fmt: skip
TRAIN_COLLECTIVE_BYTES = _row(
    "train_collective_bytes_total", COUNTER, "bytes", (*RANK, "op"),
    "Payload bytes this rank gave to collectives.", vocabulary=OPERATIONS, detail=True,
)  # fmt: skip
TRAIN_COLLECTIVE_FAILURES = _row(
    "train_collective_failures_total", COUNTER, "", (*RANK, "op"),
    "Collectives that ended with an error on this rank.", vocabulary=OPERATIONS,
)  # fmt: skip
TRAIN_COLLECTIVE_SECONDS = _row(
    "train_collective_seconds_total", COUNTER, "seconds", (*RANK, "op"),
    "Seconds from start to end of those collectives whose length could be measured, the wait for late ranks included.",
    vocabulary=OPERATIONS,
)  # fmt: skip
TRAIN_COLLECTIVE_BUS_BYTES = _row(
    "train_collective_bus_bytes_total", COUNTER, "bytes", (*RANK, "op"),
    "Bytes that the collectives of train_collective_seconds_total move over the bus of a rank: payload times the "
    "operation's factor (nccl-tests). Over those seconds: bus bandwidth.", vocabulary=OPERATIONS,
)  # fmt: skip
TRAIN_COLLECTIVE_ENQUEUED = _row(
    "train_collective_enqueued", GAUGE, "", (*RANK, "group"),
    "Sequence number of the last collective this rank entered in a process group. In a hang, the lowest one is the "
    "culprit's.",
)  # fmt: skip
TRAIN_COLLECTIVE_COMPLETED = _row(
    "train_collective_completed", GAUGE, "", (*RANK, "group"),
    "Sequence number of the last collective completed in a process group.", detail=True,
)  # fmt: skip
TRAIN_TOKENS = _row("train_tokens_total", COUNTER, "", RANK, "Tokens this rank trained on.")
TRAIN_SAMPLES = _row("train_samples_total", COUNTER, "", RANK, "Samples this rank trained on.")
TRAIN_FLOPS = _row(
    "train_flops_total", COUNTER, "", RANK, "Model floating-point operations of this rank, without recomputation."
)
TRAIN_HARDWARE_FLOPS = _row(
    "train_hardware_flops_total", COUNTER, "", RANK,
    "Floating-point operations of this rank, recomputation included (HFU); absent where it is not known.",
)  # fmt: skip
TRAIN_BATCHES = _row(
    "train_batches_total", COUNTER, "", RANK, "Batches the data loader delivered to this rank, evaluation left out."
)
TRAIN_DATA_QUEUE = _row(
    "train_data_queue_size", GAUGE, "", RANK,
    "Batches that loader workers have ready; 0 most of the time: training waits for data. Absent without workers.",
    loggable=True,
)  # fmt: skip
TRAIN_DATA_WORKER_RESTARTS = _row(
    "train_data_worker_restarts_total", COUNTER, "", RANK,
    "Times the loader's worker processes were started again after the first; absent without workers.", detail=True,
)  # fmt: skip
TRAIN_LOSS = _row(
    "train_loss", GAUGE, "", RANK, "The last training loss this rank logged; NaN if it was NaN.", loggable=True
)
TRAIN_GRAD_NORM = _row("train_grad_norm", GAUGE, "", RANK, "The last gradient norm this rank logged.", loggable=True)
TRAIN_LEARNING_RATE = _row(
    "train_learning_rate", GAUGE, "", RANK, "The last learning rate this rank logged.", loggable=True
)
TRAIN_LOSS_ZSCORE = _row(
    "train_loss_zscore", GAUGE, "", RANK,
    "Rise of the last loss above the median of the recent ones, in robust standard deviations of such rises; spikes "
    "never enter that past.",
)  # fmt: skip
TRAIN_LOSS_TRAILING_ZSCORE = _row(
    "train_loss_trailing_zscore", GAUGE, "", RANK,
    "The last loss against mean and standard deviation of the four before it: the textbook z-score.", detail=True,
)  # fmt: skip
TRAIN_LOSS_LOG_ZSCORE = _row(
    "train_loss_log_zscore", GAUGE, "", RANK,
    "The logarithm of the last loss against median and MAD of the recent ones, scaled to standard deviations.",
    detail=True,
)  # fmt: skip
TRAIN_LOSS_SPIKES = _row("train_loss_spikes_total", COUNTER, "", RANK, "Loss spikes that began on this rank.")
TRAIN_LOSS_SPIKE_STEPS = _row(
    "train_loss_spike_steps", GAUGE, "", RANK, "Steps since the current loss spike began; 0 while the loss is normal."
)
TRAIN_GRAD_NORM_SPIKE_STEPS = _row(
    "train_grad_norm_spike_steps", GAUGE, "", RANK,
    "Steps since the current spike of the gradient norm began; 0 while the norm is normal.",
)  # fmt: skip
TRAIN_GRAD_NORM_LEVEL = _row(
    "train_grad_norm_level", GAUGE, "", RANK,
    "The usual gradient norm of this rank: the median of its last 480 normal ones.",
)  # fmt: skip
TRAIN_LAYER_GRAD_NORM = _row(
    "train_layer_grad_norm", GAUGE, "", (*RANK, "layer"),
    "Gradient norm of the layers that are furthest above their own usual one, on rank 0 where asked for.",
)  # fmt: skip
TRAIN_LAYER_GRAD_RATIO = _row(
    "train_layer_grad_ratio", GAUGE, "ratio", (*RANK, "layer"),
    "Gradient norm of a layer over the median of its own recent ones; the layers of train_layer_grad_norm.",
)  # fmt: skip
TRAIN_DEAD_LAYERS = _row(
    "train_dead_layers", GAUGE, "", RANK, "Layers whose gradient was exactly zero at the last look, where asked for."
)
TRAIN_LAYER_ACTIVATION_RMS = _row(
    "train_layer_activation_rms", GAUGE, "", (*RANK, "layer"),
    "Root mean square of a layer's output at the last look, on rank 0 where asked for.",
)  # fmt: skip
TRAIN_LAYER_ACTIVATION_ZERO = _row(
    "train_layer_activation_zero_ratio", GAUGE, "ratio", (*RANK, "layer"),
    "Share of a layer's outputs that are exactly zero at the last look, on rank 0 where asked for.",
)  # fmt: skip
TRAIN_UPDATE_RATIO = _row(
    "train_update_ratio", GAUGE, "ratio", RANK,
    "Norm of the last sampled parameter update over the norm of those parameters; near 1e-3 is usual.", loggable=True,
)  # fmt: skip
TRAIN_SCHEDULE_STEP = _row(
    "train_schedule_step", GAUGE, "", RANK,
    "Steps the learning-rate schedule has made by its own count; absent without a watched schedule.",
)  # fmt: skip
TRAIN_TOTAL_STEPS = _row(
    "train_total_steps", GAUGE, "", RANK,
    "Optimizer step at which the run is to end; absent if not given.", loggable=True,
)  # fmt: skip
TRAIN_AMP_LOSS_SCALE = _row(
    "train_amp_loss_scale", GAUGE, "", RANK,
    "Loss scale of mixed precision; absent without a watched scaler.", loggable=True,
)  # fmt: skip
TRAIN_AMP_SKIPPED = _row(
    "train_amp_skipped_steps_total", COUNTER, "", RANK,
    "Steps that mixed precision skipped because a gradient was not finite; absent without a watched scaler.",
)  # fmt: skip
TRAIN_NONFINITE = _row(
    "train_nonfinite_total", COUNTER, "", (*RANK, "source"), "Steps whose loss or gradient norm was NaN or infinite.",
    NONFINITE_SOURCES,
)  # fmt: skip
TRAIN_NONFINITE_STEP = _row(
    "train_nonfinite_step", GAUGE, "", (*RANK, "source"),
    "Step of the first NaN or infinite value, anew after 100 finite ones. The lowest one is the culprit's.",
    vocabulary=NONFINITE_SOURCES, lasts=True,
)  # fmt: skip
TRAIN_CHECKPOINTS = _row(
    "train_checkpoints_total", COUNTER, "", RANK, "Checkpoints this rank reported as saved.", detail=True
)
TRAIN_CHECKPOINT_SECONDS = _row(
    "train_checkpoint_seconds_total", COUNTER, "seconds", RANK,
    "Wall seconds spent in the checkpoint phase.", detail=True,
)  # fmt: skip
TRAIN_CHECKPOINT_TIMESTAMP = _row(
    "train_checkpoint_timestamp_seconds", GAUGE, "seconds", RANK, "Unix time of the last saved checkpoint.", lasts=True
)
TRAIN_CHECKPOINT_STEP = _row("train_checkpoint_step", GAUGE, "", RANK, "Step of the last saved checkpoint.", lasts=True)
TRAIN_CHECKPOINT_DURATION = _row(
    "train_checkpoint_duration_seconds", GAUGE, "seconds", RANK,
    "Wall seconds in the checkpoint phase that the last saved checkpoint took this rank.",
)  # fmt: skip
TRAIN_CHECKPOINT_LOAD_DURATION = _row(
    "train_checkpoint_load_duration_seconds", GAUGE, "seconds", RANK,
    "Wall seconds that loading the checkpoint took when this attempt resumed; absent where it did not say.",
)  # fmt: skip
TRAIN_RESUME_STEP = _row(
    "train_resume_step", GAUGE, "", RANK, "Step of the checkpoint this attempt resumed from; absent for a fresh start."
)
TRAIN_CHECKPOINT_BYTES = _row(
    "train_checkpoint_bytes", GAUGE, "bytes", RANK, "Size of the last saved checkpoint.", detail=True
)
TRAIN_CHECKPOINT_FAILURES = _row(
    "train_checkpoint_failures_total", COUNTER, "", RANK, "Checkpoint phases that ended with an exception."
)
TRAIN_FAILURES = _row(
    "train_failures_total", COUNTER, "", (*RANK, "category"),
    "Ends of this rank's process with an error, by the category of its goodbye; absent while it lives, and for one "
    "that was killed.", vocabulary=FAILURE_CATEGORIES,
)  # fmt: skip
TRAIN_MEMORY_ALLOCATED = _row(
    "train_memory_allocated_bytes", GAUGE, "bytes", RANK,
    "GPU memory in live tensors, by PyTorch's allocator.", detail=True, loggable=True,
)  # fmt: skip
TRAIN_MEMORY_RESERVED = _row(
    "train_memory_reserved_bytes", GAUGE, "bytes", RANK,
    "GPU memory PyTorch's allocator holds from the driver.", loggable=True,
)  # fmt: skip
TRAIN_MEMORY_PEAK = _row(
    "train_memory_peak_bytes", GAUGE, "bytes", RANK,
    "Highest GPU memory in live tensors since the process started.", loggable=True,
)  # fmt: skip
TRAIN_MEMORY_INACTIVE = _row(
    "train_memory_inactive_bytes", GAUGE, "bytes", RANK,
    "GPU memory that the allocator holds in split blocks which nothing uses and nobody else can have: fragmentation.",
    loggable=True,
)  # fmt: skip
TRAIN_MEMORY_RETRIES = _row(
    "train_memory_retries_total", COUNTER, "", RANK,
    "Allocations that succeeded only after the allocator had emptied its cache; absent while there was none.",
)  # fmt: skip
TRAIN_MEMORY_OOMS = _row(
    "train_memory_ooms_total", COUNTER, "", RANK,
    "Out-of-memory errors of the GPU allocator, caught ones included; absent while there was none.",
)  # fmt: skip
TRAIN_HOST_MEMORY = _row(
    "train_host_memory_bytes",
    GAUGE,
    "bytes",
    RANK,
    "Host memory of the rank's process alone: resident, without its children and without mapped files.",
)
TRAIN_LAYER_MEMORY_PEAK = _row(
    "train_layer_memory_peak_bytes", GAUGE, "bytes", (*RANK, "layer"),
    "Highest GPU memory in live tensors while a layer ran forward, where asked for.",
)  # fmt: skip
TRAIN_INVARIANT = _row(
    "train_invariant", GAUGE, "", (*RANK, "name"),
    "A number that all ranks must share at the same train_invariant_step: a checksum, a global batch, a count. Of "
    "known_product: how far a product is from its known result, 0 if right.",
)  # fmt: skip
TRAIN_INVARIANT_STEP = _row(
    "train_invariant_step", GAUGE, "", (*RANK, "name"),
    "Step at which train_invariant was taken; only ranks at the same one can be compared.",
)  # fmt: skip
TRAIN_PRODUCTIVE = _row(
    "train_productive_seconds_total", COUNTER, "seconds", ("run",),
    "Rank-seconds of new training work: compute and optimizer, waits left out; all ranks of this node together.",
)  # fmt: skip
TRAIN_LOST = _row(
    "train_lost_seconds_total", COUNTER, "seconds", ("run", "cause"),
    "Rank-seconds that brought no new work, by cause; all ranks of this node together.", LOST_CAUSES,
)  # fmt: skip
TRAIN_RESTARTS = _row(
    "train_restarts_total", COUNTER, "", RANK,
    "Times the rank began again: processes of this rank after its first, as far as its attempt number or this node "
    "knows.", concluded=True,
)  # fmt: skip
TRAIN_THRESHOLD = _row(
    "train_threshold", GAUGE, "", (*RANK, "name"),
    "A limit the run set for its own alerts, by name; the most tolerant rank's counts.",
)  # fmt: skip
TRAIN_CONFIG_INFO = _row(
    "train_config_info", INFO, "", (*RANK, "precision", "global_batch", "framework", "flops_convention", "tier"),
    "Static facts a rank gave at hello: always 1. Empty: not given.",
)  # fmt: skip

TRAIN_METRICS: Mapping[str, Metric] = MappingProxyType(
    {row.key: row for row in ROWS if row.name.startswith(TRAIN_PREFIX) and row.kind in (COUNTER, GAUGE)}
)
"""Wire key -> metric: what a rank may put under `metrics`."""
LOGGABLE = frozenset(key for key, row in TRAIN_METRICS.items() if row.loggable)
"""Wire keys that `step.log` takes."""
TRAIN_HISTOGRAMS: Mapping[str, Metric] = MappingProxyType(
    {row.key: row for row in ROWS if row.name.startswith(TRAIN_PREFIX) and row.kind == HISTOGRAM}
)
