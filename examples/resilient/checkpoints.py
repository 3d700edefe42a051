"""Sharded checkpoints in a folder, saved beside the training; a whole one gets its checksums, and then its name."""

from __future__ import annotations

import hashlib
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

KEPT = 8
"""Checkpoints that are kept, as many as the supervisor knows: a fault may be noticed after some of them were saved."""


class Checkpoints:
    """The checkpoints of a model, its optimizer, its schedule and each rank's random numbers, by step."""

    def __init__(
        self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler,
    ) -> None:  # fmt: skip
        self._folder, self._rank = folder, dist.get_rank()
        self._model, self._optimizer, self._schedule = model, optimizer, schedule
        self._group = dist.new_group(backend="gloo")  # saving goes on beside the training's collectives
        self._saving: Future[Any] | None = None
        self._step = 0

    def newest(self, not_after: int | None) -> int | None:
        """Return the step of the newest checkpoint; those after a step to go back to are put aside, and not deleted."""
        found: list[int | None] = [None]
        if self._rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            for unfinished in self._folder.glob("*.unfinished"):
                shutil.rmtree(unfinished)
            for step in [step for step in self._steps() if not_after is not None and step > not_after]:
                aside = self._folder / f"{step}.aside"
                shutil.rmtree(aside, ignore_errors=True)
                self.path(step).rename(aside)
            found = [max(self._steps(), default=None)]
        dist.broadcast_object_list(found)
        return found[0]

    def begin(self, step: int) -> None:
        """Begin to save; it goes on beside the next steps, from a copy."""
        self._step = step
        self._saving = dcp.async_save(self._state(), checkpoint_id=self._unfinished, process_group=self._group)

    def finished(self, *, wait: bool = False) -> tuple[int, Path] | None:
        """Return step and place of the checkpoint under way once all ranks have saved it; raise what kept one from it.

        Rank 0 returns it, which gives it its name, and all others None.
        """
        if self._saving is None or not (wait or self._saving.done()):
            return None
        self._saving.result()
        self._saving = None
        if self._rank != 0:
            return None
        files = sorted(path for path in self._unfinished.iterdir() if path.is_file())
        sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
        (self._unfinished / "SHA256SUMS").write_text("".join(sums))
        shutil.rmtree(self.path(self._step), ignore_errors=True)
        self._unfinished.rename(self.path(self._step))
        for old in self._steps()[:-KEPT]:
            shutil.rmtree(self.path(old))
        return self._step, self.path(self._step)

    def load(self, step: int) -> None:
        """Set everything to what it was at a step."""
        state = self._state()
        dcp.load(state, checkpoint_id=self.path(step), process_group=self._group)
        set_state_dict(
            self._model, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        self._schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state[self._random])

    def path(self, step: int) -> Path:
        """Return where the checkpoint of a step is."""
        return self._folder / str(step)

    @property
    def _random(self) -> str:
        return f"random-{self._rank}"

    @property
    def _unfinished(self) -> Path:
        return self._folder / f"{self._step}.unfinished"

    def _steps(self) -> list[int]:
        return sorted(int(path.name) for path in self._folder.iterdir() if path.name.isdecimal())

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "schedule": self._schedule.state_dict(),
            self._random: torch.get_rng_state(),
        }
