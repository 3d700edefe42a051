"""A loop with Accelerate, or plain, that does not divide the loss of micro-batches, and toggles by `train(mode)`."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from truth import Truth

ACCUMULATE, RATE, FORWARD_SECONDS = 4, 1e-3, 0.02


def main() -> None:
    """Train some epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    truth = Truth()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    numbers = torch.randn(640, 64, generator=torch.Generator().manual_seed(1))
    training = DataLoader(TensorDataset(numbers), batch_size=8, shuffle=True)
    validation = DataLoader(TensorDataset(numbers[:160]), batch_size=8)
    backward = torch.Tensor.backward
    if not options.plain:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        model, optimizer, training, validation = accelerator.prepare(model, optimizer, training, validation)
        backward = accelerator.backward

    def epoch(trains: bool) -> None:
        model.train(trains)
        for number, (inputs,) in enumerate(training if trains else validation, 1):
            with torch.set_grad_enabled(trains), truth.spending("forward" if trains else "eval"):
                time.sleep(FORWARD_SECONDS)
                loss = (model(inputs) - inputs[:, :1]).pow(2).mean()
            if not trains:
                continue
            truth.batch()
            truth.micro_batch(loss.detach())
            backward(loss)
            if number % ACCUMULATE == 0:
                optimizer.step()
                optimizer.zero_grad()
                truth.rates.append(RATE)
                truth.step_of_micro_batches()

    for _ in range(options.epochs):
        epoch(trains=True)
        epoch(trains=False)
        truth.evaluations += 1
    truth.write(model)


main()
