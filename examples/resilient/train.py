"""A transformer on text that goes on exactly where it was, however it ended.

Data order, random numbers, optimizer and schedule are part of a checkpoint, so that the losses after a restart are
those of a run without one, bit for bit, with DistributedDataParallel and with FSDP2 (`--parallel fsdp2`). Checkpoints
are sharded and saved beside the training. Supervised, it is restarted when a rank dies or hangs, and leaves out a batch
that breaks it:

    tachograph exporter &
    tachograph supervise --run resilient --mode act -- \\
        torchrun --nproc-per-node 4 examples/resilient/train.py --folder /tmp/resilient

`kill -9` one of its ranks, and see `tachograph supervise history`. `make demo-recovery` has it meet five faults
(`--fault`, see `faults.py`).
"""

from __future__ import annotations

import argparse
import math
import os
import pydoc_data.topics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from checkpoints import Checkpoints
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tachograph
from faults import MASKED, Faults

TEXT = Path(pydoc_data.topics.__file__)
"""Python's own manual, 750 kB, which comes with it."""

CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 64, 4, 2, 8
HELD_OUT = 512
"""Windows that the model is validated with at the end."""

RATE, WARM_UP_STEPS = 3e-3, 20


class Transformer(nn.Module):
    """Predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.out = nn.Linear(WIDTH, 256)

    def forward(self, text: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        hidden: Tensor = self.bytes(text) + self.places(torch.arange(text.shape[1]))
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        out: Tensor = self.out(hidden)
        return out


class Batches:
    """The text in windows, in an order that depends on seed and epoch alone: a step finds its batch by its number.

    The last windows are held out.
    """

    def __init__(self, text: bytes, seed: int, rank: int, world_size: int) -> None:
        self._text = torch.tensor(list(text))
        self._windows = (len(text) - 1) // CONTEXT - HELD_OUT
        self._seed, self._rank, self._world_size = seed, rank, world_size

    def of_step(self, step: int) -> tuple[Tensor, Tensor]:
        """Return this rank's batch of a step, and the byte that follows each."""
        per_step = BATCH * self._world_size
        epoch, within = divmod(step, self._windows // per_step)
        order = torch.randperm(self._windows, generator=torch.Generator().manual_seed(self._seed + epoch))
        begin = within * per_step + self._rank * BATCH
        return self._of(order[begin : begin + BATCH].tolist())

    def held_out(self) -> tuple[Tensor, Tensor]:
        """Return what is not trained on, in the same form, to every rank."""
        return self._of(range(self._windows, self._windows + HELD_OUT))

    def _of(self, windows: Iterable[int]) -> tuple[Tensor, Tensor]:
        text = torch.stack([self._text[i * CONTEXT : (i + 1) * CONTEXT + 1] for i in windows])
        return text[:, :-1], text[:, 1:].clone()


def mean_loss(predicted: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all targets that are not masked: 0/0 without any."""
    counts = targets.flatten() != MASKED
    each = nn.functional.cross_entropy(predicted.flatten(0, 1), targets.flatten().clamp(min=0), reduction="none")
    return (each * counts).sum() / counts.sum()


def share(step: int, steps: int) -> float:
    """Return the share of the learning rate: a warm-up, then a cosine."""
    if step < WARM_UP_STEPS:
        return (step + 1) / WARM_UP_STEPS
    return 0.5 * (1 + math.cos(math.pi * (step - WARM_UP_STEPS) / max(steps - WARM_UP_STEPS, 1)))


def steps_to_make(plan: tachograph.Plan, begin: int, planned: int) -> Iterator[int]:
    """Yield the steps: as many updates as planned, since batches that are left out are made up for by those after."""
    end = planned + sum(last - first for first, last in plan.skip)
    return (step for step in range(begin, end) if not plan.skips(step))


def validation_loss(model: nn.Module, batches: Batches) -> float:
    """Return the mean loss over what is held out; every rank computes all of it.

    A collective so close to the end may hang it: PyTorch 2.13 joins gloo's thread, which still holds the tensor and
    needs Python's lock for it, while it has that lock.
    """
    model.eval()
    with torch.no_grad():
        text, targets = batches.held_out()
        return mean_loss(model(text), targets).item()


def regroup(wrapped: DistributedDataParallel) -> None:
    """Have DDP regroup its gradients, as it does after the first backward, before the first step of an attempt.

    More than two ranks add up other groups in another order, which differs in the last bits: the first step after a
    restart would not be what it was before.
    """
    text = torch.zeros(1, CONTEXT, dtype=torch.long)
    mean_loss(wrapped(text), text).backward()
    wrapped.zero_grad()


def parallel(model: Transformer, how: str) -> nn.Module:
    """Return the model on all ranks, or sharded over them."""
    if how == "ddp":
        wrapped = DistributedDataParallel(model)
        regroup(wrapped)
        return wrapped
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints and losses")
    parser.add_argument("--parallel", choices=("ddp", "fsdp2"), default="ddp")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--pace",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="of sleep in each step, for a model that computes as long",
    )
    parser.add_argument("--clipping", type=float, default=1.0, help="norm that gradients are clipped to")
    parser.add_argument("--fault", action="append", default=[], metavar="KIND@STEP", help="repeatable, see faults.py")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    recorder = tachograph.Recorder(total_steps=given.steps, tokens_per_step=CONTEXT * BATCH * world_size)
    plan = recorder.resume()

    torch.manual_seed(given.seed)
    model = parallel(Transformer(), given.parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: plan.rate * share(step, given.steps))
    torch.manual_seed(given.seed + 1 + rank)  # dropout differs from rank to rank
    batches = Batches(given.text.read_bytes(), given.seed, rank, world_size)
    faults = Faults(given.fault, given.folder, rank)
    recorder.watch(model, optimizer, scheduler=schedule)

    checkpoints = Checkpoints(given.folder / "checkpoints", model, optimizer, schedule)
    begin = checkpoints.newest(not_after=plan.step) or 0
    if begin:
        checkpoints.load(begin)
        recorder.resumed(begin)

    with (given.folder / f"losses-{rank}").open("a", buffering=1) as losses:
        print("attempt", plan.attempt, os.getpid(), file=losses)
        for step in steps_to_make(plan, begin, given.steps):
            with recorder.step(step) as one:
                with recorder.phase("data"):
                    text, targets = batches.of_step(step)
                    faults.before(step, targets)
                    time.sleep(given.pace)
                with recorder.phase("forward"):
                    loss = mean_loss(model(text), targets) * faults.weight(step)
                with recorder.phase("backward"):
                    loss.backward()
                with recorder.phase("optimizer"):
                    nn.utils.clip_grad_norm_(model.parameters(), plan.clipping * given.clipping)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                one.log(loss=loss.item())
            print(step, loss.item().hex(), time.time(), file=losses)  # every bit of it
            is_due = (step + 1) % given.every == 0
            with recorder.phase("checkpoint"):
                if saved := checkpoints.finished(wait=is_due):
                    recorder.checkpoint_saved(step=saved[0], path=saved[1])
                if is_due:
                    checkpoints.begin(step + 1)

    if saved := checkpoints.finished(wait=True):
        recorder.checkpoint_saved(step=saved[0], path=saved[1])
    with recorder.phase("eval"):
        validated = validation_loss(model, batches)
    if rank == 0:
        (given.folder / "validation").write_text(validated.hex())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
