"""Lightning's Fabric around a plain loop: its loader, backward and clipping, and its checkpoints by way of memory."""

from __future__ import annotations

import argparse
import os
import time

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from truth import Truth

RATE, FORWARD_SECONDS, SAVE_EVERY = 1e-3, 0.03, 10


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    truth = Truth()
    fabric = Fabric(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", "1")))
    fabric.launch()
    fabric.seed_everything(0)
    model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    truth.time_forward(model)
    model.register_forward_pre_hook(lambda *_: time.sleep(FORWARD_SECONDS))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=RATE))
    numbers = torch.randn(8 * options.steps, 64, generator=torch.Generator().manual_seed(1))
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(numbers), batch_size=8, shuffle=True))
    batches = iter(loader)
    for _ in range(options.steps):
        (inputs,) = next(batches)
        truth.batch()
        loss = (model(inputs) - inputs[:, :1]).pow(2).mean()
        optimizer.zero_grad()
        fabric.backward(loss)
        norm = fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        truth.rates.append(RATE)
        truth.step(loss.item(), norm=float(norm))
        if truth.steps % SAVE_EVERY == 0:
            fabric.save("saved.ckpt", {"model": model, "optimizer": optimizer, "step": truth.steps})
            truth.checkpoint()
    truth.write(model)


main()
