"""A real distributed training job to watch: a small character-level transformer, PyTorch DDP over gloo, on the CPU.

It learns to write Python from the source text of the standard library, which is on every machine that runs this. It
uses Tachograph's public API as any training script would. Start it with `torchrun`, for example

    torchrun --nproc-per-node 4 --master-addr 127.0.0.1 -m tachograph_lab.demo.job --name demo --folder .demo/job
"""

from __future__ import annotations

import argparse
import os
import sysconfig
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import tachograph
from tachograph.processes.die_with_parent import die_with_parent
from tachograph_lab.demo import fault_injection

VOCABULARY = 128
"""ASCII: a character is its own token."""

TEXT_BYTES = 4_000_000
MEETING_STEPS = 10
"""The number of steps after which all ranks agree on whether to stop."""


@dataclass(frozen=True)
class TrainingShape:
    """The model and batch, chosen for a step of 0.1-0.2 s with four ranks on two cores."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 64
    batch: int = 12

    @property
    def tokens(self) -> int:
        """Tokens one rank trains on per step."""
        return self.batch * self.context


class Block(nn.Module):  # type: ignore[misc]  # torch is not checked
    """One pre-norm transformer layer with causal attention."""

    def __init__(self, shape: TrainingShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_attention = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.project = nn.Linear(shape.width, shape.width)
        self.norm_mlp = nn.LayerNorm(shape.width)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the layer's output, of the input's shape (batch, context, width)."""
        batch, context, width = hidden.shape
        split = self.qkv(self.norm_attention(hidden)).view(batch, context, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.project(mixed.transpose(1, 2).reshape(batch, context, width))
        return hidden + self.mlp(self.norm_mlp(hidden))


class Transformer(nn.Module):  # type: ignore[misc]
    """A decoder-only language model over characters."""

    def __init__(self, shape: TrainingShape) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, shape.width)
        self.position = nn.Parameter(torch.zeros(shape.context, shape.width))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY)
        self.slow_backward_seconds = 0.0

    def forward(self, characters: Tensor) -> Tensor:
        """Return logits (batch, context, vocabulary) for character codes (batch, context)."""
        hidden: Tensor = self.embed(characters) + self.position
        for index, block in enumerate(self.blocks):
            hidden = block(hidden)
            if self.slow_backward_seconds and index == len(self.blocks) // 2:
                fault_injection.slow_backward(hidden, self.slow_backward_seconds)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def text() -> bytes:
    """Return the sources of Python's standard library as ASCII, in a fixed order, up to TEXT_BYTES."""
    collected = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        collected += path.read_bytes()
        if len(collected) >= TEXT_BYTES:
            break
    return bytes(byte for byte in collected[:TEXT_BYTES] if byte < VOCABULARY)


class Windows(IterableDataset[Tensor]):  # type: ignore[misc]
    """An endless stream of random windows of the text for one rank; it stops while the rank has the fault `hang`."""

    def __init__(self, shape: TrainingShape, rank: int, control: Path) -> None:
        self.shape, self.rank, self.control = shape, rank, control

    def __iter__(self) -> Iterator[Tensor]:
        """Yield batches (batch, context + 1) of character codes."""
        die_with_parent()  # a hanging worker does not notice that its parent is gone
        characters = torch.frombuffer(bytearray(text()), dtype=torch.uint8)
        generator = torch.Generator().manual_seed(self.rank)
        offsets = torch.arange(self.shape.context + 1)
        own_faults = fault_injection.RankFaults(self.control, self.rank)
        while True:
            own_faults.hang()
            starts = torch.randint(len(characters) - self.shape.context - 1, (self.shape.batch, 1), generator=generator)
            yield characters[starts + offsets].long()


def measured_peak_flops() -> float:
    """Return the float32 FLOP/s of one core, measured by rank 0 while the others wait: the best of several products.

    It is measured, not a vendor's figure, and for one core alone: if ranks share cores, MFU stays well below 1.
    A product of two n x n matrices takes 2 n^3 operations.
    """
    best = torch.zeros((), dtype=torch.float64)
    if dist.get_rank() == 0:
        size = 512
        left, right = torch.randn(size, size), torch.randn(size, size)
        for _ in range(5):
            products, start = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - start) < 0.1:
                left @ right
                products += 1
            best.clamp_(min=2.0 * size**3 * products / elapsed)
    dist.broadcast(best, 0)
    return float(best)


@contextmanager
def process_group() -> Iterator[None]:
    """Join the job's process group and leave it together: gloo may abort a process whose peers have already left."""
    dist.init_process_group("gloo")
    yield
    dist.barrier()
    dist.destroy_process_group()


def train(options: argparse.Namespace) -> None:
    """Train until `--steps` or until the control file says stop, with the faults it lists."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = TrainingShape()
    rank = dist.get_rank()
    folder: Path = options.folder
    control = folder / "control.json"
    (folder / f"rank{rank}.pid").write_text(str(os.getpid()), encoding="utf-8")

    model = Transformer(shape)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    ddp = DistributedDataParallel(model, bucket_cap_mb=25)  # all gradients in one bucket: one all-reduce a step
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=options.learning_rate)
    loader = DataLoader(Windows(shape, rank, control), batch_size=None, num_workers=1, multiprocessing_context="fork")

    recorder = tachograph.Recorder(
        run=options.name,
        tokens_per_step=shape.tokens * dist.get_world_size(),
        flops_per_token=6 * parameters,  # 2 a parameter forward, 4 backward (Kaplan et al. 2020, section 2.1)
        peak_flops=measured_peak_flops(),
        precision="fp32",
        global_batch=shape.batch * dist.get_world_size(),
    )
    recorder.watch(ddp, optimizer)

    own_faults = fault_injection.RankFaults(control, rank)
    recent: deque[float] = deque(maxlen=50)
    for number, batch in enumerate(recorder.data(loader), start=1):
        own_faults.poll()
        began = time.perf_counter()
        with recorder.step() as step:
            slow = own_faults.get(fault_injection.SLOW)
            model.slow_backward_seconds = slow.share * median(recent) if slow and recent else 0.0
            inputs, targets = batch[:, :-1], batch[:, 1:]
            if own_faults.get(fault_injection.SPIKE):
                targets = fault_injection.corrupted(targets, VOCABULARY)
            with recorder.phase("forward"):
                time.sleep(options.pause)
                logits = ddp(inputs)
                loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
                if own_faults.get(fault_injection.NAN):
                    loss = loss * torch.nan
            with recorder.phase("backward"):
                loss.backward()
            with recorder.phase("optimizer"):
                norm = nn.utils.clip_grad_norm_(ddp.parameters(), max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
            step.log(loss=loss, grad_norm=norm, learning_rate=options.learning_rate)
        if not slow:
            recent.append(time.perf_counter() - began)
        if rank == 0 and number % options.checkpoint_steps == 0:
            path = folder / "checkpoint.pt"
            with recorder.phase("checkpoint"):
                torch.save({"model": model.state_dict(), "step": number}, path)
            recorder.checkpoint_saved(step=number, bytes=path.stat().st_size)
        if number % MEETING_STEPS == 0:
            stop = torch.tensor(int(own_faults.get(fault_injection.STOP) is not None or number >= options.steps))
            dist.broadcast(stop, 0)
            if stop:
                break


def main() -> None:
    """Parse the command line and train in a process group."""
    die_with_parent()  # torchrun, when killed, leaves its ranks running
    parser = argparse.ArgumentParser(description="A small DDP job on the CPU, watched by Tachograph")
    parser.add_argument("--name", default="demo", help="the run's name (torchrun takes --run for one of its own)")
    parser.add_argument("--folder", type=Path, required=True, help="where control file, checkpoint and pids live")
    parser.add_argument("--steps", type=int, default=1_000_000, help="end after about this many steps")
    parser.add_argument("--checkpoint-steps", type=int, default=200, help="steps between checkpoints")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep in each step")
    with process_group():
        train(parser.parse_args())


if __name__ == "__main__":
    main()
