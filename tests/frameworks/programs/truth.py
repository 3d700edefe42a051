"""What a program knows of its own training, by its own count: nothing of Tachograph is imported here."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


class Truth:
    """Counts what one rank does; `write` leaves it in the folder `$TRUTH` for the test that reads it."""

    def __init__(self) -> None:
        self.steps = 0
        self.batches = 0
        self.evaluations = 0
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.norms: list[float] = []
        self.checkpoints: list[int] = []
        self.moments: list[float] = []
        self.seconds: dict[str, float] = {}
        self._open: list[float] = []
        self._evaluated_at = -1

    def batch(self) -> None:
        """Count a batch that is trained on."""
        self.batches += 1

    def step(self, loss: float | None = None, rate: float | None = None, norm: float | None = None) -> None:
        """Count an optimizer step with the values that its framework has for it."""
        self.steps += 1
        self.moments.append(time.monotonic())
        for values, value in ((self.losses, loss), (self.rates, rate), (self.norms, norm)):
            if value is not None:
                values.append(float(value))

    def micro_batch(self, loss: torch.Tensor) -> None:
        """Keep the loss of a micro-batch; those of a step have their mean as its loss."""
        self._open.append(loss.item())

    def step_of_micro_batches(self) -> None:
        """Count the optimizer step of the micro-batches since the last one."""
        self.step(sum(self._open) / len(self._open))
        self._open.clear()

    def evaluated(self, began: float) -> None:
        """Count an evaluation that began at a monotonic time and ends now; without a step in between it is the same."""
        self.evaluations += self._evaluated_at != self.steps
        self._evaluated_at = self.steps
        self.seconds["eval"] = self.seconds.get("eval", 0.0) + time.monotonic() - began

    def checkpoint(self) -> None:
        """Count a checkpoint of the steps so far."""
        self.checkpoints.append(self.steps)

    @contextmanager
    def spending(self, phase: str) -> Iterator[None]:
        """Add the time of the block to a phase; in a block of the same phase inside, nothing."""
        before, began = self.seconds.get(phase, 0.0), time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = before + time.monotonic() - began

    def time_forward(self, model: torch.nn.Module) -> None:
        """Time the forward of a module while it trains; elsewhere it is none of training's."""
        began: list[float] = []

        def begins(*_: Any) -> None:
            began.append(time.monotonic())

        def ends(module: torch.nn.Module, *_: Any) -> None:
            seconds = time.monotonic() - began.pop()
            if module.training:
                self.seconds["forward"] = self.seconds.get("forward", 0.0) + seconds

        model.register_forward_pre_hook(begins)
        model.register_forward_hook(ends)

    def write(self, model: torch.nn.Module | None = None) -> None:
        """Write what was counted, and the sum of a model's parameters to the last bit."""
        rank = int(os.environ.get("RANK", "0"))
        folder = Path(os.environ["TRUTH"])
        folder.mkdir(parents=True, exist_ok=True)
        counted = dict(vars(self))
        if model is not None:
            counted["weights"] = [parameter.double().sum().item().hex() for parameter in model.parameters()]
        (folder / f"{rank}.json").write_text(json.dumps(counted), encoding="utf-8")
