"""Every metric of a rank: what it reports, and what the exporter concludes about it.

The client imports only this catalog, since each row costs import time and memory. It is long because it is a table: one
row after another, each read on its own.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from tachograph.catalog.metric import COUNTER, GAUGE, GPU, HISTOGRAM, INFO, RANK, TRAIN_PREFIX, Metric, Rows

PhaseName = Literal[
    "init", "data", "copy", "forward", "backward", "optimizer", "collective", "checkpoint", "eval", "other",
    "generate", "reward", "sync",
]  # fmt: skip
PHASES: tuple[str, ...] = get_args(PhaseName)
"""Phases of a rank; `copy` moves a batch to the device, `other` is time outside every named phase."""
GENERATION = ("generate", "reward", "sync")
"""Phases of a loop that generates what it trains on: sampling, rewarding, and sending weights to an engine."""
USUAL_PHASES = tuple(name for name in PHASES if name not in GENERATION)
"""Phases that every loop may have, and always has series for; a loop that generates also has those in GENERATION."""
PAUSES = ("init", "checkpoint", "eval", *GENERATION)
"""Phases in which a rank has good reason to complete no step."""
SHORTEST_SAVE_SECONDS = 0.1
"""Anything shorter in phase `checkpoint` is not a save, because a loop may only ask there whether one is due."""

OWN_PHASES = tuple(name for name in PHASES if name not in ("collective", *PAUSES))
"""Phases that every step goes through, and in which the rank does work of its own. In collectives it waits for others;
pauses come on their own schedule."""

StepTag = Literal["gc", "eval", "checkpoint", "compile", "warm-up", "restart"]
STEP_TAGS: tuple[str, ...] = get_args(StepTag)
"""Reasons why a step is not an ordinary one and is left out of every baseline."""

PAUSE_SHARE = 0.05
"""The most that a checkpoint may take of the time between the ends of two steps if the second is to be an ordinary one.
A loop may enter the phase `checkpoint` after every step and save once an hour."""

RECENT_SECONDS = 20.0
"""How far back from the end of the last ordinary step counts as recent."""

RECENT_STEPS = 3
"""How many ordinary steps count as recent however long they take."""

LOST_CAUSES = ("init", "data", "collective", "checkpoint", "eval", "restart", "rework", "hang")
"""Causes of lost time. `rework` repeats steps that an earlier attempt had completed; `restart` is the time between two
attempts."""

STATES = ("running", "frozen", "dead", "failed", "finished")
"""States of a rank, as the exporter concludes them; exactly one is 1."""

ALIVE = ("running", "frozen")
"""The states of a rank whose process exists."""

OperationName = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "barrier", "other"
]  # fmt: skip
OPERATIONS: tuple[str, ...] = get_args(OperationName)
"""Collective operations, as PyTorch names them."""

DIMENSIONS = ("pp", "tp", "cp", "ep", "dp", "fsdp")
"""Dimensions of a run's parallelism: pipeline, tensor, context, expert, data, and data with sharded parameters."""

NONFINITE_SOURCES = ("loss", "grad_norm")

TierName = Literal["hero", "standard", "dev"]
TIERS: tuple[str, ...] = get_args(TierName)
"""Tiers of a run, which decide how its alerts are routed; the default is `standard`."""

SET_BY = ("run", "site", "default")
"""Who set a limit that applies to a run; the first of these that set one takes precedence."""

EXIT_CODE = "exit_code"
FAILURE_REASONS = ("oom", "nonfinite", "collective", "data", "terminated", "interrupted", EXIT_CODE, "exception")
"""Reasons a rank gives for its failure: `terminated` by SIGTERM, SIGHUP or a signal that warns of them, `interrupted`
from the keyboard, `exit_code` if all that is known is a non-zero exit code, `exception` for any other."""

END_SIGNALS: Mapping[int, str] = MappingProxyType(
    {signal.SIGHUP: "terminated", signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
)
"""The signals with which a terminal or a scheduler ends a process."""

WARNING_SIGNALS: Mapping[int, str] = MappingProxyType(
    dict.fromkeys((signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU), "terminated")
)
"""The signals with which a scheduler warns a process beforehand; they end it if its own handler raises."""

SIGNAL_EXIT_CODES: Mapping[int, str] = MappingProxyType({128 + number: end for number, end in END_SIGNALS.items()})
"""Exit codes with which a program reports that one of them ended it: 128 plus the signal's number, as in a shell."""

END_REASONS = ("finished", "died", *FAILURE_REASONS)
"""How a rank's process ended: as it should, without a word, or with a failure for one of these reasons."""

FAILURE_CATEGORIES = (
    "out_of_memory", "network", "numerical", "hardware", "data", "storage", "software", "preemption", "configuration",
)  # fmt: skip
"""Where the cause of a failure lies, as the table of signatures classifies its message (docs/logs.md)."""

CATEGORY_OF_REASON: Mapping[str, str] = MappingProxyType(
    {
        "oom": "out_of_memory",
        "nonfinite": "numerical",
        "collective": "network",
        "data": "data",
        "terminated": "preemption",
        "interrupted": "preemption",
        EXIT_CODE: "software",
        "exception": "software",
    }
)
"""The category of a failure if only its reason is known."""

MISUSES = (
    "unknown_name", "wrong_type", "unknown_phase", "unknown_tier", "unknown_threshold", "no_steps", "too_late",
)  # fmt: skip
"""Wrong uses of the client. `unknown_name`: of a logged value, an argument, a tag or an operation; `wrong_type`: a
value of the wrong type for its name; `no_steps`: batches are drawn but no step completes; `too_late`: something that
must be set before the process group exists."""

ROWS = Rows()
_row = ROWS.add

# Known to the exporter itself.
RANK_INFO = _row(
    "rank_info", INFO, "",
    (*RANK, "local_rank", "world_size", "attempt", "gpu", "uuid", "owner"),
    "A rank, its place, and the uid of its process; an empty label is not known.",
    few=True,
)  # fmt: skip
RANK_COORDINATES = _row(
    "rank_coordinates_info", INFO, "", (*RANK, *DIMENSIONS, "coordinates"),
    "Where a rank is in the run's parallelism; coordinates: all of them as texts write them, if there are several.",
    few=True,
)  # fmt: skip
RANK_JOB_INFO = _row(
    "rank_job_info", INFO, "", (*RANK, "scheduler", "job_id", "namespace", "pod"),
    "The batch job of a rank under Slurm or Kubernetes.",
    detail=True,
)  # fmt: skip
RANK_UP = _row(
    "rank_up",
    GAUGE,
    "",
    RANK,
    "1 while the rank is connected or has finished, 0 once it has died or failed.",
    few=True,
)
RANK_STATE = _row(
    "rank_state", GAUGE, "", (*RANK, "state"),
    "1 for the rank's state; frozen: connected, but silent for 10 s.",
    STATES,
)  # fmt: skip
RANK_HEARTBEAT = _row(
    "rank_heartbeat_timestamp_seconds", GAUGE, "seconds", RANK, "Unix time of the rank's last frame, or of its death.",
    detail=True,
    unread="silence is concluded from it (tachograph_run_frozen_seconds); shown to check a client",
)  # fmt: skip
RANK_START = _row(
    "rank_start_timestamp_seconds", GAUGE, "seconds", RANK,
    "Unix time from which the rank's process accounts for its time; absent once it has ended.",
    detail=True,
    unread="the node concludes when the run's processes started (tachograph_run_started_timestamp_seconds)",
)  # fmt: skip
RANK_ENDED = _row(
    "rank_ended_timestamp_seconds", GAUGE, "seconds", (*RANK, "reason"),
    "Unix time at which the rank ended, and why.",
    vocabulary=END_REASONS,
    few=True,
)  # fmt: skip
RANK_PROGRESS = _row(
    "rank_progress_timestamp_seconds",
    GAUGE,
    "seconds",
    RANK,
    "Unix time of the rank's last completed step.",
    detail=True,
)
RANK_PHASE = _row(
    "rank_phase_seconds", GAUGE, "seconds", (*RANK, "phase"),
    "Seconds for which the rank has been in its current phase.", vocabulary=PHASES,
)  # fmt: skip
RANK_PEAK_FLOPS = _row(
    "rank_peak_flops", GAUGE, "", RANK,
    "Dense peak FLOP/s of the rank's device at its precision.",
    detail=True,
)  # fmt: skip
RANK_ON_GPU = _row(
    "rank_on_gpu", GAUGE, "", (*RANK, *GPU, "name"),
    "1 while a rank on this GPU lives, 0 once it has ended.",
    few=True,
)  # fmt: skip
RANK_SHARES_GPU = _row(
    "rank_shares_gpu_info", INFO, "", (*RANK, *GPU),
    "A rank on a GPU that a rank of another user or run is on, too; only then.",
    few=True,
)  # fmt: skip

# Reported by the rank.
TRAIN_STEP = _row("train_step", GAUGE, "", RANK, "Current optimizer step.", lasts=True, few=True)
TRAIN_STEPS = _row("train_steps_total", COUNTER, "", RANK, "Steps completed in this attempt.")
TRAIN_STEP_UNMARKED = _row(
    "train_step_unmarked_seconds", GAUGE, "seconds", RANK,
    "Seconds spent outside every phase within a step; absent up to 5 s.",
)  # fmt: skip
TRAIN_STEP_SECONDS = _row(
    "train_step_seconds",
    HISTOGRAM,
    "seconds",
    ("run",),
    "Wall time of ordinary steps, summed over the ranks of the run on this node.",
)
TRAIN_PHASE_SECONDS = _row(
    "train_phase_seconds_total", COUNTER, "seconds", (*RANK, "phase"),
    "Wall seconds in each phase, nested ones counted once.", USUAL_PHASES, vocabulary=PHASES, detail=True,
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
    "Seconds by which phases of ordinary steps exceeded their rank's median, excluding waits for collectives; "
    "summed over the ranks of the run on this node.", USUAL_PHASES,
)  # fmt: skip
TRAIN_ORDINARY_STEPS = _row(
    "train_ordinary_steps_total", COUNTER, "", RANK,
    "Ordinary steps: untagged, and not after a gap or a pause for saving or evaluating.",
    detail=True,
)  # fmt: skip
TRAIN_ORDINARY_SECONDS = _row(
    "train_ordinary_step_seconds_total", COUNTER, "seconds", RANK,
    "Wall seconds of ordinary steps, each counted from the end of the step before it.", detail=True,
)  # fmt: skip
TRAIN_ORDINARY_WAIT = _row(
    "train_ordinary_wait_seconds_total", COUNTER, "seconds", RANK,
    "Exposed wait for collectives in ordinary steps.", detail=True,
)  # fmt: skip
TRAIN_ORDINARY_PHASES = _row(
    "train_ordinary_phase_seconds_total", COUNTER, "seconds", (*RANK, "phase"),
    "The rank's own seconds by phase in ordinary steps, without measured waits.",
    vocabulary=OWN_PHASES, detail=True,
)  # fmt: skip
TRAIN_RECENT_STEP = _row(
    "train_recent_step_seconds", GAUGE, "seconds", RANK,
    "Median time of the ordinary steps in the last 20 s, or of the last 3 if they took longer.",
)  # fmt: skip
TRAIN_RECENT_STEPS = _row(
    "train_recent_steps", GAUGE, "", RANK,
    "Ordinary steps on which the rank's recent step, wait and phase seconds are based; absent when those are.",
    detail=True, unread="says how many steps the other recent values are based on; shown to check a client",
)  # fmt: skip
TRAIN_RECENT_PHASE = _row(
    "train_recent_phase_seconds", GAUGE, "seconds", (*RANK, "phase"),
    "The rank's own time in a phase per recent ordinary step, without measured waits; "
    "to generate, of its last iterations.",
    vocabulary=PHASES,
)  # fmt: skip
TRAIN_RECENT_WAIT = _row(
    "train_recent_wait_seconds", GAUGE, "seconds", RANK,
    "Exposed wait for collectives per recent ordinary step; the rank that waits least arrived last.",
)  # fmt: skip
TRAIN_COLLECTIVE_WAIT = _row(
    "train_collective_wait_seconds_total", COUNTER, "seconds", (*RANK, "op"),
    "Exposed wait: seconds in which the rank could only wait for a collective.", vocabulary=OPERATIONS, detail=True,
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
    "Collectives that ended with an error.", vocabulary=OPERATIONS, detail=True,
)  # fmt: skip
TRAIN_COLLECTIVE_SECONDS = _row(
    "train_collective_seconds_total", COUNTER, "seconds", (*RANK, "op"),
    "Seconds that timed collectives took, including the wait for late ranks.",
    vocabulary=OPERATIONS,
    detail=True,
)  # fmt: skip
TRAIN_COLLECTIVE_BUS_BYTES = _row(
    "train_collective_bus_bytes_total", COUNTER, "bytes", (*RANK, "op"),
    "Bytes that timed collectives moved over a rank's bus, for bus bandwidth.", vocabulary=OPERATIONS,
    detail=True,
)  # fmt: skip
TRAIN_COLLECTIVE_ENQUEUED = _row(
    "train_collective_enqueued", GAUGE, "", (*RANK, "group"),
    "Sequence number of the last collective entered in a process group (0: all ranks); in a hang, the lowest is "
    "the culprit's.", detail=True,
)  # fmt: skip
TRAIN_COLLECTIVE_COMPLETED = _row(
    "train_collective_completed", GAUGE, "", (*RANK, "group"),
    "Sequence number of the last collective completed in a process group.", detail=True,
    unread="says in a hang whether the collective that a rank entered has ended; alerts compare who entered it",
)  # fmt: skip
TRAIN_TOKENS = _row(
    "train_tokens_total", COUNTER, "", RANK,
    "Tokens trained on: as logged, or the rank's share of tokens_per_step.", loggable=True,
)  # fmt: skip
TRAIN_SAMPLES = _row(
    "train_samples_total", COUNTER, "", RANK,
    "Samples trained on: as logged, or the rank's share of samples_per_step.", loggable=True,
)  # fmt: skip
TRAIN_FLOPS = _row(
    "train_flops_total", COUNTER, "", RANK,
    "Model floating-point operations, without recomputation.", loggable=True,
    detail=True,
)  # fmt: skip
TRAIN_HARDWARE_FLOPS = _row(
    "train_hardware_flops_total", COUNTER, "", RANK,
    "Floating-point operations with recomputation, for HFU.",
    detail=True,
)  # fmt: skip
TRAIN_BATCHES = _row(
    "train_batches_total",
    COUNTER,
    "",
    RANK,
    "Batches that the data loader delivered, evaluation excluded.",
    detail=True,
)
TRAIN_DATA_QUEUE = _row(
    "train_data_queue_size", GAUGE, "", RANK,
    "Batches that loader workers have ready; if mostly 0, training waits for data.",
    loggable=True,
)  # fmt: skip
TRAIN_DATA_WORKERS = _row(
    "train_data_workers", GAUGE, "", RANK,
    "Worker processes of the PyTorch loader; 0: training makes each batch itself.", detail=True,
)  # fmt: skip
TRAIN_DATA_WORKER_RESTARTS = _row(
    "train_data_worker_restarts_total", COUNTER, "", RANK,
    "Restarts of the loader's worker processes.", detail=True,
)  # fmt: skip
TRAIN_LOSS = _row("train_loss", GAUGE, "", RANK, "Last logged training loss, NaN included.", loggable=True)
TRAIN_VAL_LOSS = _row(
    "train_val_loss",
    GAUGE,
    "",
    RANK,
    "Last logged validation loss, NaN included.",
    loggable=True,
    detail=True,
)
TRAIN_VAL_LOSS_SPIKE = _row(
    "train_val_loss_spike_evaluations", GAUGE, "", RANK,
    "Evaluations since the current spike of the validation loss began.",
)  # fmt: skip
TRAIN_GRAD_NORM = _row("train_grad_norm", GAUGE, "", RANK, "Last logged gradient norm.", loggable=True, detail=True)
TRAIN_LEARNING_RATE = _row(
    "train_learning_rate",
    GAUGE,
    "",
    RANK,
    "Last logged learning rate.",
    loggable=True,
    detail=True,
)
TRAIN_LOSS_ZSCORE = _row(
    "train_loss_zscore", GAUGE, "", RANK,
    "Rise of the loss above its recent median, in robust standard deviations.",
    detail=True,
)  # fmt: skip
TRAIN_LOSS_TRAILING_ZSCORE = _row(
    "train_loss_trailing_zscore", GAUGE, "", RANK,
    "Z-score of the last loss against the four before it.", detail=True,
)  # fmt: skip
TRAIN_LOSS_LOG_ZSCORE = _row(
    "train_loss_log_zscore", GAUGE, "", RANK,
    "Robust z-score of the logarithm of the last loss, against median and MAD of recent losses.",
    detail=True,
    unread="the third of three measures of a spike, for comparing them",
)  # fmt: skip
TRAIN_LOSS_SPIKES = _row("train_loss_spikes_total", COUNTER, "", RANK, "Loss spikes that began.", detail=True)
TRAIN_LOSS_SPIKE_STEPS = _row(
    "train_loss_spike_steps",
    GAUGE,
    "",
    RANK,
    "Steps since the current loss spike began, otherwise 0.",
    detail=True,
)
TRAIN_GRAD_NORM_SPIKE_STEPS = _row(
    "train_grad_norm_spike_steps", GAUGE, "", RANK,
    "Steps since the current spike of the gradient norm began, otherwise 0.",
    detail=True,
)  # fmt: skip
TRAIN_GRAD_NORM_LEVEL = _row(
    "train_grad_norm_level", GAUGE, "", RANK,
    "Usual gradient norm: the median of the last 480 normal ones.",
    detail=True,
)  # fmt: skip
TRAIN_GRAD_NORM_NONFINITE_STEPS = _row(
    "train_grad_norm_nonfinite_steps", GAUGE, "", RANK,
    "Consecutive steps with a gradient norm that is not finite.",
    few=True,
)  # fmt: skip
TRAIN_LAYER_GRAD_NORM = _row(
    "train_layer_grad_norm", GAUGE, "", (*RANK, "layer"),
    "Gradient norm of the layers that are furthest above their usual norm, on rank 0.",
)  # fmt: skip
TRAIN_LAYER_GRAD_RATIO = _row(
    "train_layer_grad_ratio", GAUGE, "ratio", (*RANK, "layer"),
    "Gradient norm of such a layer divided by its recent median.",
)  # fmt: skip
TRAIN_DEAD_LAYERS = _row(
    "train_dead_layers", GAUGE, "", RANK, "Layers whose gradient was exactly zero when last sampled."
)
TRAIN_LAYER_ACTIVATION_RMS = _row(
    "train_layer_activation_rms", GAUGE, "", (*RANK, "layer"),
    "Root mean square of a layer's last sampled output, on rank 0.",
)  # fmt: skip
TRAIN_LAYER_ACTIVATION_ZERO = _row(
    "train_layer_activation_zero_ratio", GAUGE, "ratio", (*RANK, "layer"),
    "Share of a layer's outputs that were exactly zero when last sampled, on rank 0, if enabled.",
)  # fmt: skip
TRAIN_UPDATE_RATIO = _row(
    "train_update_ratio", GAUGE, "ratio", RANK,
    "Size of the last sampled update relative to the parameters; about 1e-3 is usual.",
    loggable=True,
)  # fmt: skip
TRAIN_SCHEDULE_STEP = _row(
    "train_schedule_step", GAUGE, "", RANK,
    "Steps counted by the learning-rate scheduler.",
)  # fmt: skip
TRAIN_TOTAL_STEPS = _row(
    "train_total_steps", GAUGE, "", RANK,
    "Optimizer step at which the run will end.", loggable=True, lasts=True,
)  # fmt: skip
TRAIN_AMP_LOSS_SCALE = _row(
    "train_amp_loss_scale", GAUGE, "", RANK,
    "Loss scale of mixed precision.", loggable=True,
)  # fmt: skip
TRAIN_AMP_SKIPPED = _row(
    "train_amp_skipped_steps_total", COUNTER, "", RANK,
    "Steps that mixed precision skipped for a non-finite gradient.",
)  # fmt: skip
TRAIN_NONFINITE = _row(
    "train_nonfinite_total", COUNTER, "", (*RANK, "source"), "Steps with a NaN or infinite loss or gradient norm.",
    NONFINITE_SOURCES, rare=True,
)  # fmt: skip
TRAIN_NONFINITE_STEP = _row(
    "train_nonfinite_step", GAUGE, "", (*RANK, "source"),
    "Step of the first NaN or infinite value, reset after 100 finite ones; the lowest is the culprit's.",
    vocabulary=NONFINITE_SOURCES, lasts=True,
    few=True,
)  # fmt: skip
TRAIN_LOSS_NONFINITE_TIMESTAMP = _row(
    "train_loss_nonfinite_timestamp_seconds", GAUGE, "seconds", RANK,
    "Unix time at which the loss was last NaN or infinite.", lasts=True,
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
    "Seconds in the checkpoint phase for the last saved checkpoint.",
    few=True,
)  # fmt: skip
TRAIN_CHECKPOINT_LOAD_DURATION = _row(
    "train_checkpoint_load_duration_seconds", GAUGE, "seconds", RANK,
    "Seconds that loading took when this attempt resumed.",
)  # fmt: skip
TRAIN_RESUME_STEP = _row("train_resume_step", GAUGE, "", RANK, "Step of the checkpoint that this attempt resumed from.")
TRAIN_CHECKPOINT_BYTES = _row(
    "train_checkpoint_bytes", GAUGE, "bytes", RANK, "Size of the last saved checkpoint.", detail=True
)
TRAIN_CHECKPOINT_FREE = _row(
    "train_checkpoint_free_ratio", GAUGE, "ratio", RANK,
    "Share of the checkpoint's file system free for this user after the save.",
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
    "Failures of the process, by the category that `tachograph logs` gives its last words.",
    vocabulary=FAILURE_CATEGORIES,
)  # fmt: skip
TRAIN_MEMORY_ALLOCATED = _row(
    "train_memory_allocated_bytes", GAUGE, "bytes", RANK,
    "GPU memory in live tensors, as counted by PyTorch's allocator.", detail=True, loggable=True,
    unread="what tensors take now; their peak is in tachograph_run_memory_peak_ratio",
)  # fmt: skip
TRAIN_MEMORY_RESERVED = _row(
    "train_memory_reserved_bytes", GAUGE, "bytes", RANK,
    "GPU memory that PyTorch's allocator has reserved.", loggable=True,
)  # fmt: skip
TRAIN_MEMORY_PEAK = _row(
    "train_memory_peak_bytes", GAUGE, "bytes", RANK,
    "Highest GPU memory in live tensors.", loggable=True,
    detail=True,
)  # fmt: skip
TRAIN_MEMORY_INACTIVE = _row(
    "train_memory_inactive_bytes", GAUGE, "bytes", RANK,
    "GPU memory in unused split blocks of the allocator (fragmentation).",
    loggable=True,
    detail=True,
)  # fmt: skip
TRAIN_MEMORY_RETRIES = _row(
    "train_memory_retries_total", COUNTER, "", RANK,
    "Allocations that succeeded only after the allocator emptied its cache.",
)  # fmt: skip
TRAIN_MEMORY_OOMS = _row(
    "train_memory_ooms_total", COUNTER, "", RANK,
    "Out-of-memory errors of the GPU allocator, caught ones included.",
)  # fmt: skip
TRAIN_HOST_MEMORY = _row(
    "train_host_memory_bytes",
    GAUGE,
    "bytes",
    RANK,
    "Resident host memory of the process, without children and mapped files.",
)
TRAIN_LAYER_MEMORY_PEAK = _row(
    "train_layer_memory_peak_bytes", GAUGE, "bytes", (*RANK, "layer"),
    "Highest GPU memory in live tensors during a layer's forward pass, if enabled.",
)  # fmt: skip
TRAIN_INVARIANT = _row(
    "train_invariant", GAUGE, "", (*RANK, "name"),
    "A number that must be equal on all ranks at train_invariant_step.",
)  # fmt: skip
TRAIN_INVARIANT_STEP = _row(
    "train_invariant_step", GAUGE, "", (*RANK, "name"),
    "Step at which train_invariant was taken.",
)  # fmt: skip
TRAIN_PRODUCTIVE = _row(
    "train_productive_seconds_total", COUNTER, "seconds", ("run",),
    "Rank-seconds of new work: compute and optimizer, without waits; summed over the ranks of the run on this node.",
)  # fmt: skip
TRAIN_LOST = _row(
    "train_lost_seconds_total", COUNTER, "seconds", ("run", "cause"),
    "Rank-seconds without new work; summed over the ranks of the run on this node.", LOST_CAUSES,
)  # fmt: skip
TRAIN_RESTARTS = _row(
    "train_restarts_total", COUNTER, "", RANK,
    "Restarts of the rank: processes after its first, as far as known from its attempt number or on this node.",
    concluded=True, detail=True,
    unread="which rank was restarted; the run's are in tachograph_run_restarts",
)  # fmt: skip
TRAIN_THRESHOLD = _row(
    "train_threshold", GAUGE, "", (*RANK, "name"),
    "Limit that the run set for its own alerts.",
    detail=True,
)  # fmt: skip
TRAIN_CUSTOM = _row(
    "train_custom", GAUGE, "", (*RANK, "name"),
    "Last value of a metric declared with Recorder(metrics=…); the status page describes it.",
)  # fmt: skip
TRAIN_MISUSE = _row(
    "train_misuse_total", COUNTER, "", (*RANK, "kind"),
    "Wrong uses of the client; the status page has the details.", vocabulary=MISUSES,
    few=True,
)  # fmt: skip
TRAIN_CONFIG_INFO = _row(
    "train_config_info", INFO, "", (*RANK, "precision", "global_batch", "framework", "flops_convention", "tier"),
    "Static facts that the rank reported.",
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
"""Name under which `step.log` takes a step's work -> wire key of the counter that it is added to."""
TRAIN_HISTOGRAMS: Mapping[str, Metric] = MappingProxyType(
    {row.key: row for row in ROWS if row.name.startswith(TRAIN_PREFIX) and row.kind == HISTOGRAM}
)
