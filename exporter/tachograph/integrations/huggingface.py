"""Hugging Face: `TachographCallback` for `transformers.Trainer`.

    trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
    TachographCallback(run="llama-7b").attach(trainer)
    trainer.train()

`Trainer(callbacks=[TachographCallback()])` works, too, and sees less: a callback is not notified when the Trainer waits
for data, when it runs forward and backward, what the loss of a step is (only the mean of a logging interval, with NaN
filtered out by `logging_nan_inf_filter`), nor the model as DistributedDataParallel wraps it.
"""

# ruff: noqa: ANN401 - the Trainer's objects have no type here

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tachograph.catalog.rank import PhaseName
from tachograph.client.core.contained import contained
from tachograph.client.flops.model_flops import ModelFlops, of_config
from tachograph.client.recorder import Recorder
from tachograph.integrations.loop import Loop

if TYPE_CHECKING:
    TrainerCallback = object
else:
    try:
        from transformers import TrainerCallback
    except ModuleNotFoundError:
        TrainerCallback = None

CONVENTION = "causal"
GENERATES = "_generate_and_score_completions"
"""The method of TRL's trainers that generate what they train on."""


class TachographCallback(TrainerCallback or object):  # type: ignore[misc]
    """Records a `transformers.Trainer`: steps, phases, loss, checkpoints, evaluation, what it resumed from.

    Arguments are those of `tachograph.Recorder`, or a `recorder` made earlier (then it is the caller's to close).
    `sequence_length` says that every sequence is filled to so many tokens: then tokens per step are known, and FLOPs
    where the model's configuration can be counted (convention `causal`). Without it tokens are counted where the
    Trainer counts them (`include_num_input_tokens_seen`) or, attached, by the size of `input_ids`, padding included.
    """

    def __init__(self, *, recorder: Recorder | None = None, sequence_length: int | None = None, **given: Any) -> None:
        if TrainerCallback is None:
            raise ImportError("TachographCallback needs transformers: pip install transformers")
        self._loop: Loop | None = None if recorder is None else Loop(recorder)
        self._owned = recorder is None
        self._given = given
        self._sequence_length = sequence_length
        self._trainer: Any = None
        self._tokens = Tokens(given.get("flops_per_token"))
        self._counting = False
        self._logged_by_step = False
        self._norm: object = None

    def attach(self, trainer: Any) -> TachographCallback:
        """Add this callback to `trainer` and let it see the loader, forward, backward, and the loss of each step.

        It does so by wrapping the trainer's own methods `get_batch_samples`, `compute_loss` and `training_step`, and
        its accelerator's `backward` and `clip_grad_norm_`; what a subclass made of them is called as before.
        """
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        if trainer is not self._trainer:
            self._wrap(trainer)
        return self

    @contained
    def _wrap(self, trainer: Any) -> None:
        self._trainer = trainer
        self._record(trainer.args, trainer.model)
        accelerator = trainer.accelerator
        for owner, name, around in (
            (trainer, "get_batch_samples", self._fetch),
            (trainer, "compute_loss", functools.partial(self._in_phase, "forward")),
            (accelerator, "backward", functools.partial(self._in_phase, "backward")),
            (trainer, "training_step", self._training_step),
            (accelerator, "clip_grad_norm_", self._clip),
            # Of TRL's trainers that generate what they train on, within a step.
            (trainer, GENERATES, functools.partial(self._in_phase, "generate")),
            (trainer, "_calculate_rewards", functools.partial(self._in_phase, "reward")),
            (getattr(trainer, "vllm_generation", None), "sync_weights", functools.partial(self._in_phase, "sync")),
        ):
            if callable(method := getattr(owner, name, None)):
                setattr(owner, name, functools.wraps(method)(functools.partial(around, method)))

    # What the trainer's own methods are wrapped in: each calls the method exactly once, whatever becomes of us.

    def _fetch(self, method: Callable[..., Any], batches: Iterable[Any], *arguments: Any, **named: Any) -> Any:
        """Book each wait for a batch as phase `data`."""
        if self._loop is not None:
            batches = iter(self._loop.recorder.data(batches))
        return method(batches, *arguments, **named)

    def _in_phase(self, phase: PhaseName, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a method as phase of the open step; outside of steps (evaluation) as nothing."""
        loop = self._loop
        if loop is None or not loop.stepping:
            return method(*arguments, **named)
        with loop.recorder.phase(phase):
            return method(*arguments, **named)

    def _training_step(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Take the loss of a micro-batch, which the Trainer has scaled to its share of the step's."""
        self._see_batch(arguments)
        loss = method(*arguments, **named)
        self._see_loss(loss)
        return loss

    def _clip(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        norm = method(*arguments, **named)
        self._see_norm(norm)
        return norm

    @contained
    def _see_batch(self, arguments: tuple[Any, ...]) -> None:
        inputs: Any = arguments[1] if len(arguments) > 1 else {}
        tokens = inputs.get("input_ids") if isinstance(inputs, Mapping) else None  # TRL has lists of samples
        if tokens is not None and self._tokens.by_shape:
            self._tokens.count += tokens.numel()

    @contained
    def _see_loss(self, loss: object) -> None:
        if self._loop is not None:
            self._logged_by_step = True
            self._loop.add_loss(loss)

    @contained
    def _see_norm(self, norm: object) -> None:
        self._norm = norm

    # What the Trainer calls.

    @contained
    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the record, so that the time until the first step is seen as `init`."""
        self._record(args, kwargs.get("model"))

    @contained
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Watch what is trained; report what this attempt resumed from."""
        loop = self._record(args, kwargs.get("model"))
        recorder = loop.recorder
        loop.abandon()  # the Trainer may begin again in the same process, with a smaller batch
        model = kwargs.get("model") if self._trainer is None else self._trainer.model_wrapped
        scaler = getattr(getattr(self._trainer, "accelerator", None), "scaler", None)
        recorder.watch(model, kwargs.get("optimizer"), scheduler=kwargs.get("lr_scheduler"), scaler=scaler)
        recorder.invariant("global_batch", _global_batch(args, kwargs.get("model")), step=state.global_step)
        recorder.step().log(total_steps=state.max_steps)
        if state.global_step:
            recorder.resumed(state.global_step)
        self._tokens.begin(state, args, kwargs.get("model"), self._trainer, static="tokens_per_step" in self._given)

    @contained
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the step; with gradient accumulation it holds all of its micro-batches."""
        if self._loop is not None:
            self._loop.begin(state.global_step)

    @contained
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Enter phase `optimizer`."""
        if self._loop is not None:
            self._loop.enter("optimizer")

    @contained
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave phase `optimizer`."""
        if self._loop is not None:
            self._loop.leave("optimizer")

    @contained
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Complete the step; what follows may be logging, evaluation, a checkpoint."""
        if self._loop is None:
            return
        norm, self._norm = self._norm, None
        self._loop.end(**({} if norm is None else {"grad_norm": norm}))
        self._tokens.see(state)
        if not control.should_log:
            self._next(control)

    @contained
    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Take what the Trainer logs where nothing better is seen: a mean over the steps since the last log."""
        loop = self._loop
        if loop is None or logs is None or loop.in_phase("eval"):
            return
        if "loss" in logs and not loop.stepping:
            values = {key: logs[key] for key in ("loss", "grad_norm") if key in logs}
            if not self._logged_by_step:
                loop.recorder.step().log(**values)
            self._next(control)

    @contained
    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Enter phase `eval` at the first batch of an unannounced evaluation."""
        if self._loop is not None and not self._loop.stepping:
            self._loop.enter("eval")

    @contained
    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Leave phase `eval`, and take the loss; of several evaluation sets none is the validation loss."""
        if self._loop is not None:
            self._loop.leave("eval")
            if metrics and "eval_loss" in metrics:
                self._loop.recorder.step().log(val_loss=metrics["eval_loss"])
            self._next(control)

    @contained
    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        """Leave phase `eval`."""
        if self._loop is not None:
            self._loop.leave("eval")

    @contained
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave phase `checkpoint` and report the checkpoint as saved."""
        if self._loop is not None:
            self._loop.leave("checkpoint")
            path = f"{args.output_dir}/checkpoint-{state.global_step}" if args.should_save else None
            self._loop.recorder.checkpoint_saved(state.global_step, path=path)

    @contained
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Expect the evaluation or the checkpoint of an epoch's end."""
        if self._loop is not None:
            self._loop.abandon()
            self._next(control)

    @contained
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave what an epoch's end had announced and did not do."""
        self._settle()

    @contained
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the record, unless the recorder is the caller's."""
        self._settle()
        if self._loop is not None and self._owned:
            self._loop.recorder.close()
            self._loop = None
            self._counting = False

    def _settle(self) -> None:
        if self._loop is not None:
            self._loop.leave("eval")
            self._loop.leave("checkpoint")

    def _next(self, control: Any) -> None:
        """Enter the phase that follows at once: the Trainer evaluates, then saves, as its control says."""
        loop = self._loop
        if loop is not None and not loop.stepping:
            self._settle()
            if control.should_evaluate:
                loop.enter("eval")
            elif control.should_save:
                loop.enter("checkpoint")

    def _record(self, args: Any, model: Any) -> Loop:
        """Return the loop, with a recorder made of the Trainer's arguments where there is none yet."""
        if self._loop is None:
            given = dict(self._given)
            batch = _global_batch(args, model)
            given.setdefault("global_batch", batch)
            given.setdefault("samples_per_step", batch)
            given.setdefault("precision", _precision(args, model))
            if self._sequence_length is not None:
                given.setdefault("tokens_per_step", batch * self._sequence_length)
                if flops := _flops(model, self._sequence_length):
                    given.setdefault("flops_per_token", flops)
            self._given = given
            self._loop = Loop(Recorder(**given))
        if not self._counting:
            self._counting = True
            self._loop.recorder.add_source(self._tokens)  # a recorder that counts tokens itself takes precedence
        return self._loop


class Tokens:
    """Counts the tokens of this rank where their number differs from step to step; a source of the recorder's."""

    def __init__(self, flops_per_token: object) -> None:
        self.count = 0
        self.by_shape = False
        self._by_trainer = False
        self._ranks = self._alike = 1
        self._before = 0
        self._flops = getattr(flops_per_token, "total", flops_per_token)

    def begin(self, state: Any, args: Any, model: Any, trainer: Any, *, static: bool) -> None:
        """Choose who counts: no one if each step has the same tokens, the Trainer, or the shape of its batches.

        Those of TRL that generate what they train on always count. `trainer` is None where it is not known.
        """
        tracked = getattr(args, "include_num_input_tokens_seen", False) not in (False, None, "no")
        self.by_shape = not (static or tracked or trainer is None or hasattr(trainer, GENERATES))
        self._by_trainer = not (static or self.by_shape)
        self._ranks = max(args.world_size, 1)
        self._alike = _size(args, model, "tp") * _size(args, model, "cp")  # with sp each has a part of the sequence
        self._before = state.num_input_tokens_seen - self.count * self._ranks

    def see(self, state: Any) -> None:
        """Take over the Trainer's count, which is of all ranks and goes on where a checkpoint ended."""
        if self._by_trainer:
            self.count = max(0, state.num_input_tokens_seen - self._before) // self._ranks

    def metrics(self) -> Iterable[tuple[str, object]]:
        """Yield the counters; none while nothing was counted."""
        if self.count:
            tokens = self.count / self._alike
            yield "tokens_total", tokens
            if isinstance(self._flops, (int, float)):
                yield "flops_total", tokens * self._flops


def _global_batch(args: Any, model: Any) -> int:
    """Return the samples of one optimizer step over all ranks."""
    alike = math.prod(_size(args, model, dimension) for dimension in ("tp", "cp", "sp"))
    return int(args.train_batch_size * args.gradient_accumulation_steps * max(args.world_size // alike, 1))


def _size(args: Any, model: Any, dimension: str) -> int:
    """Return how many ranks share each sample by tensor (tp), context (cp) or sequence (sp) parallelism."""
    size = getattr(getattr(args, "parallelism_config", None), f"{dimension}_size", None)
    return int((dimension == "tp" and getattr(model, "_tp_size", None)) or size or 1)


def _precision(args: Any, model: Any) -> str | None:
    """Return what products are computed in: the Trainer's mixed precision, else the type of the weights."""
    dtype = getattr(model, "dtype", None)
    return "bf16" if args.bf16 else "fp16" if args.fp16 else None if dtype is None else str(dtype)


def _flops(model: Any, sequence_length: int) -> ModelFlops | None:
    """Return the model's operations per token, None where its configuration cannot be counted."""
    try:
        return of_config(model.config, sequence_length=sequence_length, convention=CONVENTION)
    except (AttributeError, ValueError):
        return None
