"""The ways in, the metrics for alerts that each of them gives, and the calls that give the rest.

tests/integrations/test_ways_in.py trains with each of them and compares what it showed with this table.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

WAYS: Mapping[str, str] = {
    "loop": "loop",
    "huggingface": "Hugging Face",
    "callback": "callback",
    "lightning": "Lightning",
    "run": "`tachograph run`",
}
"""Key of each way in -> its name in docs/pages.md."""

EVERY = frozenset(WAYS)
SCRIPT = EVERY - {"callback"}
"""Those that see each batch, each loss and the model as DistributedDataParallel wraps it."""

TRAINERS = EVERY - {"loop"}
HUGGING_FACE = frozenset({"huggingface", "callback"})

ATTACH = "`.attach(trainer)`"
"""The additional call that the callback needs to provide what it provides when attached."""


class Source(NamedTuple):
    """Metrics of a rank that come together."""

    keys: str
    """Wire keys, some with the values of their own label that are meant: `invariant{global_batch}`."""
    ways: Set[str]
    """The ways in that give them by themselves."""
    call: str = ""
    """The source of these metrics elsewhere."""
    option: str = ""
    """The same as an option of `tachograph run`, where there is one."""

    @property
    def given(self) -> Mapping[str, frozenset[str]]:
        """Each wire key with the values of its own label; none stands for any."""
        parts = (each.rstrip("}").partition("{") for each in self.keys.split())
        return {key: frozenset(filter(None, values.split("|"))) for key, _, values in parts}


SOURCES = (
    Source(
        "step steps_total step_seconds phase_seconds_total phase_excess_seconds_total recent_step_seconds "
        "productive_seconds_total lost_seconds_total restarts_total host_memory_bytes learning_rate misuse_total "
        "loss loss_spikes_total loss_spike_steps collective_enqueued",
        EVERY,
    ),
    Source("batches_total recent_phase_seconds{data}", SCRIPT, "`data(loader)`"),
    Source("recent_phase_seconds{optimizer}", EVERY, "`watch(model, optimizer)`"),
    Source("loss_nonfinite_timestamp_seconds nonfinite_step{loss}", SCRIPT, "`step.log(loss=…)`"),
    Source(
        "recent_wait_seconds collective_seconds_total collective_bus_bytes_total", SCRIPT, "`watch(model)`",
    ),
    Source("invariant{optimizer_step} invariant_step{optimizer_step}", EVERY, "`watch(model, optimizer)`"),
    Source("tokens_total", HUGGING_FACE | {"loop"}, "`tokens_per_step=…`", "`--tokens-per-step`"),
    Source("flops_total", HUGGING_FACE | {"loop"}, "`flops_per_step=…`", "`--flops-per-step`"),
    Source("samples_total", HUGGING_FACE | {"lightning"}, "`samples_per_step=…`", "`--samples-per-step`"),
    Source("hardware_flops_total", frozenset(), "`hardware_flops_per_token=…`"),
    Source("schedule_step", TRAINERS, "`watch(scheduler=…)`"),
    Source("total_steps", HUGGING_FACE | {"lightning"}, "`total_steps=…`"),
    Source(
        "grad_norm grad_norm_level grad_norm_spike_steps", HUGGING_FACE | {"run"}, "`step.log(grad_norm=…)`",
    ),
    Source("val_loss", HUGGING_FACE | {"lightning"}, "`step.log(val_loss=…)`"),
    Source(
        "checkpoint_step checkpoint_timestamp_seconds", TRAINERS, "`checkpoint_saved(…)`",
    ),
    Source("checkpoint_free_ratio", TRAINERS, "`checkpoint_saved(…, path=…)`"),
    Source("checkpoint_duration_seconds", TRAINERS, '`phase("checkpoint")`'),
    Source("checkpoint_failures_total", frozenset({"lightning", "run"}), "`checkpoint_failed()`"),
    Source(
        "invariant{global_batch} invariant_step{global_batch}", HUGGING_FACE | {"lightning"},
        '`invariant("global_batch", …)`',
    ),
    Source(
        "invariant{parameter_checksum|known_product} invariant_step{parameter_checksum|known_product}", frozenset(),
        "`watch(checksum_every=…)`",
    ),
    Source("threshold", frozenset(), "`threshold(…)`", "`--hang-seconds`"),
)  # fmt: skip

NOT_PLAYED = (
    Source("val_loss_spike_evaluations", HUGGING_FACE | {"lightning"}, "`step.log(val_loss=…)`"),
    Source("grad_norm_nonfinite_steps", HUGGING_FACE | {"run"}, "`step.log(grad_norm=…)`"),
    Source("memory_reserved_bytes memory_inactive_bytes memory_peak_bytes memory_retries_total", EVERY),
    Source("amp_loss_scale amp_skipped_steps_total", TRAINERS, "`watch(scaler=…)`"),
)
"""Metrics of a validation loss that spikes, of lost gradients, of a GPU or mixed precision: tested in tests/client."""

RESTS_ON: Mapping[str, Mapping[str, str]] = {
    "tachograph_run_checkpoint_timestamp_seconds": {"": "checkpoint_timestamp_seconds"},
    "tachograph_run_checkpoint_step": {"": "checkpoint_step"},
    "tachograph_run_checkpoint_duration_seconds": {"": "checkpoint_duration_seconds"},
    "tachograph_run_checkpoint_free_ratio": {"": "checkpoint_free_ratio"},
    "tachograph_run_checkpoint_failed_ranks": {"": "checkpoint_failures_total"},
    "tachograph_run_speed": {
        "mfu": "flops_total", "tokens": "tokens_total", "samples": "samples_total", "steps": "steps_total",
    },
    "tachograph_run_work_per_second": {
        "flops": "flops_total", "hardware_flops": "hardware_flops_total", "tokens": "tokens_total",
        "samples": "samples_total",
    },
    "tachograph_run_loss": {"loss": "loss"},
    "tachograph_run_loss_nonfinite_ranks": {"loss": "loss"},
    "tachograph_run_loss_nonfinite_step": {"loss": "nonfinite_step"},
    "tachograph_run_val_loss_spike_evaluations": {"loss": "val_loss_spike_evaluations"},
    "tachograph_run_val_loss": {"loss": "val_loss"},
    "tachograph_run_grad_norm": {"norm": "grad_norm"},
    "tachograph_run_grad_norm_spike_steps": {"norm": "grad_norm_spike_steps"},
    "tachograph_run_grad_norm_vanished_steps": {"norm": "grad_norm"},
    "tachograph_run_grad_norm_nonfinite_steps": {"norm": "grad_norm_nonfinite_steps"},
    "tachograph_run_amp_skipped_steps_total": {"scaler": "amp_skipped_steps_total"},
    "tachograph_run_schedule_idle_steps": {"schedule": "schedule_step"},
    "tachograph_run_learning_rate": {"rate": "learning_rate"},
    "tachograph_run_invariant": {
        "optimizer_step": "invariant", "parameter_checksum": "invariant", "known_product": "invariant",
        "global_batch": "invariant",
    },
    "tachograph_run_global_batch_wrong_steps": {"global_batch": "invariant"},
    "tachograph_run_batches_per_step": {"": "batches_total"},
    "tachograph_run_collective_seconds": {"": "collective_seconds_total"},
    "tachograph_run_data_wait_ratio": {"data": "recent_phase_seconds"},
    "tachograph_run_data_stall_seconds": {"data": "recent_phase_seconds"},
}  # fmt: skip
"""What a node concludes from something that not every rank gives: by its unit or the phase that it is about."""

MORE: Mapping[str, str] = {"LossNotFinite": "loss_nonfinite_timestamp_seconds", "RunEndedEarly": "total_steps"}
"""Alerts that need more than their expression tells: the mean that the Trainer logs leaves NaN out, and only a node
that knows the plan says how far short of it a run has ended."""
