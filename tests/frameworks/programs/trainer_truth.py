"""What a Hugging Face Trainer does, by its own hooks: for each of the libraries that build on it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback
from truth import Truth


def counted(kind: type[Any], truth: Truth) -> type[Any]:
    """Return a Trainer's class that tells the truth of its micro-batches and evaluations."""

    class Counted(kind):
        """The same Trainer."""

        def training_step(self, *arguments: Any, **named: Any) -> torch.Tensor:
            """Count a micro-batch and its share of the step's loss, on this rank."""
            loss: torch.Tensor = super().training_step(*arguments, **named)
            truth.batch()
            truth.micro_batch(loss * self.args.gradient_accumulation_steps)
            return loss

        def evaluate(self, *arguments: Any, **named: Any) -> Any:
            """Count an evaluation and its time."""
            truth.evaluations += 1
            with truth.spending("eval"):
                return super().evaluate(*arguments, **named)

    return Counted


class Counting(TrainerCallback):
    """Counts steps and checkpoints, and keeps what the Trainer logs."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def on_step_end(self, *_: Any, lr_scheduler: Any, **__: Any) -> None:
        """Count an optimizer step, and keep the rate that the next one will have."""
        self.truth.step_of_micro_batches()
        self.truth.rates += lr_scheduler.get_last_lr()[:1]

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Keep the step's rate and norm."""
        for name, values in (("learning_rate", self.truth.rates), ("grad_norm", self.truth.norms)):
            if name in logs:
                values.append(float(logs[name]))

    def on_save(self, *_: Any, **__: Any) -> None:
        """Count a checkpoint."""
        self.truth.checkpoint()
