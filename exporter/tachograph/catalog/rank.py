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

SPEED_UNITS = ("mfu", "tokens", "samples", "steps")
"""What the speed of a run is measured in: the first of these that is known."""

WORK_UNITS = ("flops", "hardware_flops", "tokens", "samples")
"""What the work of a run is counted in."""

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
FAILURE_CATEGORIES = ("oom", "nonfinite", "collective", "data", "terminated", "interrupted", EXIT_CODE, "exception")
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

END_REASONS = ("finished", "died", *FAILURE_CATEGORIES)
"""How the process of a rank ended: as it should, without a word, or as a failure of one of the categories."""

MISUSES = (
    "unknown_name", "wrong_type", "unknown_phase", "unknown_tier", "unknown_threshold", "no_steps", "too_late",
)  # fmt: skip
"""Wrong uses of the client. `unknown_name`: of a logged value, an argument, a tag or an operation; `wrong_type`: a
value that cannot be what it is given for; `no_steps`: batches are drawn and no step completes; `too_late`: what must be
set before the process group."""

END_KINDS = ("died", "failed", "communication", "told")
"""How a rank ended that did not finish: without a word, by its own failure, because communication with a peer failed,
or because it was asked to."""

KIND_OF_END: Mapping[str, str] = MappingProxyType(
    {"died": "died", "collective": "communication", "terminated": "told", "interrupted": "told"}
)
"""The kind of an end by its reason; of all other reasons it is `failed`."""

ROWS = Rows()
_row = ROWS.add
_CONCLUDED = "the exporter derives the recent values from it; shown to check a client"

# Known to the exporter itself.
RANK_INFO = _row(
    "rank_info", INFO, "",
    (*RANK, "local_rank", "world_size", "attempt", "gpu", "uuid", "owner"),
    "A rank, its placement, and the uid of its process as reported by the kernel: always 1. gpu and uuid are empty if "
    "its GPU is not known on this node.",
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
    "Unix time from which on the rank's process has accounted for its time; absent once it ended.",
    detail=True,
    unread="the node concludes since when the run's processes run (tachograph_run_started_timestamp_seconds)",
)  # fmt: skip
RANK_ENDED = _row(
    "rank_ended_timestamp_seconds", GAUGE, "seconds", (*RANK, "reason"),
    "Unix time at which the rank ended, and why: finished, died, or its failure's category; absent until then. It is "
    "that of what it raised, else of its bye, else of the end of its connection.",
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
    "Dense peak FLOP/s of the device this rank computes on, at its precision: as given by the rank, else from the GPU "
    "table; absent for an unknown device.",
    detail=True,
)  # fmt: skip
RANK_ON_GPU = _row(
    "rank_on_gpu", GAUGE, "", (*RANK, *GPU, "name"),
    "The rank on a GPU, one for each: 1 while its process lives, 0 once it has ended. Of several the first that lives, "
    "else the one that ended last.",
    few=True,
)  # fmt: skip

# Concluded for all ranks of a run on the node.
RUN_RANKS = _row(
    "run_ranks", GAUGE, "", ("run", "state"),
    "Ranks of the run on this node by their current state; running is always there, the others while there is one.",
    vocabulary=STATES,
)  # fmt: skip
RUN_WORLD_SIZE = _row(
    "run_world_size", GAUGE, "", ("run",),
    "Ranks that the run should have, on all of its nodes, as most of its living ranks on this node say.",
)  # fmt: skip
RUN_TIER = _row(
    "run_tier_info", INFO, "", ("run", "tier"),
    "Tier of the run, which decides how its alerts are routed; absent for the default.",
    vocabulary=TIERS,
)  # fmt: skip
RUN_THRESHOLD = _row(
    "run_threshold", GAUGE, "", ("run", "name"),
    "Threshold that the run set for its own alerts, by name; of ranks that differ, the most tolerant one's.",
)  # fmt: skip
RUN_CHECKPOINT_TIMESTAMP = _row(
    "run_checkpoint_timestamp_seconds", GAUGE, "seconds", ("run",),
    "Unix time of the last successful checkpoint by a rank of the run on this node, in this attempt or an earlier one.",
)  # fmt: skip
RUN_CHECKPOINT_STEP = _row("run_checkpoint_step", GAUGE, "", ("run",), "Step of that checkpoint.")
RUN_PROGRESS = _row(
    "run_progress_timestamp_seconds", GAUGE, "seconds", ("run",),
    "Unix time at which a rank of the run on this node last completed a step, of those that have not ended; absent "
    "before the first.",
)  # fmt: skip
RUN_RESTARTS = _row(
    "run_restarts", GAUGE, "", ("run", "attempt"),
    "Restarts of the rank of the run on this node that was restarted most often: processes after its first; and the "
    "newest attempt that a rank there said it is.",
)  # fmt: skip
RUN_RANK_STEP = _row(
    "run_rank_step", GAUGE, "", ("run", "rank", "gpu", "uuid"),
    "Step that the median rank of the run on this node is at, of those that train; and by name the eight at most that "
    "are furthest from it, where that is more than 3 steps.",
    few=True,
)  # fmt: skip
RUN_STEP_SECONDS = _row(
    "run_step_seconds", GAUGE, "seconds", ("run",),
    "Seconds of the run's usual step: the median of what its ranks on this node take for an ordinary one.",
)  # fmt: skip
RUN_PROGRESS_AGE = _row(
    "run_progress_age_seconds", GAUGE, "seconds", ("run",),
    "Seconds since a rank of the run on this node last completed a step, of those that have not ended; absent "
    "before the first.",
)  # fmt: skip
RUN_HANG_LIMIT = _row(
    "run_hang_limit_seconds", GAUGE, "seconds", ("run",),
    "Seconds that the run may go without a step: 15, or its own threshold, and three of its usual steps; 240 while its "
    "usual step is not known, absent before the first.",
)  # fmt: skip
RUN_EXCUSED = _row(
    "run_excused_seconds", GAUGE, "seconds", ("run",),
    "Seconds since a rank of the run on this node was last in init, checkpoint or eval for more than 2 s, except ranks "
    "that the run makes its steps without; absent if none was.",
)  # fmt: skip
RUN_PAUSED = _row(
    "run_paused_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the run last paused on this node: it was excused, without a step for 15 s beyond its usual one, or "
    "had not made one yet.",
)  # fmt: skip
RUN_STARTED = _row(
    "run_started_timestamp_seconds", GAUGE, "seconds", ("run",),
    "Unix time at which a process of the run last started on this node, of those that run: what came before belongs to "
    "another attempt, which may be of another size or configuration.",
)  # fmt: skip
RUN_BATCH_CHANGED = _row(
    "run_batch_changed_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the run's batch last changed while it ran, as its ranks say or by a quarter of a step's tokens or "
    "samples; absent until it does.",
)  # fmt: skip
RUN_WORK = _row(
    "run_work_per_second", GAUGE, "", ("run", "unit"),
    "What the run's ranks on this node made within a minute, over that minute: tokens and samples; model FLOPs, and "
    "those of the hardware, of ranks whose device is known.", vocabulary=WORK_UNITS,
)  # fmt: skip
RUN_PEAK_FLOPS = _row(
    "run_peak_flops", GAUGE, "", ("run",),
    "Dense peak FLOP/s of the run's ranks on this node whose device and FLOPs are known.",
)  # fmt: skip
RUN_ACHIEVABLE_FLOPS = _row(
    "run_achievable_flops", GAUGE, "", ("run",),
    "The most FLOP/s that anybody measured on the devices of run_peak_flops, at the ranks' precision; absent where "
    "nobody did for one of them.",
)  # fmt: skip
RUN_SPEED = _row(
    "run_speed", GAUGE, "", ("run", "unit"),
    "How fast the run makes ordinary steps (no saves, evaluations, pauses): the median of two minutes of them. MFU "
    "where it is known, else tokens, samples or steps per second of a mean rank.",
    vocabulary=SPEED_UNITS,
)  # fmt: skip
RUN_USUAL_SPEED = _row(
    "run_usual_speed", GAUGE, "", ("run", "unit"),
    "Usual speed of the run: the median of the hour that ended 5 minutes ago, known after 10 minutes; held for a day "
    "while the run is slower than that, and for an hour after.",
    vocabulary=SPEED_UNITS,
)  # fmt: skip
RUN_BEST_SPEED = _row(
    "run_best_speed", GAUGE, "", ("run", "unit"),
    "Best hour of the run within a day, in the present processes; absent for the first 65 minutes.",
    vocabulary=SPEED_UNITS,
)  # fmt: skip
RUN_SLOW = _row(
    "run_slow_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the run became slower than usual by more than its threshold; 0 while it is not. It is compared with "
    "what was usual before for two days.",
)  # fmt: skip
RUN_DATA_WAIT = _row(
    "run_data_wait_ratio", GAUGE, "ratio", ("run",),
    "Share of its steps that the median rank waits for data, of those on this node that load any: three fifths of the "
    "last two minutes of steps show this or more.",
)  # fmt: skip
RUN_USUAL_DATA_WAIT = _row(
    "run_usual_data_wait_ratio", GAUGE, "ratio", ("run",),
    "Usual share of the steps that the median rank waits for data, as run_usual_speed.",
)  # fmt: skip
RUN_DATA_STALL = _row(
    "run_data_stall_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the run's ranks on this node began to wait for data: beyond their threshold and three times as much "
    "as usual, or standing still, half of them in phase data; 0 while they do not.",
)  # fmt: skip

RUN_FIRST_END = _row(
    "run_first_end_seconds", GAUGE, "seconds", ("run", "kind", "reason", "rank", "gpu", "uuid"),
    "Seconds since the first rank of the run on this node ended in the newest attempt, by kind: died, failed, "
    "communication or told (to end). Absent once the run has made steps for a minute since.",
    vocabulary=END_KINDS,
)  # fmt: skip
RUN_ENDED_TOGETHER = _row(
    "run_ended_together", GAUGE, "", ("run", "kind"),
    "Ranks of the run on this node that ended like the first of their kind, within half a second of it; within 3 s "
    "where communication failed.",
)  # fmt: skip
RUN_ENDED_ATTEMPT = _row(
    "run_ended_attempt_seconds", GAUGE, "seconds", ("run",),
    "Seconds since ranks of the run on this node were restarted that have ended again: ends on other nodes before that "
    "belong to an earlier attempt.",
)  # fmt: skip
RUN_ENDED = _row(
    "run_ended_seconds", GAUGE, "seconds", ("run", "outcome"),
    "Seconds since a rank of the run on this node last finished; or, of those that are all gone, since they were asked "
    "to end: terminated or interrupted.",
)  # fmt: skip
RUN_STEPS_SHORT = _row(
    "run_steps_short", GAUGE, "", ("run",),
    "Steps that the run still had to make when all of its ranks on this node had finished, where those are more than a "
    "hundredth of its plan, else 0; absent without a plan.",
)  # fmt: skip
RUN_FRUITLESS_ATTEMPTS = _row(
    "run_fruitless_attempts", GAUGE, "", ("run",),
    "Attempts of the run in a row that failed on this node without a step beyond all before, each within 15 minutes of "
    "the one before; absent without one.",
)  # fmt: skip
RUN_FROZEN = _row(
    "run_frozen_seconds", GAUGE, "seconds", ("run", "rank", "gpu", "uuid", "phase"),
    "Seconds for which a rank that holds its connection has sent nothing, from 30 s on, or 60 s in init, checkpoint "
    "and eval; the longest eight.",
    few=True,
)  # fmt: skip

RUN_TRAIN_STEP = _row(
    "run_train_step", GAUGE, "", ("run",), "Optimizer step of the furthest rank of the run on this node, of the living."
)
RUN_STEPS = _row(
    "run_steps_total", COUNTER, "", ("run",),
    "Steps of this attempt: the most that a living rank of the run on this node has completed.",
)  # fmt: skip
RUN_LOSS = _row(
    "run_loss", GAUGE, "", ("run",),
    "Median of the last losses of the run's ranks on this node; what is not finite is left out.",
)  # fmt: skip
RUN_LOSS_SPIKE_STEPS = _row(
    "run_loss_spike_steps", GAUGE, "", ("run",),
    "Steps since the loss spike began that the median rank on this node is in, of those that log a loss; 0 in none.",
)  # fmt: skip
RUN_LOSS_SPIKED = _row(
    "run_loss_spiked_seconds", GAUGE, "seconds", ("run",),
    "Seconds since a loss spike last began on half of the ranks that log a loss on this node; absent if none did.",
)  # fmt: skip
RUN_LOSS_NONFINITE_STEP = _row(
    "run_loss_nonfinite_step", GAUGE, "", ("run", "rank", "gpu", "uuid"),
    "Step at which the loss of a rank on this node was first NaN or infinite, and the first such rank; absent where it "
    "was not within 70 s.",
)  # fmt: skip
RUN_LOSS_NONFINITE_RANKS = _row(
    "run_loss_nonfinite_ranks", GAUGE, "", ("run", "when"),
    "Ranks on this node whose loss is not finite (now), was not within 70 s (lately), or was first not so at "
    "run_loss_nonfinite_step (first); absent where none is or was.",
    vocabulary=("first", "lately", "now"),
)  # fmt: skip
RUN_LOSS_NONFINITE_SECONDS = _row(
    "run_loss_nonfinite_seconds", GAUGE, "seconds", ("run",),
    "Seconds since a loss that is not finite was first seen on this node; absent where none is or was within 70 s.",
)  # fmt: skip
RUN_VAL_LOSS = _row(
    "run_val_loss", GAUGE, "", ("run",),
    "Median of the last validation losses of the run's ranks on this node; NaN where half of them are not finite.",
)  # fmt: skip
RUN_VAL_LOSS_SPIKE = _row(
    "run_val_loss_spike_evaluations", GAUGE, "", ("run",),
    "Evaluations since the spike of the validation loss began; absent where less than half of the ranks see one.",
)  # fmt: skip
RUN_GRAD_NORM = _row(
    "run_grad_norm", GAUGE, "", ("run",),
    "Median of the last gradient norms of the run's ranks on this node; what is not finite is left out.",
)  # fmt: skip
RUN_GRAD_NORM_LEVEL = _row(
    "run_grad_norm_level", GAUGE, "", ("run",), "Median of the usual gradient norms of the run's ranks on this node."
)
RUN_GRAD_NORM_SPIKE_STEPS = _row(
    "run_grad_norm_spike_steps", GAUGE, "", ("run",),
    "Steps since the spike of the gradient norm began that the median rank on this node is in; 0 in none.",
)  # fmt: skip
RUN_GRAD_NORM_NONFINITE_STEPS = _row(
    "run_grad_norm_nonfinite_steps", GAUGE, "", ("run",),
    "Steps in a row whose gradient norm was NaN or infinite, on the median rank on this node; absent if none.",
)  # fmt: skip
RUN_GRAD_NORM_VANISHED_STEPS = _row(
    "run_grad_norm_vanished_steps", GAUGE, "", ("run",),
    "Steps since the gradient norm was last a hundredth of its usual one or more; absent while it is.",
)  # fmt: skip
RUN_AMP_LOSS_SCALE = _row(
    "run_amp_loss_scale", GAUGE, "", ("run",), "Lowest loss scale of mixed precision of the run's ranks on this node."
)
RUN_AMP_SKIPPED = _row(
    "run_amp_skipped_steps_total", COUNTER, "", ("run",),
    "Steps that mixed precision skipped in this attempt: the most of a living rank of the run on this node.",
)  # fmt: skip
RUN_LEARNING_RATE = _row(
    "run_learning_rate", GAUGE, "", ("run",), "Highest learning rate that a rank of the run on this node logged last."
)
RUN_SCHEDULE_STEP = _row(
    "run_schedule_step", GAUGE, "", ("run",),
    "Steps that the learning-rate scheduler has counted, on the furthest rank of the run on this node.",
)  # fmt: skip
RUN_SCHEDULE_IDLE_STEPS = _row(
    "run_schedule_idle_steps", GAUGE, "", ("run",),
    "Steps of the run since its learning-rate scheduler last counted one, as far as this exporter has seen.",
)  # fmt: skip
RUN_SCHEDULE_IDLE_SECONDS = _row(
    "run_schedule_idle_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the learning-rate scheduler of the run last counted a step, as far as this exporter has seen.",
)  # fmt: skip
RUN_INVARIANT = _row(
    "run_invariant", GAUGE, "", ("run", "name", "held", "rank", "gpu", "uuid"),
    "A number that must be equal on all ranks of the run: what most of them on this node hold at "
    "run_invariant_step, and the least and the greatest where they differ; by the first rank that holds it.",
)  # fmt: skip
RUN_INVARIANT_STEP = _row(
    "run_invariant_step", GAUGE, "", ("run", "name"),
    "Step at which run_invariant was taken: the one that most ranks of the run on this node show.",
)  # fmt: skip
RUN_GLOBAL_BATCH_WRONG_STEPS = _row(
    "run_global_batch_wrong_steps", GAUGE, "", ("run",),
    "Steps since the global batch that the loop works out is not the configured one; absent while it is.",
)  # fmt: skip
RUN_BATCHES_PER_STEP = _row(
    "run_batches_per_step", GAUGE, "", ("run", "held", "rank", "gpu", "uuid"),
    "Batches that a rank drew for each step, over the last 100 steps or more: the median rank's on this node, and the "
    "least and the greatest where they are too far from it.",
)  # fmt: skip

RUN_WAITING_RANKS = _row(
    "run_waiting_ranks", GAUGE, "", ("run", "pp"),
    "Ranks of the run on this node, by their stage of a pipeline where they say it, that measure how long they wait "
    "for the others.",
)  # fmt: skip
RUN_WAIT = _row(
    "run_wait_seconds", GAUGE, "seconds", ("run", "pp"),
    "Seconds per ordinary step that the median rank on this node waits for the others, of two the one that waits "
    "longer: the least of the last 20 s and 4 steps.",
)  # fmt: skip
RUN_WAIT_PAST = _row(
    "run_wait_past_seconds", GAUGE, "seconds", ("run", "pp"),
    "The same as it was within the hour before, for steps of today's length; absent for 5 minutes. Nothing is learnt "
    "while a rank waits less, or the median rank more, than it did by 6 % of the step.",
)  # fmt: skip
RUN_WAIT_SPREAD = _row(
    "run_wait_spread_seconds", GAUGE, "seconds", ("run", "pp"),
    "By how much the waits of this node's ranks differ from their median: the median of that.",
)  # fmt: skip
RUN_LEAST_WAIT = _row(
    "run_least_wait_seconds", GAUGE, "seconds", (*RANK, "pp", "gpu", "uuid"),
    "Seconds per ordinary step that a rank waits for the others, of the one to 8 that wait least on the node: the most "
    "of the last 20 s and 4 steps.",
)  # fmt: skip
RUN_LEAST_WAIT_PAST = _row(
    "run_least_wait_past_seconds", GAUGE, "seconds", (*RANK, "pp", "gpu", "uuid"),
    "What those ranks waited within the hour before, for steps of today's length; absent for 5 minutes.",
)  # fmt: skip
RUN_PHASE = _row(
    "run_phase_seconds", GAUGE, "seconds", ("run", "phase"),
    "Seconds of an ordinary step that the median rank on this node is busy in each phase, waits left out.",
    vocabulary=PHASES,
)  # fmt: skip
RUN_COLLECTIVE_BANDWIDTH = _row(
    "run_collective_bus_bandwidth_bytes", GAUGE, "bytes", ("run", "op"),
    "Bytes a second that the collectives of the run move over the bus of the best rank on this node, over 2 minutes; "
    "absent for a minute after its ranks saved, evaluated or stood still.", vocabulary=OPERATIONS,
)  # fmt: skip
RUN_COLLECTIVE_SECONDS = _row(
    "run_collective_seconds", GAUGE, "seconds", ("run",),
    "Seconds of collectives in a step, from start to end, on the rank of this node where they take longest, over 2 "
    "minutes.",
)  # fmt: skip

_NAMED = (*RANK, *GPU)
RUN_MEMORY_LEAK = _row(
    "run_memory_leak_bytes_per_second", GAUGE, "bytes_per_second", (*_NAMED, "memory"),
    "How fast memory grows that has grown for an hour: what the allocator of the fastest rank of the run on this node "
    "holds; host memory of all its ranks there, by the fastest one's name.",
    vocabulary=("gpu", "host"),
    few=True,
)  # fmt: skip
RUN_MEMORY_LEAKING = _row(
    "run_memory_leaking_ranks", GAUGE, "", ("run",),
    "Ranks of the run on this node whose memory has grown all the time for an hour; absent while there is none.",
)  # fmt: skip
RUN_MEMORY_RETRIES = _row(
    "run_memory_retries", GAUGE, "", _NAMED,
    "Allocations within 10 minutes that succeeded only after the allocator had emptied its cache, of the rank of the "
    "run on this node with most; absent while there is none.",
    few=True,
)  # fmt: skip
RUN_MEMORY_FRAGMENTED = _row(
    "run_memory_fragmented_ratio", GAUGE, "ratio", _NAMED,
    "Share of the GPU memory held by the allocator that lies in unused split blocks, of the rank of the run on this "
    "node where it is highest; absent below 0.05.",
    few=True,
)  # fmt: skip
RUN_MEMORY_PEAK = _row(
    "run_memory_peak_ratio", GAUGE, "ratio", ("run",),
    "Highest GPU memory in live tensors as a share of what the allocator holds, of the run's rank on this node with "
    "the least room.",
)  # fmt: skip
RUN_CHECKPOINT_SECONDS = _row(
    "run_checkpoint_duration_seconds", GAUGE, "seconds", ("run",),
    "Seconds that the last saved checkpoint took, on the slowest rank of the run on this node.",
)  # fmt: skip
RUN_CHECKPOINT_SAVING = _row(
    "run_checkpoint_saving_seconds", GAUGE, "seconds", ("run",),
    "Seconds that the save under way has taken so far, on the rank of the run on this node that began it first; absent "
    "while none saves.",
)  # fmt: skip
RUN_UNSAVED = _row(
    "run_unsaved_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the run last saved a checkpoint, as its ranks on this node know it, or since the youngest of them "
    "started, whichever is later.",
)  # fmt: skip
RUN_CHECKPOINT_FREE = _row(
    "run_checkpoint_free_ratio", GAUGE, "ratio", RANK,
    "Least share of a file system that was free once a rank of the run on this node had saved its last checkpoint, and "
    "that rank.",
    few=True,
)  # fmt: skip
RUN_CHECKPOINT_FAILED = _row(
    "run_checkpoint_failed_ranks", GAUGE, "", RANK,
    "Ranks of the run on this node that failed to save within 10 minutes, by the name of the first; absent while there "
    "is none.",
    few=True,
)  # fmt: skip

RUN_START_STALLED = _row(
    "run_start_stalled_seconds", GAUGE, "seconds", ("run",),
    "Before the first step of the run on this node: seconds for which no rank has moved on to another phase; 0 up to "
    "the run's own hang threshold.",
)  # fmt: skip
RUN_OVERDUE = _row(
    "run_overdue_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the run's last step on this node, once they are more than its hang limit and so many have passed "
    "since a pause; else 0.",
)  # fmt: skip
# These exist only while the run is overdue on the node, or has not started for three minutes.
RUN_OVERDUE_RANKS = _row(
    "run_overdue_ranks", GAUGE, "", ("run", "phase"),
    "Ranks of an overdue run by phase; unmarked is outside all phases within a step, unknown does not say.",
)  # fmt: skip
RUN_LONGEST_PAUSE = _row(
    "run_longest_pause_seconds", GAUGE, "seconds", ("run",),
    "Longest time of 6 hours that the run went without a step and then made one, of those longer than its hang limit.",
)  # fmt: skip
RUN_FINISHED = _row(
    "run_finished_timestamp_seconds", GAUGE, "seconds", ("run", "rank", "gpu", "uuid"),
    "Unix time at which a rank finished; of the last 9 on the node, while it is shown.",
)  # fmt: skip
RUN_HANG_STILL = _row(
    "run_hang_still_seconds", GAUGE, "seconds", ("run",),
    "Seconds for which no rank of a run has entered a collective since it is overdue.",
)  # fmt: skip
RUN_HANG_ENQUEUED = _row(
    "run_hang_enqueued", GAUGE, "", ("run", "group", "figure"),
    "Sequence number of the last collective that the furthest and the least rank of an overdue run entered in a "
    "process group, and how many come on a step.",
)  # fmt: skip
RUN_HANG_SUSPECT = _row(
    "run_hang_suspect_seconds", GAUGE, "seconds", ("run", "rank", "gpu", "uuid", "phase", "why"),
    "Seconds in its phase of a rank that may hold an overdue run up: elsewhere than waiting for others, behind in a "
    "collective, or an example where nobody stands out; at most 9 ranks.",
)  # fmt: skip
RUN_HANG_SUSPECT_ENQUEUED = _row(
    "run_hang_suspect_enqueued", GAUGE, "", ("run", "rank", "gpu", "uuid", "group"),
    "Sequence number of the last collective that such a rank entered in each process group.",
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
    unread=_CONCLUDED,
)  # fmt: skip
TRAIN_ORDINARY_SECONDS = _row(
    "train_ordinary_step_seconds_total", COUNTER, "seconds", RANK,
    "Wall seconds of ordinary steps, each from the end of the step before to its own.", detail=True,
    unread=_CONCLUDED,
)  # fmt: skip
TRAIN_ORDINARY_WAIT = _row(
    "train_ordinary_wait_seconds_total", COUNTER, "seconds", RANK,
    "Exposed wait for collectives in ordinary steps; absent for a rank whose waits are not measured.", detail=True,
    unread=_CONCLUDED,
)  # fmt: skip
TRAIN_ORDINARY_PHASES = _row(
    "train_ordinary_phase_seconds_total", COUNTER, "seconds", (*RANK, "phase"),
    "The rank's own seconds by phase in ordinary steps, measured waits for collectives left out.",
    vocabulary=OWN_PHASES, detail=True,
    unread=_CONCLUDED,
)  # fmt: skip
TRAIN_RECENT_STEP = _row(
    "train_recent_step_seconds", GAUGE, "seconds", RANK,
    "Median time from one ordinary step's end to the next, over the last 20 s and 3 such steps at least; absent before "
    "there are 3, and once the last is older than that and 2 steps (docs/protocol.md).",
)  # fmt: skip
TRAIN_RECENT_STEPS = _row(
    "train_recent_steps", GAUGE, "", RANK,
    "Ordinary steps that the rank's recent step, wait and phase seconds rest on; absent where those are.", detail=True,
    unread="says how many steps the other recent values rest on; shown to check a client",
)  # fmt: skip
TRAIN_RECENT_PHASE = _row(
    "train_recent_phase_seconds", GAUGE, "seconds", (*RANK, "phase"),
    "The rank's own time in a phase per ordinary step, measured waits for collectives left out: mean over "
    "train_recent_steps; absent where that is, and for phases without time.",
    vocabulary=PHASES,
)  # fmt: skip
TRAIN_RECENT_WAIT = _row(
    "train_recent_wait_seconds", GAUGE, "seconds", RANK,
    "Exposed wait for collectives per ordinary step: mean over train_recent_steps; absent where that is, and for a "
    "rank whose waits are not measured. The rank that waits least arrived last.",
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
    "Sequence number of the last collective that this rank entered in a process group: 0 for all ranks, else its "
    "members. In a hang, the rank with the lowest number is the culprit.", detail=True,
)  # fmt: skip
TRAIN_COLLECTIVE_COMPLETED = _row(
    "train_collective_completed", GAUGE, "", (*RANK, "group"),
    "Sequence number of the last collective completed in a process group.", detail=True,
    unread="says in a hang whether the collective that a rank entered has ended; alerts compare who entered it",
)  # fmt: skip
TRAIN_TOKENS = _row(
    "train_tokens_total", COUNTER, "", RANK,
    "Tokens that this rank trained on: as logged with each step, else its share of tokens_per_step.", loggable=True,
)  # fmt: skip
TRAIN_SAMPLES = _row(
    "train_samples_total", COUNTER, "", RANK,
    "Samples that this rank trained on: as logged with each step, else its share of samples_per_step.", loggable=True,
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
    "Failures of this rank's process, by the reason it reported; absent while it runs, and if it was killed.",
    vocabulary=FAILURE_CATEGORIES,
    unread="a total to look at; alerts read rank_ended_timestamp_seconds",
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
