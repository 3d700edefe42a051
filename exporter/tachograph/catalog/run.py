"""Every metric of a run that a node concludes for all of its ranks: as many series for eight ranks as for one.

Kept apart from the catalog of a rank, which a training process imports. It is long because it is a table: one row after
another, each read on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tachograph.catalog.metric import COUNTER, GAUGE, GPU, INFO, NATIVE_HISTOGRAM, RANK, Rows
from tachograph.catalog.rank import OPERATIONS, PHASES, SET_BY, STATES, TIERS

SPEED_UNITS = ("mfu", "tokens", "samples", "steps")
"""What the speed of a run is measured in: the first of these that is known."""

WORK_UNITS = ("flops", "hardware_flops", "tokens", "samples")
"""What the work of a run is counted in."""

NONE_WAITS = "none_waits"
PAUSE_LIMITS = ("most_pause", "one_stays_away", "some_pause", NONE_WAITS)
"""When a run may go without a step for longer than the hang limit: while most of its ranks pause, while they pause and
wait for one that never joins, while some pause, and while none waits for another."""

END_KINDS = ("died", "failed", "communication", "told")
"""How a rank that did not finish ended: without a word, by its own failure, because communication with a peer failed,
or because it was asked to."""

KIND_OF_END: Mapping[str, str] = MappingProxyType(
    {"died": "died", "collective": "communication", "terminated": "told", "interrupted": "told"}
)
"""The kind of an end by its reason; for all other reasons it is `failed`."""

TOLD_REASONS = frozenset(reason for reason, kind in KIND_OF_END.items() if kind == "told")
"""Reasons of ranks that somebody asked to end: a scheduler, a person, or a launcher after another rank failed."""

SUPERVISOR_MODES = ("shadow", "ask", "act", "failed")
"""What a supervisor does about a finding: nothing, what a person confirms, all, or nothing by a fault of its own."""

POLICY_ACTIONS = (
    "notify", "keep_evidence", "restart", "restart_from_checkpoint", "skip_batches", "lower_rate", "exclude_node",
    "stop", "leave",
)  # fmt: skip
"""What the policy of a supervisor may have done."""

SUPERVISOR_OUTCOMES = ("would", "asked", "held", "done", "failed", "right", "wrong", "unknown")
"""What comes of a supervisor's decision; the last three judge one of shadow mode by what happened afterwards."""

WEBHOOK_OUTCOMES = ("other", "repeated", "taken", "late", "malformed", "forged", "too_many")
"""What becomes of a message that is pushed to a supervisor: it is about no alert of its run, says nothing new, or is
taken; and why it is refused."""

ROWS = Rows()
_row = ROWS.add

RUN_RANKS = _row(
    "run_ranks", GAUGE, "", ("run", "state"),
    "Ranks of the run on this node, by state; of the states without ranks, only running is shown.",
    vocabulary=STATES,
)  # fmt: skip
RUN_WORLD_SIZE = _row(
    "run_world_size", GAUGE, "", ("run",),
    "Ranks that the run should have on all nodes.",
)  # fmt: skip
RUN_TIER = _row(
    "run_tier_info", INFO, "", ("run", "tier"),
    "Tier of the run, for its alerts; absent for standard.",
    vocabulary=TIERS,
)  # fmt: skip
RUN_ROLE = _row(
    "run_role_info", INFO, "", ("run", "role", "of"),
    "Role that this group of ranks has in the run `of`; absent for a run without roles.",
)  # fmt: skip
RUN_LIMIT = _row(
    "run_limit", GAUGE, "", ("run", "name", "set_by"),
    "Limit that applies to the run: its own (the most tolerant living rank's), otherwise the site's or the default.",
    vocabulary=SET_BY,
)  # fmt: skip
RUN_THRESHOLD = _row(
    "run_threshold", GAUGE, "", ("run", "name"),
    "The run's own limits. Deprecated: run_limit has them with set_by=\"run\".",
)  # fmt: skip
RUN_CHECKPOINT_TIMESTAMP = _row(
    "run_checkpoint_timestamp_seconds", GAUGE, "seconds", ("run",),
    "Unix time at which the newest restorable checkpoint was saved, in any attempt, by this node's ranks.",
)  # fmt: skip
RUN_CHECKPOINT_STEP = _row(
    "run_checkpoint_step", GAUGE, "", ("run",),
    "Step of that checkpoint: every rank that saves has reported it, and the loss had not spiked or become NaN.",
)  # fmt: skip
RUN_CHECKPOINT_LAG = _row(
    "run_checkpoint_lag_seconds", GAUGE, "seconds", ("run",),
    "Seconds from when the run came to the step of that checkpoint until it was durable, its upload included.",
)  # fmt: skip
RUN_PROGRESS = _row(
    "run_progress_timestamp_seconds", GAUGE, "seconds", ("run",),
    "Unix time of the last step of a living rank on this node.",
)  # fmt: skip
RUN_RESTARTS = _row(
    "run_restarts", GAUGE, "", ("run", "attempt"),
    "Restarts of the most restarted rank on this node, with the newest attempt.",
)  # fmt: skip
RUN_ATTEMPT = _row(
    "run_attempt", GAUGE, "", ("run",),
    "Newest attempt of a living rank on this node.",
)  # fmt: skip
RUN_RANK_STEP = _row(
    "run_rank_step", GAUGE, "", ("run", "rank", "gpu", "uuid"),
    "This node's median step, and the steps of up to eight ranks that are more than 3 away from it.",
    few=True,
)  # fmt: skip
RUN_STEP_SECONDS = _row(
    "run_step_seconds", GAUGE, "seconds", ("run",),
    "Usual step time of the run: the median of its ranks on this node.",
)  # fmt: skip
RUN_STEP_DISTRIBUTION = _row(
    "run_step_distribution_seconds", NATIVE_HISTOGRAM, "seconds", ("run",),
    "Wall time of ordinary steps, summed over the ranks of the run on this node; in the protobuf format alone.",
)  # fmt: skip
RUN_PROGRESS_AGE = _row(
    "run_progress_age_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the last step of a living rank on this node.",
)  # fmt: skip
RUN_HANG_LIMIT = _row(
    "run_hang_limit_seconds", GAUGE, "seconds", ("run",),
    "Seconds allowed without a step: hang_seconds plus three usual steps, or at least 240 while none is known.",
)  # fmt: skip
RUN_EXCUSED = _row(
    "run_excused_seconds", GAUGE, "seconds", ("run",),
    "Seconds since a rank on this node was last in init, checkpoint or eval for more than 2 s.",
)  # fmt: skip
RUN_PAUSED = _row(
    "run_paused_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the run last paused on this node: excused, before its first step, or 15 s overdue.",
)  # fmt: skip
RUN_STARTED = _row(
    "run_started_timestamp_seconds", GAUGE, "seconds", ("run",),
    "Unix time at which the run's youngest running process on this node started.",
)  # fmt: skip
RUN_BATCH_CHANGED = _row(
    "run_batch_changed_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the batch changed, as reported or because a step's tokens or samples changed by a quarter.",
)  # fmt: skip
RUN_WORK = _row(
    "run_work_per_second", GAUGE, "", ("run", "unit"),
    "Tokens, samples and, for known devices, model and hardware FLOPs a second on this node, over the last "
    "minute.", vocabulary=WORK_UNITS,
)  # fmt: skip
RUN_PEAK_FLOPS = _row(
    "run_peak_flops", GAUGE, "", ("run",),
    "Dense peak FLOP/s of the ranks on this node whose device and FLOPs are known.",
)  # fmt: skip
RUN_ACHIEVABLE_FLOPS = _row(
    "run_achievable_flops", GAUGE, "", ("run",),
    "Highest FLOP/s publicly measured on the devices that run_peak_flops counts.",
)  # fmt: skip
RUN_SPEED = _row(
    "run_speed", GAUGE, "", ("run", "unit"),
    "Median speed of ordinary steps over two minutes: MFU if known, otherwise tokens, samples or steps a second "
    "of the average rank.",
    vocabulary=SPEED_UNITS,
)  # fmt: skip
RUN_USUAL_SPEED = _row(
    "run_usual_speed", GAUGE, "", ("run", "unit"),
    "Median speed of the hour that ended 5 minutes ago, kept for up to a day while the run is slower.",
    vocabulary=SPEED_UNITS,
)  # fmt: skip
RUN_BEST_SPEED = _row(
    "run_best_speed", GAUGE, "", ("run", "unit"),
    "Speed in the best hour of the last day, in the present processes.",
    vocabulary=SPEED_UNITS,
)  # fmt: skip
RUN_SLOW = _row(
    "run_slow_seconds", GAUGE, "seconds", ("run",),
    "Seconds for which the run has been slower than usual by more than its limit.",
)  # fmt: skip
RUN_DATA_WAIT = _row(
    "run_data_wait_ratio", GAUGE, "ratio", ("run",),
    "Share of its step time that the median rank on this node waits for data, over two minutes.",
)  # fmt: skip
RUN_USUAL_DATA_WAIT = _row(
    "run_usual_data_wait_ratio", GAUGE, "ratio", ("run",),
    "Usual share of its step time that the median rank waits for data.",
)  # fmt: skip
RUN_DATA_STALL = _row(
    "run_data_stall_seconds", GAUGE, "seconds", ("run",),
    "Seconds for which the wait for data has exceeded its limit and three times its usual share, or the run has stood "
    "still in that phase.",
)  # fmt: skip

RUN_FIRST_END = _row(
    "run_first_end_seconds", GAUGE, "seconds", ("run", "kind", "reason", "rank", "gpu", "uuid"),
    "Seconds since the first rank of the newest attempt ended on this node, by how it ended: died, failed, lost its "
    "peers (communication), or was asked to end (told).",
)  # fmt: skip
RUN_LAST_WORDS = _row(
    "run_last_words_age_seconds", GAUGE, "seconds",
    ("run", "rank", "reason", "step", "coordinates", "category", "line"),
    "Seconds since the rank of run_first_end_seconds died or failed: why, at which step, where it was in the run's "
    "parallelism, and the category and line of its last words.",
)  # fmt: skip
RUN_GONE = _row(
    "run_gone_seconds", GAUGE, "seconds", ("run", "ranks", "how"),
    "Seconds since the first of these ranks on this node ended without finishing; none of them is back.",
)  # fmt: skip
RUN_ENDED_TOGETHER = _row(
    "run_ended_together", GAUGE, "", ("run", "kind"),
    "Ranks on this node that ended within 0.5 s of the first of their kind, or within 3 s for communication.",
)  # fmt: skip
RUN_ENDED_ATTEMPT = _row(
    "run_ended_attempt_seconds", GAUGE, "seconds", ("run",),
    "Seconds for which ends on any node have belonged to the newest attempt, whose ranks here have made a step or "
    "ended.",
)  # fmt: skip
RUN_ENDED = _row(
    "run_ended_seconds", GAUGE, "seconds", ("run", "outcome"),
    "Seconds since a rank on this node last finished, or since all were asked to end.",
)  # fmt: skip
RUN_STEPS_SHORT = _row(
    "run_steps_short", GAUGE, "", ("run",),
    "Planned steps not made when all ranks on this node had finished; 0 if less than a hundredth is missing.",
)  # fmt: skip
RUN_FRUITLESS_ATTEMPTS = _row(
    "run_fruitless_attempts", GAUGE, "", ("run",),
    "Attempts in a row that failed on this node without a new step, at most 15 minutes apart.",
)  # fmt: skip
RUN_FROZEN = _row(
    "run_frozen_seconds", GAUGE, "seconds", ("run", "rank", "gpu", "uuid", "phase", "pid", "where", "process", "words"),
    "Seconds for which a connected rank has been silent, once over 23 (60 in init, checkpoint and eval), and what is "
    "known of it in words; the eight longest.",
    few=True,
)  # fmt: skip

RUN_TRAIN_STEP = _row("run_train_step", GAUGE, "", ("run",), "Step of the furthest living rank on this node.")
RUN_STEPS = _row(
    "run_steps_total", COUNTER, "", ("run",),
    "Most steps that a living rank on this node has completed in this attempt.",
)  # fmt: skip
RUN_LOSS = _row(
    "run_loss", GAUGE, "", ("run",),
    "Median of the last finite losses on this node.",
)  # fmt: skip
RUN_LOSS_SPIKE_STEPS = _row(
    "run_loss_spike_steps", GAUGE, "", ("run",),
    "Steps since the median rank's loss spike on this node began, otherwise 0.",
)  # fmt: skip
RUN_LOSS_SPIKED = _row(
    "run_loss_spiked_seconds", GAUGE, "seconds", ("run",),
    "Seconds since half of the ranks on this node last began a loss spike.",
)  # fmt: skip
RUN_LOSS_NONFINITE_STEP = _row(
    "run_loss_nonfinite_step", GAUGE, "", ("run", "rank", "gpu", "uuid"),
    "Step and rank at which a loss on this node first became NaN or infinite within the last 70 s.",
)  # fmt: skip
RUN_LOSS_NONFINITE_RANKS = _row(
    "run_loss_nonfinite_ranks", GAUGE, "", ("run", "when"),
    "Ranks on this node with a NaN or infinite loss: now, lately (within 70 s), or as the first to have one.",
    vocabulary=("first", "lately", "now"),
)  # fmt: skip
RUN_LOSS_NONFINITE_SECONDS = _row(
    "run_loss_nonfinite_seconds", GAUGE, "seconds", ("run",),
    "Seconds since a loss on this node first became NaN or infinite.",
)  # fmt: skip
RUN_VAL_LOSS = _row(
    "run_val_loss", GAUGE, "", ("run",),
    "Median of the last validation losses on this node; NaN if half of them are not finite.",
)  # fmt: skip
RUN_VAL_LOSS_SPIKE = _row(
    "run_val_loss_spike_evaluations", GAUGE, "", ("run",),
    "Evaluations since half of the ranks on this node began a spike of the validation loss.",
)  # fmt: skip
RUN_GRAD_NORM = _row(
    "run_grad_norm", GAUGE, "", ("run",),
    "Median of the last finite gradient norms on this node.",
)  # fmt: skip
RUN_GRAD_NORM_LEVEL = _row(
    "run_grad_norm_level", GAUGE, "", ("run",), "Median of the usual gradient norms on this node."
)
RUN_GRAD_NORM_SPIKE_STEPS = _row(
    "run_grad_norm_spike_steps", GAUGE, "", ("run",),
    "Steps since the median rank's gradient norm on this node began to spike, otherwise 0.",
)  # fmt: skip
RUN_GRAD_NORM_NONFINITE_STEPS = _row(
    "run_grad_norm_nonfinite_steps", GAUGE, "", ("run",),
    "Consecutive steps with a gradient norm that is not finite, on the median rank on this node.",
)  # fmt: skip
RUN_GRAD_NORM_VANISHED_STEPS = _row(
    "run_grad_norm_vanished_steps", GAUGE, "", ("run",),
    "Steps for which the gradient norm has been below a hundredth of its usual value.",
)  # fmt: skip
RUN_AMP_LOSS_SCALE = _row(
    "run_amp_loss_scale", GAUGE, "", ("run",), "Lowest loss scale of mixed precision on this node."
)
RUN_AMP_SKIPPED = _row(
    "run_amp_skipped_steps_total", COUNTER, "", ("run",),
    "Most steps that mixed precision has skipped on a rank on this node in this attempt.",
)  # fmt: skip
RUN_LEARNING_RATE = _row("run_learning_rate", GAUGE, "", ("run",), "Highest learning rate last logged on this node.")
RUN_SCHEDULE_STEP = _row(
    "run_schedule_step", GAUGE, "", ("run",),
    "Most steps counted by a learning-rate scheduler on this node.",
)  # fmt: skip
RUN_SCHEDULE_IDLE_STEPS = _row(
    "run_schedule_idle_steps", GAUGE, "", ("run",),
    "Steps since the learning-rate scheduler was last seen to advance.",
)  # fmt: skip
RUN_SCHEDULE_IDLE_SECONDS = _row(
    "run_schedule_idle_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the learning-rate scheduler was last seen to advance.",
)  # fmt: skip
RUN_INVARIANT = _row(
    "run_invariant", GAUGE, "", ("run", "name", "held", "rank", "gpu", "uuid"),
    "A number on which all ranks must agree: that of most ranks on this node and, if they differ, the extremes.",
)  # fmt: skip
RUN_INVARIANT_STEP = _row(
    "run_invariant_step", GAUGE, "", ("run", "name"),
    "Step of run_invariant on most ranks on this node.",
)  # fmt: skip
RUN_GLOBAL_BATCH_WRONG_STEPS = _row(
    "run_global_batch_wrong_steps", GAUGE, "", ("run",),
    "Steps whose global batch differed from the configured one.",
)  # fmt: skip
RUN_BATCHES_PER_STEP = _row(
    "run_batches_per_step", GAUGE, "", ("run", "held", "rank", "gpu", "uuid"),
    "Batches per step over 100 steps or more: the median rank's on this node and, if too different, the extremes.",
)  # fmt: skip

RUN_WAITING_RANKS = _row(
    "run_waiting_ranks", GAUGE, "", ("run", "pp"),
    "Ranks on this node that measure their waits for others, by pipeline stage.",
)  # fmt: skip
RUN_WAIT = _row(
    "run_wait_seconds", GAUGE, "seconds", ("run", "pp"),
    "Wait of this node's median rank for others, per ordinary step.",
)  # fmt: skip
RUN_WAIT_PAST = _row(
    "run_wait_past_seconds", GAUGE, "seconds", ("run", "pp"),
    "Value of run_wait_seconds in the hour before, scaled to the present steps.",
)  # fmt: skip
RUN_WAIT_SPREAD = _row(
    "run_wait_spread_seconds", GAUGE, "seconds", ("run", "pp"),
    "Median absolute deviation of the waits on this node.",
)  # fmt: skip
RUN_LEAST_WAIT = _row(
    "run_least_wait_seconds", GAUGE, "seconds", (*RANK, "pp", "gpu", "uuid"),
    "Wait for others per ordinary step, for up to 8 ranks on this node that wait least.",
)  # fmt: skip
RUN_LEAST_WAIT_PAST = _row(
    "run_least_wait_past_seconds", GAUGE, "seconds", (*RANK, "pp", "gpu", "uuid"),
    "Waits of the same ranks in the hour before, scaled to the present steps.",
)  # fmt: skip
RUN_PHASE = _row(
    "run_phase_seconds", GAUGE, "seconds", ("run", "phase"),
    "Seconds per ordinary step that the median rank on this node is busy in each phase.",
    vocabulary=PHASES,
)  # fmt: skip
RUN_COLLECTIVE_BANDWIDTH = _row(
    "run_collective_bus_bandwidth_bytes", GAUGE, "bytes", ("run", "op"),
    "Bus bandwidth of the best rank on this node, over 2 minutes.", vocabulary=OPERATIONS,
)  # fmt: skip
RUN_COLLECTIVE_SECONDS = _row(
    "run_collective_seconds", GAUGE, "seconds", ("run",),
    "Longest time per step that any rank of this node spends in collectives, over 2 minutes.",
)  # fmt: skip

_NAMED = (*RANK, *GPU)
RUN_MEMORY_LEAK = _row(
    "run_memory_leak_bytes_per_second", GAUGE, "bytes_per_second", (*_NAMED, "memory"),
    "Growth over an hour of the fastest-growing rank's GPU memory on this node, or of all host memory.",
    vocabulary=("gpu", "host"),
    few=True,
)  # fmt: skip
RUN_MEMORY_LEAKING = _row(
    "run_memory_leaking_ranks", GAUGE, "", ("run",),
    "Ranks on this node whose memory has grown for an hour.",
)  # fmt: skip
RUN_MEMORY_RETRIES = _row(
    "run_memory_retries", GAUGE, "", _NAMED,
    "Most allocations by a rank on this node in 10 minutes for which the allocator had to empty its cache.",
    few=True,
)  # fmt: skip
RUN_MEMORY_FRAGMENTED = _row(
    "run_memory_fragmented_ratio", GAUGE, "ratio", _NAMED,
    "Highest share of a rank's allocator memory on this node in unused split blocks; absent below 0.05.",
    few=True,
)  # fmt: skip
RUN_MEMORY_PEAK = _row(
    "run_memory_peak_ratio", GAUGE, "ratio", ("run",),
    "Highest share of a rank's allocator on this node that live tensors ever took.",
)  # fmt: skip
RUN_GPU_CLOCK = _row(
    "run_gpu_clock_hertz", GAUGE, "hertz", ("run", "name"),
    "Median SM clock over 30 s of the GPUs on this node that work for the run, by model.",
)  # fmt: skip
RUN_WORKING_GPUS = _row(
    "run_working_gpus", GAUGE, "", ("run", "name"),
    "GPUs on this node that work for the run, by model; shared ones do not count.",
)  # fmt: skip
RUN_SLOW_GPU_CLOCK = _row(
    "run_slow_gpu_clock_hertz", GAUGE, "hertz", (*_NAMED, "name"),
    "SM clock over 30 s of the slowest GPU here that works for the run, and of others below 95 % of the median.",
    few=True,
)  # fmt: skip
RUN_CHECKPOINT_SECONDS = _row(
    "run_checkpoint_duration_seconds", GAUGE, "seconds", ("run",),
    "Seconds that the last saved checkpoint took on the slowest rank on this node.",
)  # fmt: skip
RUN_CHECKPOINT_SAVING = _row(
    "run_checkpoint_saving_seconds", GAUGE, "seconds", ("run",),
    "Seconds since a rank on this node began the save under way.",
)  # fmt: skip
RUN_UNSAVED = _row(
    "run_unsaved_seconds", GAUGE, "seconds", ("run",),
    "Seconds since the run last saved a checkpoint or, if later, its youngest rank on this node started.",
)  # fmt: skip
RUN_CHECKPOINT_FREE = _row(
    "run_checkpoint_free_ratio", GAUGE, "ratio", RANK,
    "Least share of a file system left free by a rank's last checkpoint on this node.",
    few=True,
)  # fmt: skip
RUN_CHECKPOINT_FAILED = _row(
    "run_checkpoint_failed_ranks", GAUGE, "", RANK,
    "Ranks on this node that failed to save in the last 10 minutes, and the first of them.",
    few=True,
)  # fmt: skip

RUN_START_STALLED = _row(
    "run_start_stalled_seconds", GAUGE, "seconds", ("run",),
    "Seconds without a change of phase before the first step, beyond the hang limit; otherwise 0.",
)  # fmt: skip
RUN_OVERDUE = _row(
    "run_overdue_seconds", GAUGE, "seconds", ("run",),
    "Seconds without a step on this node, once beyond the hang limit; otherwise 0.",
)  # fmt: skip
# These exist only while the run is overdue on the node, or has not started for three minutes.
RUN_OVERDUE_RANKS = _row(
    "run_overdue_ranks", GAUGE, "", ("run", "phase"),
    "Ranks of an overdue run by phase; unmarked: outside every phase, unknown: not reported, stuck_save: in a stalled "
    "save.",
)  # fmt: skip
RUN_OVERDUE_LINE = _row(
    "run_overdue_line_ranks", GAUGE, "", ("run", "where"),
    "Most ranks of an overdue run that stand at one line of code.",
)  # fmt: skip
RUN_PAUSE_LIMIT = _row(
    "run_pause_limit_seconds", GAUGE, "seconds", ("run", "when"),
    "Seconds that an overdue run may go without a step: while most ranks pause, while these wait for one that stays "
    "away, while some pause, while none waits.",
)  # fmt: skip
RUN_FINISHED = _row(
    "run_finished_timestamp_seconds", GAUGE, "seconds", ("run", "rank", "gpu", "uuid", "at"),
    "Unix time at which a rank on this node finished, and at which step in words, for the last 9 to finish.",
)  # fmt: skip
RUN_HANG_STILL = _row(
    "run_hang_still_seconds", GAUGE, "seconds", ("run", "stopped"),
    "Seconds for which no rank of an overdue run has entered a collective; where the run stopped, in words.",
)  # fmt: skip
RUN_HANG_ENQUEUED = _row(
    "run_hang_enqueued", GAUGE, "", ("run", "group", "figure", "words"),
    "Sequence number of an overdue run's last collective, on its furthest rank (in words, too) and its last one, and "
    "collectives per step.",
)  # fmt: skip
RUN_HANG_SUSPECT = _row(
    "run_hang_suspect_seconds", GAUGE, "seconds",
    ("run", "rank", "gpu", "uuid", "phase", "why", "pid", "where", "words"),
    "Seconds that a rank that may be holding up an overdue run has been in its phase, and in words what it does and "
    "where; up to 9 ranks.",
)  # fmt: skip
RUN_HANG_SUSPECT_ENQUEUED = _row(
    "run_hang_suspect_enqueued", GAUGE, "", ("run", "rank", "gpu", "uuid", "group"),
    "Sequence number of the last collective of such a rank (run_hang_suspect_seconds) in each process group.",
)  # fmt: skip

# Of `tachograph supervise`, as the run's supervisor on this node reports itself.
SUPERVISOR_LOOK_AGE = _row(
    "supervisor_look_age_seconds", GAUGE, "seconds", ("run", "mode"),
    "Seconds since the supervisor of the run last looked, by its mode; failed: it does nothing any more.",
    vocabulary=SUPERVISOR_MODES,
)  # fmt: skip
SUPERVISOR_BLIND = _row(
    "supervisor_blind_seconds", GAUGE, "seconds", ("run",),
    "Seconds for which the supervisor has known nothing of its run; 0 while it does.",
)  # fmt: skip
SUPERVISOR_RESTARTS_LEFT = _row(
    "supervisor_restarts_left", GAUGE, "", ("run",),
    "Restarts left in the supervisor's budget, of the last hour or of the run, whichever is less.",
)  # fmt: skip
SUPERVISOR_ACTIONS = _row(
    "supervisor_actions_total", COUNTER, "", ("run", "action", "outcome"),
    "Decisions of the supervisor since its journal began; right, wrong and unknown are what became of would.",
    vocabulary=SUPERVISOR_OUTCOMES,
)  # fmt: skip
SUPERVISOR_WEBHOOKS = _row(
    "supervisor_webhooks_total", COUNTER, "", ("run", "outcome"),
    "Webhooks that were sent to this supervisor; late, malformed, forged and too_many were refused.",
    vocabulary=WEBHOOK_OUTCOMES,
)  # fmt: skip
SUPERVISOR_QUESTION = _row(
    "supervisor_question_seconds", GAUGE, "seconds", ("run", "action", "question"),
    "Seconds for which a question of the supervisor has waited; tachograph supervise confirm QUESTION answers it.",
)  # fmt: skip
SUPERVISOR_SKIPS = _row(
    "supervisor_skips", GAUGE, "", ("run", "steps"),
    "How often the batches of these steps, or of steps beside them, were left out; the steps most often left out.",
)  # fmt: skip
SUPERVISOR_RECOVERY = _row(
    "supervisor_recovery_seconds", GAUGE, "seconds", ("run",),
    "Seconds from the last failure for which the supervisor restarted the run to the next step.",
)  # fmt: skip
SUPERVISOR_LOST_STEPS = _row(
    "supervisor_lost_steps_total", COUNTER, "", ("run",),
    "Steps repeated after the supervisor's restarts.",
)  # fmt: skip
SUPERVISOR_SAVED = _row(
    "supervisor_saved_gpu_seconds_total", COUNTER, "seconds", ("run",),
    "What its restarts saved: for each rank the 15 minutes that a person needs, less the time to recover.",
)  # fmt: skip
