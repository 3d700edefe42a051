"""Every metric of a rank: what it reports, and what the exporter concludes about it.

The client imports this catalog only, since each row costs import time and memory. Long, as it is a table: one row after
another, each of which is read alone.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from tachograph.catalog.metric import COUNTER, GAUGE, GPU, HISTOGRAM, INFO, RANK, TRAIN_PREFIX, Metric, Rows

PhaseName = Literal[
    "init", "data", "copy", "forward", "backward", "optimizer", "collective", "checkpoint", "eval", "other"
]  # fmt: skip
PHASES: tuple[str, ...] = get_args(PhaseName)
"""Phases of a rank; `copy` moves a batch to the device, `other` is time outside every named phase."""

OWN_PHASES = tuple(name for name in PHASES if name not in ("init", "collective", "checkpoint", "eval"))
"""Phases that every step goes through, with work of its own. Collectives are waiting for others; checkpoints and
evaluations run on their own schedule."""

StepTag = Literal["gc", "eval", "checkpoint", "compile", "warm-up", "restart"]
STEP_TAGS: tuple[str, ...] = get_args(StepTag)
"""Reasons why a step is not an ordinary one and is left out of every baseline."""

PAUSE_SHARE = 0.05
"""Of the time between the ends of two steps: what a checkpoint takes of it at most where the second is an ordinary one.
A loop may enter the phase `checkpoint` after every step and save once an hour."""

RECENT_SECONDS = 20.0
"""What counts as recent: up to the end of the last ordinary step."""

RECENT_STEPS = 3
"""Ordinary steps that are recent however long they take."""

LOST_CAUSES = ("init", "data", "collective", "checkpoint", "eval", "restart", "rework", "hang")
"""Causes of lost time. `rework` repeats steps that an earlier attempt had completed; `restart` is the time between two
attempts."""

STATES = ("running", "frozen", "dead", "failed", "finished")
"""States of a rank, as the exporter concludes them; exactly one is 1."""

ALIVE = ("running", "frozen")
"""The states of a rank whose process is there."""

OperationName = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "barrier", "other"
]  # fmt: skip
OPERATIONS: tuple[str, ...] = get_args(OperationName)
"""Collective operations, in PyTorch's words."""

DIMENSIONS = ("pp", "tp", "cp", "ep", "dp", "fsdp")
"""Dimensions of a run's parallelism: pipeline, tensor, context, expert, data, and data with sharded parameters."""

NONFINITE_SOURCES = ("loss", "grad_norm")

TierName = Literal["hero", "standard", "dev"]
TIERS: tuple[str, ...] = get_args(TierName)
"""Tiers of a run, which decide how its alerts are routed; the default is `standard`."""

ThresholdName = Literal[
    "hang_seconds", "straggler_ratio", "throughput_drop_ratio", "data_stall_ratio", "checkpoint_age_seconds"
]  # fmt: skip
THRESHOLDS: tuple[str, ...] = get_args(ThresholdName)
"""Thresholds that a run may set in place of the rules' defaults (`run:…_threshold:…` in rules/runs.yml)."""

EXIT_CODE = "exit_code"
FAILURE_REASONS = ("oom", "nonfinite", "collective", "data", "terminated", "interrupted", EXIT_CODE, "exception")
"""Reasons a rank gives for its failure: `terminated` by SIGTERM, SIGHUP or a warning of them, `interrupted` from the
keyboard, `exit_code` if all that is known is an exit code other than 0, `exception` for any other."""

END_SIGNALS: Mapping[int, str] = MappingProxyType(
    {signal.SIGHUP: "terminated", signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
)
"""The signals by which a terminal or a scheduler ends a process."""

WARNING_SIGNALS: Mapping[int, str] = MappingProxyType(
    dict.fromkeys((signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU), "terminated")
)
"""The signals by which a scheduler warns a process before that; it ends by them where its own handler raises."""

SIGNAL_EXIT_CODES: Mapping[int, str] = MappingProxyType({128 + number: end for number, end in END_SIGNALS.items()})
"""Exit codes by which a program that handles one of them says so, 128 plus the signal's number, as in a shell."""

END_REASONS = ("finished", "died", *FAILURE_REASONS)
"""How the process of a rank ended: as it should, without a word, or as a failure for one of the reasons."""

FAILURE_CATEGORIES = (
    "out_of_memory", "network", "numerical", "hardware", "data", "storage", "software", "preemption", "configuration",
)  # fmt: skip
"""What a failure is by its words, as the table of signatures classifies them (docs/logs.md)."""

MISUSES = (
    "unknown_name", "wrong_type", "unknown_phase", "unknown_tier", "unknown_threshold", "no_steps", "too_late",
)  # fmt: skip
"""Wrong uses of the client. `unknown_name`: of a logged value, an argument, a tag or an operation; `wrong_type`: a
value that cannot be what it is given for; `no_steps`: batches are drawn and no step completes; `too_late`: what must be
set before the process group."""

ROWS = Rows()
_row = ROWS.add

# Known to the exporter itself.
RANK_INFO = _row(
    "rank_info", INFO, "",
    (*RANK, "local_rank", "world_size", "attempt", "gpu", "uuid", "owner"),
    "A rank, where it is placed, and the uid of its process by the kernel: always 1. gpu and uuid are "
    "empty if its GPU is not known on this node.",
    few=True,
)  # fmt: skip
RANK_COORDINATES = _row(
    "rank_coordinates_info", INFO, "", (*RANK, *DIMENSIONS),
    "Where a rank is in the run's parallelism, by dimension: always 1, absent if nothing is known; empty: no such "
    "dimension.",
    few=True,
)  # fmt: skip
RANK_JOB_INFO = _row(
    "rank_job_info", INFO, "", (*RANK, "scheduler", "job_id", "namespace", "pod"),
    "The batch job that a rank belongs to, from its environment: always 1, absent outside of Slurm and Kubernetes.",
    detail=True,
)  # fmt: skip
RANK_UP = _row(
    "rank_up",
    GAUGE,
    "",
    RANK,
    "1 while the rank's process is connected or after it finished, 0 once it died or failed.",
    few=True,
)
RANK_STATE = _row(
    "rank_state", GAUGE, "", (*RANK, "state"),
    "1 for the current state of the rank: running, frozen (connected, silent for 10 s), dead, failed or finished.",
    STATES,
)  # fmt: skip
RANK_HEARTBEAT = _row(
    "rank_heartbeat_timestamp_seconds", GAUGE, "seconds", RANK, "Unix time of the rank's last frame, or of its death.",
    detail=True,
    unread="silence is concluded from it (tachograph_run_frozen_seconds); shown to check a client",
)  # fmt: skip
RANK_START = _row(
    "rank_start_timestamp_seconds", GAUGE, "seconds", RANK,
    "Unix time since when the rank's process has accounted for its time; absent once it ended.",
    detail=True,
    unread="the node concludes since when the run's processes run (tachograph_run_started_timestamp_seconds)",
)  # fmt: skip
RANK_ENDED = _row(
    "rank_ended_timestamp_seconds", GAUGE, "seconds", (*RANK, "reason"),
    "Unix time at which the rank ended, and why: finished, died, or its failure's reason; absent until then. It is "
    "that of the exception it raised, or of its bye, or of the end of its connection.",
    vocabulary=END_REASONS,
    few=True,
)  # fmt: skip
RANK_PROGRESS = _row(
    "rank_progress_timestamp_seconds",
    GAUGE,
    "seconds",
    RANK,
    "Unix time at which the rank completed its last step.",
    detail=True,
)
RANK_PHASE = _row(
    "rank_phase_seconds", GAUGE, "seconds", (*RANK, "phase"),
    "Seconds the rank has been in its current phase; only that phase is present.", vocabulary=PHASES,
)  # fmt: skip
RANK_PEAK_FLOPS = _row(
    "rank_peak_flops", GAUGE, "", RANK,
    "Dense peak FLOP/s of the device this rank computes on, at its precision: as given by the rank, or from the GPU "
    "table; absent for an unknown device.",
    detail=True,
)  # fmt: skip
RANK_ON_GPU = _row(
    "rank_on_gpu", GAUGE, "", (*RANK, *GPU, "name"),
    "The rank on a GPU: 1 while its process lives, 0 once it has ended. Of several ranks the first that "
    "lives, or the one that ended last.",
    few=True,
)  # fmt: skip

# Reported by the rank.
TRAIN_STEP = _row("train_step", GAUGE, "", RANK, "Current optimizer step of the rank.", lasts=True, few=True)
TRAIN_STEPS = _row("train_steps_total", COUNTER, "", RANK, "Steps that the rank completed in this attempt.")
TRAIN_STEP_UNMARKED = _row(
    "train_step_unmarked_seconds", GAUGE, "seconds", RANK,
    "Seconds the rank has been outside every phase in the middle of a step, before its optimizer; absent up to 5.",
)  # fmt: skip
TRAIN_STEP_SECONDS = _row(
    "train_step_seconds",
    HISTOGRAM,
    "seconds",
    ("run",),
    "Wall time of ordinary steps, over all ranks of the run on this node; tagged steps are left out.",
)
TRAIN_PHASE_SECONDS = _row(
    "train_phase_seconds_total", COUNTER, "seconds", (*RANK, "phase"),
    "Wall seconds spent in each phase; nested phases are never counted twice.", PHASES, detail=True,
)  # fmt: skip
TRAIN_TAGGED_STEPS = _row(
    "train_tagged_steps_total", COUNTER, "", (*RANK, "tag"),
    "Steps that are left out of baselines, by tag; absent until there is one.",
    vocabulary=STEP_TAGS, detail=True,
    unread="says which steps baselines leave out; shown to check a client",
)  # fmt: skip
TRAIN_PHASE_DEVICE_SECONDS = _row(
    "train_phase_device_seconds_total", COUNTER, "seconds", (*RANK, "phase"),
    "GPU seconds between the start and the end of each phase, measured with CUDA events; absent on CPU.",
    vocabulary=PHASES, detail=True,
    unread="GPU time by phase, for tuning a model",
)  # fmt: skip
TRAIN_PHASE_EXCESS = _row(
    "train_phase_excess_seconds_total", COUNTER, "seconds", ("run", "phase"),
    "Seconds by which phases of ordinary steps exceeded their rank's running median, waits for collectives left out; "
    "summed over the ranks of the run on this node.", PHASES,
)  # fmt: skip
TRAIN_ORDINARY_STEPS = _row(
    "train_ordinary_steps_total", COUNTER, "", RANK,
    "Ordinary steps: not tagged, and neither after a gap in the numbers nor after a pause for a save or an evaluation.",
    detail=True,
)  # fmt: skip
TRAIN_ORDINARY_SECONDS = _row(
    "train_ordinary_step_seconds_total", COUNTER, "seconds", RANK,
    "Wall seconds of ordinary steps, each from the end of the step before to its own.", detail=True,
)  # fmt: skip
TRAIN_ORDINARY_WAIT = _row(
    "train_ordinary_wait_seconds_total", COUNTER, "seconds", RANK,
    "Exposed wait for collectives in ordinary steps; absent for a rank whose waits are not measured.", detail=True,
)  # fmt: skip
TRAIN_ORDINARY_PHASES = _row(
    "train_ordinary_phase_seconds_total", COUNTER, "seconds", (*RANK, "phase"),
    "The rank's own seconds by phase in ordinary steps, measured waits for collectives left out.",
    vocabulary=OWN_PHASES, detail=True,
)  # fmt: skip
TRAIN_RECENT_STEP = _row(
    "train_recent_step_seconds", GAUGE, "seconds", RANK,
    "Median time of ordinary steps over the last 20 s, of at least 3; absent before there are 3, and when "
    "the last is too long ago (docs/protocol.md).",
)  # fmt: skip
TRAIN_RECENT_STEPS = _row(
    "train_recent_steps", GAUGE, "", RANK,
    "Ordinary steps that the rank's recent step, wait and phase seconds rest on; absent where those are.", detail=True,
    unread="says how many steps the other recent values rest on; shown to check a client",
)  # fmt: skip
TRAIN_RECENT_PHASE = _row(
    "train_recent_phase_seconds", GAUGE, "seconds", (*RANK, "phase"),
    "The rank's own time in a phase per ordinary step, measured waits for collectives left out: a mean "
    "over train_recent_steps, absent where that is.",
    vocabulary=PHASES,
)  # fmt: skip
TRAIN_RECENT_WAIT = _row(
    "train_recent_wait_seconds", GAUGE, "seconds", RANK,
    "Exposed wait for collectives per ordinary step: a mean over train_recent_steps, absent where waits "
    "are not measured. The rank that waits least arrived last.",
)  # fmt: skip
TRAIN_COLLECTIVE_WAIT = _row(
    "train_collective_wait_seconds_total", COUNTER, "seconds", (*RANK, "op"),
    "Exposed wait: seconds in which the rank could do nothing but wait for a collective. The rank that waits least "
    "arrived last.", vocabulary=OPERATIONS, detail=True,
)  # fmt: skip
TRAIN_COLLECTIVES = _row(
    "train_collectives_total", COUNTER, "", (*RANK, "op"),
    "Observed collectives that the rank entered.", vocabulary=OPERATIONS, detail=True,
    unread="traffic by operation, for tuning a model",
)  # fmt: skip
TRAIN_COLLECTIVE_BYTES = _row(
    "train_collective_bytes_total", COUNTER, "bytes", (*RANK, "op"),
    "Payload bytes that this rank contributed to collectives.", vocabulary=OPERATIONS, detail=True,
    unread="traffic by operation, for tuning a model",
)  # fmt: skip
TRAIN_COLLECTIVE_FAILURES = _row(
    "train_collective_failures_total", COUNTER, "", (*RANK, "op"),
    "Collectives that ended with an error on this rank.", vocabulary=OPERATIONS, detail=True,
)  # fmt: skip
TRAIN_COLLECTIVE_SECONDS = _row(
    "train_collective_seconds_total", COUNTER, "seconds", (*RANK, "op"),
    "Seconds from start to end of the collectives that could be timed, including the wait for late ranks.",
    vocabulary=OPERATIONS,
    detail=True,
)  # fmt: skip
TRAIN_COLLECTIVE_BUS_BYTES = _row(
    "train_collective_bus_bytes_total", COUNTER, "bytes", (*RANK, "op"),
    "Bytes that the collectives of train_collective_seconds_total move over a rank's bus: payload times the "
    "operation's factor (nccl-tests). Divided by those seconds: bus bandwidth.", vocabulary=OPERATIONS,
    detail=True,
)  # fmt: skip
TRAIN_COLLECTIVE_ENQUEUED = _row(
    "train_collective_enqueued", GAUGE, "", (*RANK, "group"),
    "Sequence number of the last collective that this rank entered in a process group (0: all ranks). In "
    "a hang, the rank with the lowest number is the culprit.", detail=True,
)  # fmt: skip
TRAIN_COLLECTIVE_COMPLETED = _row(
    "train_collective_completed", GAUGE, "", (*RANK, "group"),
    "Sequence number of the last collective completed in a process group.", detail=True,
    unread="says in a hang whether the collective that a rank entered has ended; alerts compare who entered it",
)  # fmt: skip
TRAIN_TOKENS = _row(
    "train_tokens_total", COUNTER, "", RANK,
    "Tokens that this rank trained on: as logged with each step, or its share of tokens_per_step.", loggable=True,
)  # fmt: skip
TRAIN_SAMPLES = _row(
    "train_samples_total", COUNTER, "", RANK,
    "Samples that this rank trained on: as logged with each step, or its share of samples_per_step.", loggable=True,
)  # fmt: skip
TRAIN_FLOPS = _row(
    "train_flops_total", COUNTER, "", RANK,
    "Model floating-point operations of this rank, recomputation excluded.", loggable=True,
    detail=True,
)  # fmt: skip
TRAIN_HARDWARE_FLOPS = _row(
    "train_hardware_flops_total", COUNTER, "", RANK,
    "Floating-point operations of this rank, recomputation included (HFU); absent if not known.",
    detail=True,
)  # fmt: skip
TRAIN_BATCHES = _row(
    "train_batches_total",
    COUNTER,
    "",
    RANK,
    "Batches that the data loader delivered to this rank, evaluation excluded.",
    detail=True,
)
TRAIN_DATA_QUEUE = _row(
    "train_data_queue_size", GAUGE, "", RANK,
    "Batches that the loader workers have ready; if it is 0 most of the time, training waits for data. Absent without "
    "workers.",
    loggable=True,
)  # fmt: skip
TRAIN_DATA_WORKERS = _row(
    "train_data_workers", GAUGE, "", RANK,
    "Worker processes of the PyTorch loader that training draws from. With 0, training itself makes each batch. Absent "
    "for other loaders.", detail=True,
)  # fmt: skip
TRAIN_DATA_WORKER_RESTARTS = _row(
    "train_data_worker_restarts_total", COUNTER, "", RANK,
    "Times the loader's worker processes were restarted; absent without workers.", detail=True,
)  # fmt: skip
TRAIN_LOSS = _row(
    "train_loss", GAUGE, "", RANK, "Last training loss that this rank logged; NaN if it was NaN.", loggable=True
)
TRAIN_VAL_LOSS = _row(
    "train_val_loss",
    GAUGE,
    "",
    RANK,
    "Last validation loss that this rank logged; NaN if it was NaN.",
    loggable=True,
    detail=True,
)
TRAIN_VAL_LOSS_SPIKE = _row(
    "train_val_loss_spike_evaluations", GAUGE, "", RANK,
    "Evaluations since the current spike of the validation loss began; absent while it is normal.",
)  # fmt: skip
TRAIN_GRAD_NORM = _row(
    "train_grad_norm", GAUGE, "", RANK, "Last gradient norm that this rank logged.", loggable=True, detail=True
)
TRAIN_LEARNING_RATE = _row(
    "train_learning_rate",
    GAUGE,
    "",
    RANK,
    "Last learning rate that this rank logged.",
    loggable=True,
    detail=True,
)
TRAIN_LOSS_ZSCORE = _row(
    "train_loss_zscore", GAUGE, "", RANK,
    "Rise of the last loss above the median of recent losses, in robust standard deviations of such rises; spikes are "
    "left out of that baseline.",
    detail=True,
)  # fmt: skip
TRAIN_LOSS_TRAILING_ZSCORE = _row(
    "train_loss_trailing_zscore", GAUGE, "", RANK,
    "Z-score of the last loss against the mean and standard deviation of the four before it.", detail=True,
)  # fmt: skip
TRAIN_LOSS_LOG_ZSCORE = _row(
    "train_loss_log_zscore", GAUGE, "", RANK,
    "Robust z-score of the logarithm of the last loss, against median and MAD of recent losses.",
    detail=True,
    unread="the third of three measures of a spike, for comparing them",
)  # fmt: skip
TRAIN_LOSS_SPIKES = _row(
    "train_loss_spikes_total", COUNTER, "", RANK, "Loss spikes that began on this rank.", detail=True
)
TRAIN_LOSS_SPIKE_STEPS = _row(
    "train_loss_spike_steps",
    GAUGE,
    "",
    RANK,
    "Steps since the current loss spike began; 0 while the loss is normal.",
    detail=True,
)
TRAIN_GRAD_NORM_SPIKE_STEPS = _row(
    "train_grad_norm_spike_steps", GAUGE, "", RANK,
    "Steps since the current spike of the gradient norm began; 0 while the norm is normal.",
    detail=True,
)  # fmt: skip
TRAIN_GRAD_NORM_LEVEL = _row(
    "train_grad_norm_level", GAUGE, "", RANK,
    "Usual gradient norm of this rank: the median of its last 480 normal ones.",
    detail=True,
)  # fmt: skip
TRAIN_GRAD_NORM_NONFINITE_STEPS = _row(
    "train_grad_norm_nonfinite_steps", GAUGE, "", RANK,
    "Steps in a row whose gradient norm was NaN or infinite; absent while it is finite.",
    few=True,
)  # fmt: skip
TRAIN_LAYER_GRAD_NORM = _row(
    "train_layer_grad_norm", GAUGE, "", (*RANK, "layer"),
    "Gradient norm of the layers that are furthest above their usual one, on rank 0 if enabled.",
)  # fmt: skip
TRAIN_LAYER_GRAD_RATIO = _row(
    "train_layer_grad_ratio", GAUGE, "ratio", (*RANK, "layer"),
    "Gradient norm of a layer divided by the median of its recent ones, for the layers of train_layer_grad_norm.",
)  # fmt: skip
TRAIN_DEAD_LAYERS = _row(
    "train_dead_layers", GAUGE, "", RANK, "Layers whose gradient was exactly zero when last sampled, if enabled."
)
TRAIN_LAYER_ACTIVATION_RMS = _row(
    "train_layer_activation_rms", GAUGE, "", (*RANK, "layer"),
    "Root mean square of a layer's output when last sampled, on rank 0 if enabled.",
)  # fmt: skip
TRAIN_LAYER_ACTIVATION_ZERO = _row(
    "train_layer_activation_zero_ratio", GAUGE, "ratio", (*RANK, "layer"),
    "Share of a layer's outputs that were exactly zero when last sampled, on rank 0 if enabled.",
    unread="opt-in, for looking into a model layer by layer",
)  # fmt: skip
TRAIN_UPDATE_RATIO = _row(
    "train_update_ratio", GAUGE, "ratio", RANK,
    "Norm of the last sampled parameter update divided by the norm of those parameters; about 1e-3 is usual.",
    loggable=True,
)  # fmt: skip
TRAIN_SCHEDULE_STEP = _row(
    "train_schedule_step", GAUGE, "", RANK,
    "Steps that the learning-rate scheduler has counted; absent if no scheduler is watched.",
)  # fmt: skip
TRAIN_TOTAL_STEPS = _row(
    "train_total_steps", GAUGE, "", RANK,
    "Optimizer step at which the run is to end; absent if not given.", loggable=True, lasts=True,
)  # fmt: skip
TRAIN_AMP_LOSS_SCALE = _row(
    "train_amp_loss_scale", GAUGE, "", RANK,
    "Loss scale of mixed precision; absent if no scaler is watched.", loggable=True,
)  # fmt: skip
TRAIN_AMP_SKIPPED = _row(
    "train_amp_skipped_steps_total", COUNTER, "", RANK,
    "Steps that mixed precision skipped because a gradient was not finite; absent if no scaler is watched.",
)  # fmt: skip
TRAIN_NONFINITE = _row(
    "train_nonfinite_total", COUNTER, "", (*RANK, "source"), "Steps whose loss or gradient norm was NaN or infinite.",
    NONFINITE_SOURCES, rare=True,
)  # fmt: skip
TRAIN_NONFINITE_STEP = _row(
    "train_nonfinite_step", GAUGE, "", (*RANK, "source"),
    "Step of the first NaN or infinite value, reset after 100 finite ones. The rank with the lowest step is the "
    "culprit.",
    vocabulary=NONFINITE_SOURCES, lasts=True,
    few=True,
)  # fmt: skip
TRAIN_LOSS_NONFINITE_TIMESTAMP = _row(
    "train_loss_nonfinite_timestamp_seconds", GAUGE, "seconds", RANK,
    "Unix time at which the loss was last NaN or infinite; absent if it never was.", lasts=True,
    few=True,
)  # fmt: skip
TRAIN_CHECKPOINTS = _row(
    "train_checkpoints_total",
    COUNTER,
    "",
    RANK,
    "Checkpoints that this rank reported as saved.",
    detail=True,
    unread="a total to look at; alerts read the last checkpoint's time",
)
TRAIN_CHECKPOINT_SECONDS = _row(
    "train_checkpoint_seconds_total", COUNTER, "seconds", RANK,
    "Wall seconds spent in the checkpoint phase.", detail=True,
    unread="a total to look at; alerts read the last checkpoint's duration",
)  # fmt: skip
TRAIN_CHECKPOINT_TIMESTAMP = _row(
    "train_checkpoint_timestamp_seconds",
    GAUGE,
    "seconds",
    RANK,
    "Unix time of the last saved checkpoint.",
    lasts=True,
    few=True,
)
TRAIN_CHECKPOINT_STEP = _row(
    "train_checkpoint_step", GAUGE, "", RANK, "Step of the last saved checkpoint.", lasts=True, few=True
)
TRAIN_CHECKPOINT_DURATION = _row(
    "train_checkpoint_duration_seconds", GAUGE, "seconds", RANK,
    "Wall seconds that this rank spent in the checkpoint phase for the last saved checkpoint.",
    few=True,
)  # fmt: skip
TRAIN_CHECKPOINT_LOAD_DURATION = _row(
    "train_checkpoint_load_duration_seconds", GAUGE, "seconds", RANK,
    "Wall seconds that loading the checkpoint took when this attempt resumed; absent if not reported.",
)  # fmt: skip
TRAIN_RESUME_STEP = _row(
    "train_resume_step", GAUGE, "", RANK, "Step of the checkpoint this attempt resumed from; absent for a fresh start."
)
TRAIN_CHECKPOINT_BYTES = _row(
    "train_checkpoint_bytes", GAUGE, "bytes", RANK, "Size of the last saved checkpoint.", detail=True
)
TRAIN_CHECKPOINT_FREE = _row(
    "train_checkpoint_free_ratio", GAUGE, "ratio", RANK,
    "Share of the last checkpoint's file system that was free for this user once it was saved; absent if its path is "
    "not known.",
    few=True,
)  # fmt: skip
TRAIN_CHECKPOINT_FAILURES = _row(
    "train_checkpoint_failures_total",
    COUNTER,
    "",
    RANK,
    "Checkpoint phases that ended with an exception.",
    rare=True,
)
TRAIN_FAILURES = _row(
    "train_failures_total", COUNTER, "", (*RANK, "category"),
    "Failures of this rank's process, by what its last words are, as `tachograph logs` classifies them, or else its "
    "reason; absent while it runs, and if it was killed.",
    vocabulary=FAILURE_CATEGORIES,
)  # fmt: skip
TRAIN_MEMORY_ALLOCATED = _row(
    "train_memory_allocated_bytes", GAUGE, "bytes", RANK,
    "GPU memory in live tensors, as counted by PyTorch's allocator.", detail=True, loggable=True,
    unread="what tensors take now; their peak is in tachograph_run_memory_peak_ratio",
)  # fmt: skip
TRAIN_MEMORY_RESERVED = _row(
    "train_memory_reserved_bytes", GAUGE, "bytes", RANK,
    "GPU memory that PyTorch's allocator has reserved from the driver.", loggable=True,
)  # fmt: skip
TRAIN_MEMORY_PEAK = _row(
    "train_memory_peak_bytes", GAUGE, "bytes", RANK,
    "Highest GPU memory in live tensors since the process started.", loggable=True,
    detail=True,
)  # fmt: skip
TRAIN_MEMORY_INACTIVE = _row(
    "train_memory_inactive_bytes", GAUGE, "bytes", RANK,
    "GPU memory that the allocator holds in unused split blocks and cannot release: fragmentation.",
    loggable=True,
    detail=True,
)  # fmt: skip
TRAIN_MEMORY_RETRIES = _row(
    "train_memory_retries_total", COUNTER, "", RANK,
    "Allocations that succeeded only after the allocator had emptied its cache; absent until there is one.",
)  # fmt: skip
TRAIN_MEMORY_OOMS = _row(
    "train_memory_ooms_total", COUNTER, "", RANK,
    "Out-of-memory errors of the GPU allocator, caught ones included; absent until there is one.",
)  # fmt: skip
TRAIN_HOST_MEMORY = _row(
    "train_host_memory_bytes",
    GAUGE,
    "bytes",
    RANK,
    "Resident host memory of the rank's process, without its children and without mapped files.",
)
TRAIN_LAYER_MEMORY_PEAK = _row(
    "train_layer_memory_peak_bytes", GAUGE, "bytes", (*RANK, "layer"),
    "Highest GPU memory in live tensors during a layer's forward pass, if enabled.",
    unread="opt-in, for looking into a model layer by layer",
)  # fmt: skip
TRAIN_INVARIANT = _row(
    "train_invariant", GAUGE, "", (*RANK, "name"),
    "A number that must be equal on all ranks at the same train_invariant_step: a checksum, a global batch, a count. "
    "known_product: deviation of a product from its known result, 0 if correct.",
)  # fmt: skip
TRAIN_INVARIANT_STEP = _row(
    "train_invariant_step", GAUGE, "", (*RANK, "name"),
    "Step at which train_invariant was taken; only ranks at the same step can be compared.",
)  # fmt: skip
TRAIN_PRODUCTIVE = _row(
    "train_productive_seconds_total", COUNTER, "seconds", ("run",),
    "Rank-seconds of new training work: compute and optimizer, without waits; summed over the ranks of the run on this "
    "node.",
)  # fmt: skip
TRAIN_LOST = _row(
    "train_lost_seconds_total", COUNTER, "seconds", ("run", "cause"),
    "Rank-seconds without new work, by cause; summed over the ranks of the run on this node.", LOST_CAUSES,
)  # fmt: skip
TRAIN_RESTARTS = _row(
    "train_restarts_total", COUNTER, "", RANK,
    "Restarts of the rank: processes after its first, as far as known from its attempt number or on this node.",
    concluded=True, detail=True,
    unread="which rank was restarted; the run's are in tachograph_run_restarts",
)  # fmt: skip
TRAIN_THRESHOLD = _row(
    "train_threshold", GAUGE, "", (*RANK, "name"),
    "Threshold that the run set for its own alerts, by name; the most tolerant rank's value applies.",
    detail=True,
)  # fmt: skip
TRAIN_CUSTOM = _row(
    "train_custom", GAUGE, "", (*RANK, "name"),
    "Last logged value of a metric that the run declared with Recorder(metrics=…), by name; the status page of the "
    "exporter shows its description.",
)  # fmt: skip
TRAIN_MISUSE = _row(
    "train_misuse_total", COUNTER, "", (*RANK, "kind"),
    "Wrong uses of the client by this rank's script, by kind; absent until there is one. The status page of the "
    "exporter says which.", vocabulary=MISUSES,
    few=True,
)  # fmt: skip
TRAIN_CONFIG_INFO = _row(
    "train_config_info", INFO, "", (*RANK, "precision", "global_batch", "framework", "flops_convention", "tier"),
    "Static facts given in the rank's hello: always 1. Empty: not given.",
    detail=True,
)  # fmt: skip

TRAIN_METRICS: Mapping[str, Metric] = MappingProxyType(
    {row.key: row for row in ROWS if row.name.startswith(TRAIN_PREFIX) and row.kind in (COUNTER, GAUGE)}
)
"""Wire key -> metric: the keys that a rank may send under `metrics`."""
LOGGABLE = frozenset(key for key, row in TRAIN_METRICS.items() if row.loggable and row.kind == GAUGE)
"""Wire keys that `step.log` takes."""
WORK: Mapping[str, str] = MappingProxyType(
    {key.removesuffix("_total"): key for key, row in TRAIN_METRICS.items() if row.loggable and row.kind == COUNTER}
)
"""Name under which `step.log` takes what a step is worth -> wire key of the counter that it is added to."""
TRAIN_HISTOGRAMS: Mapping[str, Metric] = MappingProxyType(
    {row.key: row for row in ROWS if row.name.startswith(TRAIN_PREFIX) and row.kind == HISTOGRAM}
)
