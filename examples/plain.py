"""A plain PyTorch loop that records itself: one process, gradient accumulation, evaluation, checkpoints, resume.

Run it with an exporter, or without one:

    tachograph exporter &
    python examples/plain.py --steps 200
"""

from __future__ import annotations

import argparse
from itertools import chain, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.utils.data import DataLoader, TensorDataset

import tachograph

FEATURES, BATCH, MICRO_BATCHES = 64, 16, 2


def make_loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    inputs = torch.randn(4096, FEATURES)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True).sin()), batch_size=BATCH, shuffle=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=50, help="steps between evaluations and checkpoints")
    parser.add_argument("--folder", type=Path, help="where checkpoints are kept, and found again")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    loader = make_loader()
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)
    parameters = sum(parameter.numel() for parameter in model.parameters())

    samples = BATCH * MICRO_BATCHES
    recorder = tachograph.Recorder(
        run="plain", samples_per_step=samples, flops_per_step=6 * parameters * samples, global_batch=samples
    )
    recorder.watch(model, optimizer, scheduler=scheduler)

    temporary = TemporaryDirectory()  # gone with the process
    file = (arguments.folder or Path(temporary.name)) / "checkpoint.pt"
    done = 0
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists():
        state = torch.load(file)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        done = state["step"]
        recorder.resumed(done)

    endless = chain.from_iterable(repeat(recorder.data(loader)))
    while done < arguments.steps:
        for micro in range(MICRO_BATCHES):
            features, target = next(endless)
            last = micro == MICRO_BATCHES - 1
            with recorder.step(done, accumulating=not last) as step:
                with recorder.phase("forward"):
                    loss = torch.nn.functional.mse_loss(model(features), target)
                with recorder.phase("backward"):
                    (loss / MICRO_BATCHES).backward()
                if last:
                    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    with recorder.phase("optimizer"):
                        optimizer.step()
                        scheduler.step()
                        optimizer.zero_grad()
                    step.log(loss=loss, grad_norm=norm)
        done += 1
        if done % arguments.every == 0:
            with recorder.phase("eval"), torch.no_grad():
                for features, target in islice(loader, 8):
                    torch.nn.functional.mse_loss(model(features), target)
            with recorder.phase("checkpoint"):
                parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
                torch.save({"step": done, **{name: part.state_dict() for name, part in parts.items()}}, file)
            recorder.checkpoint_saved(step=done, bytes=file.stat().st_size, path=file)


if __name__ == "__main__":
    main()
