"""Every metric of a run that a node concludes for all of its ranks: as many series for eight ranks as for one.

Apart from the catalog of a rank, which a training process imports. Long, as it is a table: one row after another, each
of which is read alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tachograph.catalog.metric import COUNTER, GAUGE, GPU, INFO, RANK, Rows
from tachograph.catalog.rank import OPERATIONS, PHASES, STATES, TIERS

SPEED_UNITS = ("mfu", "tokens", "samples", "steps")
"""What the speed of a run is measured in: the first of these that is known."""

WORK_UNITS = ("flops", "hardware_flops", "tokens", "samples")
"""What the work of a run is counted in."""

END_KINDS = ("died", "failed", "communication", "told")
"""How a rank ended that did not finish: without a word, by its own failure, because communication with a peer failed,
or because it was asked to."""

KIND_OF_END: Mapping[str, str] = MappingProxyType(
    {"died": "died", "collective": "communication", "terminated": "told", "interrupted": "told"}
)
"""The kind of an end by its reason; of all other reasons it is `failed`."""

ROWS = Rows()
_row = ROWS.add

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
    "Restarts of the rank of the run on this node that was restarted most often, by the newest attempt of "
    "any rank there.",
)  # fmt: skip
RUN_RANK_STEP = _row(
    "run_rank_step", GAUGE, "", ("run", "rank", "gpu", "uuid"),
    "Step of the median rank of the run on this node that trains; and by name of up to eight ranks that "
    "are more than 3 steps from it.",
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
    "Seconds that the run may go without a step: three usual steps and 15, or its own threshold; 240 "
    "while its usual step is not known. Absent before the first.",
)  # fmt: skip
RUN_EXCUSED = _row(
    "run_excused_seconds", GAUGE, "seconds", ("run",),
    "Seconds since a rank of the run on this node was last in init, checkpoint or eval for more than 2 s, "
    "ranks that take no part in steps left out.",
)  # fmt: skip
RUN_PAUSED = _row(
    "run_paused_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the run last paused on this node: excused, or without a step for 15 s beyond its usual "
    "one, or before its first.",
)  # fmt: skip
RUN_STARTED = _row(
    "run_started_timestamp_seconds", GAUGE, "seconds", ("run",),
    "Unix time at which the youngest running process of the run on this node started. What came before "
    "belongs to another attempt.",
)  # fmt: skip
RUN_BATCH_CHANGED = _row(
    "run_batch_changed_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the run's batch last changed while it ran: as its ranks report, or by a quarter of a "
    "step's tokens or samples.",
)  # fmt: skip
RUN_WORK = _row(
    "run_work_per_second", GAUGE, "", ("run", "unit"),
    "What the run's ranks on this node made over the last minute: tokens, samples, model FLOPs, and FLOPs "
    "of the hardware of ranks whose device is known.", vocabulary=WORK_UNITS,
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
    "Speed of the run in ordinary steps: the median of two minutes. MFU if it is known, otherwise tokens, "
    "samples or steps per second of a mean rank.",
    vocabulary=SPEED_UNITS,
)  # fmt: skip
RUN_USUAL_SPEED = _row(
    "run_usual_speed", GAUGE, "", ("run", "unit"),
    "Usual speed of the run: the median of the hour that ended 5 minutes ago. It is held for up to a day "
    "while the run is slower, and for an hour after.",
    vocabulary=SPEED_UNITS,
)  # fmt: skip
RUN_BEST_SPEED = _row(
    "run_best_speed", GAUGE, "", ("run", "unit"),
    "Best hour of the run within a day, in the present processes; absent for the first 65 minutes.",
    vocabulary=SPEED_UNITS,
)  # fmt: skip
RUN_SLOW = _row(
    "run_slow_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the run became slower than usual by more than its threshold; 0 while it is not.",
)  # fmt: skip
RUN_DATA_WAIT = _row(
    "run_data_wait_ratio", GAUGE, "ratio", ("run",),
    "Share of its steps that the median rank on this node that loads data waits for it: reached in three "
    "fifths of the last two minutes of steps.",
)  # fmt: skip
RUN_USUAL_DATA_WAIT = _row(
    "run_usual_data_wait_ratio", GAUGE, "ratio", ("run",),
    "Usual share of the steps that the median rank waits for data, as run_usual_speed.",
)  # fmt: skip
RUN_DATA_STALL = _row(
    "run_data_stall_seconds", GAUGE, "seconds", ("run",),
    "Seconds for which the run's ranks on this node have waited for data, beyond their threshold and "
    "three times the usual, or stood still in phase data.",
)  # fmt: skip

RUN_FIRST_END = _row(
    "run_first_end_seconds", GAUGE, "seconds", ("run", "kind", "reason", "rank", "gpu", "uuid"),
    "Seconds since the first rank of the run on this node ended in the newest attempt, by kind: died, "
    "failed, communication, or told to end.",
    vocabulary=END_KINDS,
)  # fmt: skip
RUN_LAST_WORDS = _row(
    "run_last_words_age_seconds", GAUGE, "seconds", ("run", "rank", "category", "line"),
    "Seconds since the rank of run_first_end_seconds failed, with its category by its last words; the line if "
    "`tachograph logs` knows it, or the exception's type or exit code.",
)  # fmt: skip
RUN_ENDED_TOGETHER = _row(
    "run_ended_together", GAUGE, "", ("run", "kind"),
    "Ranks of the run on this node that ended within half a second of the first of their kind; within 3 s "
    "if communication failed.",
)  # fmt: skip
RUN_ENDED_ATTEMPT = _row(
    "run_ended_attempt_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the ranks of the run on this node that have ended were last restarted: earlier ends "
    "elsewhere belong to an earlier attempt.",
)  # fmt: skip
RUN_ENDED = _row(
    "run_ended_seconds", GAUGE, "seconds", ("run", "outcome"),
    "Seconds since a rank of the run on this node last finished; or, once all are gone, since they were "
    "asked to end.",
)  # fmt: skip
RUN_STEPS_SHORT = _row(
    "run_steps_short", GAUGE, "", ("run",),
    "Steps missing from the run's plan when all of its ranks on this node had finished; 0 if less than a "
    "hundredth. Absent without a plan.",
)  # fmt: skip
RUN_FRUITLESS_ATTEMPTS = _row(
    "run_fruitless_attempts", GAUGE, "", ("run",),
    "Attempts of the run in a row that failed on this node without a new step, each within 15 minutes of "
    "the one before.",
)  # fmt: skip
RUN_FROZEN = _row(
    "run_frozen_seconds", GAUGE, "seconds", ("run", "rank", "gpu", "uuid", "phase", "pid", "where", "process"),
    "Seconds for which a connected rank has sent nothing, after 25 s, or 60 s in init, checkpoint and "
    "eval, with its line if it left its stacks; the longest eight.",
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
    "Step at which the loss of a rank on this node was first NaN or infinite within the last 70 s, and "
    "the first such rank.",
)  # fmt: skip
RUN_LOSS_NONFINITE_RANKS = _row(
    "run_loss_nonfinite_ranks", GAUGE, "", ("run", "when"),
    "Ranks on this node whose loss is not finite (now), was not within 70 s (lately), or became so at "
    "run_loss_nonfinite_step (first).",
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
    "A number that all ranks of the run must share: that of most ranks on this node at "
    "run_invariant_step, and the least and the greatest where they differ.",
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
    "Batches per step over the last 100 steps or more: of the median rank on this node, and the least and "
    "the greatest where they are too far from it.",
)  # fmt: skip

RUN_WAITING_RANKS = _row(
    "run_waiting_ranks", GAUGE, "", ("run", "pp"),
    "Ranks of the run on this node, by their stage of a pipeline where they say it, that measure how long they wait "
    "for the others.",
)  # fmt: skip
RUN_WAIT = _row(
    "run_wait_seconds", GAUGE, "seconds", ("run", "pp"),
    "Seconds per ordinary step that the median rank on this node (of two the longer) waits for the "
    "others: the least of the last 20 s and 4 steps.",
)  # fmt: skip
RUN_WAIT_PAST = _row(
    "run_wait_past_seconds", GAUGE, "seconds", ("run", "pp"),
    "The same within the hour before, scaled to today's steps; known after 5 minutes. Nothing is learnt "
    "while a rank is late by 6 % of the step.",
)  # fmt: skip
RUN_WAIT_SPREAD = _row(
    "run_wait_spread_seconds", GAUGE, "seconds", ("run", "pp"),
    "By how much the waits of this node's ranks differ from their median: the median of that.",
)  # fmt: skip
RUN_LEAST_WAIT = _row(
    "run_least_wait_seconds", GAUGE, "seconds", (*RANK, "pp", "gpu", "uuid"),
    "Seconds per ordinary step that each of up to 8 ranks that wait least on this node waits for the "
    "others: the most of the last 20 s and 4 steps.",
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
    "Bytes a second over the bus of the best rank on this node, over 2 minutes; absent for a minute after "
    "a save, an evaluation or a standstill.", vocabulary=OPERATIONS,
)  # fmt: skip
RUN_COLLECTIVE_SECONDS = _row(
    "run_collective_seconds", GAUGE, "seconds", ("run",),
    "Seconds of collectives in a step, from start to end, on the rank of this node where they take longest, over 2 "
    "minutes.",
)  # fmt: skip

_NAMED = (*RANK, *GPU)
RUN_MEMORY_LEAK = _row(
    "run_memory_leak_bytes_per_second", GAUGE, "bytes_per_second", (*_NAMED, "memory"),
    "Growth of memory that has grown for an hour: of the allocator of the fastest-growing rank on this "
    "node, or of the host memory of all.",
    vocabulary=("gpu", "host"),
    few=True,
)  # fmt: skip
RUN_MEMORY_LEAKING = _row(
    "run_memory_leaking_ranks", GAUGE, "", ("run",),
    "Ranks of the run on this node whose memory has grown all the time for an hour; absent while there is none.",
)  # fmt: skip
RUN_MEMORY_RETRIES = _row(
    "run_memory_retries", GAUGE, "", _NAMED,
    "Allocations within 10 minutes that succeeded only after the allocator emptied its cache, of the rank "
    "on this node with most.",
    few=True,
)  # fmt: skip
RUN_MEMORY_FRAGMENTED = _row(
    "run_memory_fragmented_ratio", GAUGE, "ratio", _NAMED,
    "Share of the allocator's GPU memory in unused split blocks, of the rank on this node where it is "
    "highest; absent below 0.05.",
    few=True,
)  # fmt: skip
RUN_MEMORY_PEAK = _row(
    "run_memory_peak_ratio", GAUGE, "ratio", ("run",),
    "Highest GPU memory in live tensors as a share of the allocator's, of the rank on this node with the "
    "least room.",
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
    "Seconds before the first step of the run for which no rank on this node has changed its phase; 0 up "
    "to the hang threshold.",
)  # fmt: skip
RUN_OVERDUE = _row(
    "run_overdue_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the run's last step on this node, once beyond its hang limit, also counted from the "
    "last pause; otherwise 0.",
)  # fmt: skip
# These exist only while the run is overdue on the node, or has not started for three minutes.
RUN_OVERDUE_RANKS = _row(
    "run_overdue_ranks", GAUGE, "", ("run", "phase"),
    "Ranks of an overdue run by phase; unmarked is outside all phases within a step, unknown does not say, stuck_save "
    "is in a save in which nothing moves any more.",
)  # fmt: skip
RUN_OVERDUE_LINE = _row(
    "run_overdue_line_ranks", GAUGE, "", ("run", "where"),
    "Ranks of an overdue run that stand still at the same line of its code: the line at which most do.",
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
    "Sequence number of the last collective that the furthest and the least rank of an overdue run "
    "entered in a process group, and how many a step has.",
)  # fmt: skip
RUN_HANG_SUSPECT = _row(
    "run_hang_suspect_seconds", GAUGE, "seconds", ("run", "rank", "gpu", "uuid", "phase", "why", "pid", "where"),
    "Seconds in its phase of up to 9 ranks that may hold an overdue run up (behind, or not waiting for "
    "others), with the line; or of an example if none stands out.",
)  # fmt: skip
RUN_HANG_SUSPECT_ENQUEUED = _row(
    "run_hang_suspect_enqueued", GAUGE, "", ("run", "rank", "gpu", "uuid", "group"),
    "Sequence number of the last collective that such a rank entered in each process group.",
)  # fmt: skip
