"""Metrics that a rank reports, except those of how it learns: steps, waits, work, data, checkpoints, memory, goodput.

The client imports these two catalogs and that of ranks only, since each row costs import time and memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tachograph.catalog import learning
from tachograph.catalog.metric import COUNTER, GAUGE, HISTOGRAM, INFO, RANK, TRAIN_PREFIX, Metric, Rows
from tachograph.catalog.rank import (
    FAILURE_CATEGORIES,
    LOST_CAUSES,
    MISUSES,
    OPERATIONS,
    OWN_PHASES,
    PHASES,
    STEP_TAGS,
    USUAL_PHASES,
)

ROWS = Rows()
_row = ROWS.add

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
)  # fmt: skip
TRAIN_COLLECTIVE_BYTES = _row(
    "train_collective_bytes_total", COUNTER, "bytes", (*RANK, "op"),
    "Payload bytes that this rank contributed to collectives.", vocabulary=OPERATIONS, detail=True,
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
    "Worker processes of the PyTorch loader; 0: the training process loads each batch itself.", detail=True,
)  # fmt: skip
TRAIN_DATA_WORKER_RESTARTS = _row(
    "train_data_worker_restarts_total", COUNTER, "", RANK,
    "Restarts of the loader's worker processes.", detail=True,
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

_REPORTED = (*ROWS, *learning.ROWS)
TRAIN_METRICS: Mapping[str, Metric] = MappingProxyType(
    {row.key: row for row in _REPORTED if row.name.startswith(TRAIN_PREFIX) and row.kind in (COUNTER, GAUGE)}
)
"""Wire key -> metric: the keys that a rank may send under `metrics`."""
LOGGABLE = frozenset(key for key, row in TRAIN_METRICS.items() if row.loggable and row.kind == GAUGE)
"""Wire keys that `step.log` takes."""
WORK: Mapping[str, str] = MappingProxyType(
    {key.removesuffix("_total"): key for key, row in TRAIN_METRICS.items() if row.loggable and row.kind == COUNTER}
)
"""Name under which `step.log` takes a step's work -> wire key of the counter that it is added to."""
TRAIN_HISTOGRAMS: Mapping[str, Metric] = MappingProxyType(
    {row.key: row for row in _REPORTED if row.name.startswith(TRAIN_PREFIX) and row.kind == HISTOGRAM}
)
