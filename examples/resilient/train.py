"""A transformer on text that goes on exactly where it was, however it ended.

Data order, random numbers, optimizer and schedule are part of a checkpoint, so that the losses after a restart are
those of a run without one, bit for bit. Supervised, it is restarted when a rank dies or hangs:

    tachograph exporter &
    tachograph supervise --run resilient --mode act -- \\
        torchrun --nproc-per-node 2 examples/resilient/train.py --folder /tmp/resilient

`kill -9` one of its ranks, and see `tachograph supervise history`.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import tachograph

TEXT = Path(__file__).parents[2] / "LICENSE"
CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 64, 4, 2, 8
WARM_UP_STEPS = 20
KEPT = 4
"""Checkpoints that are kept: a fault may be noticed after some of them were saved."""


class Transformer(nn.Module):
    """Predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, 256)

    def forward(self, text: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        hidden: Tensor = self.bytes(text) + self.places(torch.arange(text.shape[1]))
        out: Tensor = self.out(self.layers(hidden, mask=mask, is_causal=True))
        return out


class Batches:
    """The text in windows, in an order that depends on seed and epoch alone: a step finds its batch by its number."""

    def __init__(self, text: bytes, seed: int, rank: int, world_size: int) -> None:
        self._text = torch.tensor(list(text))
        self._windows = (len(text) - 1) // CONTEXT
        self._seed, self._rank, self._world_size = seed, rank, world_size

    def of_step(self, step: int) -> Tensor:
        """Return this rank's batch of a step, with one more byte than the context in each row."""
        per_step = BATCH * self._world_size
        per_epoch = self._windows // per_step
        epoch, within = divmod(step, per_epoch)
        order = torch.randperm(self._windows, generator=torch.Generator().manual_seed(self._seed + epoch))
        begin = within * per_step + self._rank * BATCH
        return torch.stack([self._text[i * CONTEXT : (i + 1) * CONTEXT + 1] for i in order[begin : begin + BATCH]])


class Checkpoints:
    """The checkpoints in a folder: each a folder that is renamed to its name once all ranks have written their part."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank

    def newest(self, not_after: int | None) -> int | None:
        """Return the step of the newest checkpoint; those after a step to go back to are put aside, and not deleted."""
        found: list[int | None] = [None]
        if self._rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            steps = sorted(int(path.name) for path in self._folder.iterdir() if path.name.isdecimal())
            for step in [step for step in steps if not_after is not None and step > not_after]:
                self._of(step).rename(self._folder / f"{step}.suspect")
                steps.remove(step)
            found = [max(steps, default=None)]
        dist.broadcast_object_list(found)
        return found[0]

    def save(self, step: int, shared: dict[str, Any]) -> Path:
        """Save what is the same on all ranks once, and each rank's own random numbers."""
        unfinished = self._folder / "unfinished"
        if self._rank == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            torch.save(shared, unfinished / "shared.pt")
        dist.barrier()
        torch.save(torch.get_rng_state(), unfinished / f"random-{self._rank}.pt")
        dist.barrier()
        if self._rank == 0:
            unfinished.rename(self._of(step))
            steps = sorted(int(path.name) for path in self._folder.iterdir() if path.name.isdecimal())
            for old in steps[:-KEPT]:
                shutil.rmtree(self._of(old))
        return self._of(step)

    def load(self, step: int) -> dict[str, Any]:
        """Return what was the same on all ranks, and set this rank's random numbers."""
        torch.set_rng_state(torch.load(self._of(step) / f"random-{self._rank}.pt", weights_only=True))
        shared: dict[str, Any] = torch.load(self._of(step) / "shared.pt", weights_only=True)
        return shared

    def _of(self, step: int) -> Path:
        return self._folder / str(step)


def rate(step: int, steps: int) -> float:
    """Return the share of the learning rate: a warm-up, then a cosine."""
    if step < WARM_UP_STEPS:
        return (step + 1) / WARM_UP_STEPS
    return 0.5 * (1 + math.cos(math.pi * (step - WARM_UP_STEPS) / max(steps - WARM_UP_STEPS, 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints and losses")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    recorder = tachograph.Recorder(total_steps=given.steps, tokens_per_step=CONTEXT * BATCH * world_size)
    plan = recorder.resume()

    torch.manual_seed(given.seed)
    model = DistributedDataParallel(Transformer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, given.steps))
    torch.manual_seed(given.seed + 1 + rank)  # dropout differs from rank to rank
    batches = Batches(given.text.read_bytes(), given.seed, rank, world_size)
    recorder.watch(model, optimizer, scheduler=schedule)

    checkpoints = Checkpoints(given.folder / "checkpoints", rank)
    begin = checkpoints.newest(not_after=plan.step) or 0
    if begin:
        saved = checkpoints.load(begin)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        recorder.resumed(begin)

    with (given.folder / f"losses-{rank}").open("a", buffering=1) as losses:
        print("attempt", plan.attempt, os.getpid(), file=losses)
        for step in range(begin, given.steps):
            with recorder.step(step) as one:
                with recorder.phase("data"):
                    text = batches.of_step(step)
                with recorder.phase("forward"):
                    predicted = model(text[:, :-1])
                    loss = nn.functional.cross_entropy(predicted.flatten(0, 1), text[:, 1:].flatten())
                with recorder.phase("backward"):
                    loss.backward()
                with recorder.phase("optimizer"):
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                one.log(loss=loss.item())
            print(step, loss.item().hex(), file=losses)  # every bit of it
            if (step + 1) % given.every == 0:
                with recorder.phase("checkpoint"):
                    states = {"model": model.module, "optimizer": optimizer, "schedule": schedule}
                    path = checkpoints.save(step + 1, {name: each.state_dict() for name, each in states.items()})
                recorder.checkpoint_saved(step=step + 1, path=path)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
