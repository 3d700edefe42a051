"""Metrics of how a run learns, as its ranks report them: losses, gradients, layers, schedules, what is not finite."""

from __future__ import annotations

from tachograph.catalog.metric import COUNTER, GAUGE, RANK, Rows
from tachograph.catalog.rank import NONFINITE_SOURCES

ROWS = Rows()
_row = ROWS.add

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
