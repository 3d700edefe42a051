"""A plain loop with a Recorder of three lines, for hosts that run it in a process of theirs."""

from __future__ import annotations

import time

import torch
from doors import ThreeLines
from torch import nn
from truth import Truth

RATE, FORWARD_SECONDS = 1e-3, 0.03


def train(door: ThreeLines, steps: int, fails_at: int = 0) -> None:
    """Train some steps; raise in one of them, if that is asked for."""
    truth = Truth()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    truth.time_forward(model)
    door.watch(model, optimizer)
    model.register_forward_pre_hook(lambda *_: time.sleep(FORWARD_SECONDS))
    for number in range(1, steps + 1):
        with door.step() as values:
            inputs = torch.randn(8, 64)
            loss = (model(inputs) - inputs[:, :1]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            if number == fails_at:
                truth.write()
                raise ValueError("mine")
            optimizer.step()
            values["loss"] = loss.detach()
        truth.rates.append(RATE)
        truth.step(loss.item())
    truth.write()
