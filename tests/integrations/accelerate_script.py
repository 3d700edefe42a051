"""Loops with Accelerate and without, each inside `training`."""

from __future__ import annotations

import time

import torch
from accelerate import Accelerator

from tachograph.integrations.accelerate import training

BATCHES, SLEEP = 41, 0.01


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SLEEP)
        return torch.full((4,), index / 100)


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.utils.data.DataLoader[torch.Tensor]]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01), torch.utils.data.DataLoader(Slow())


accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
model, optimizer, loader = accelerator.prepare(*parts())
backward = accelerator.backward
with training(
    loader, accelerator=accelerator, model=model, optimizer=optimizer, run="accelerate", samples_per_step=4
) as batches:
    print(len(batches))
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    time.sleep(1.2)  # gauges leave once a second
print("restored", accelerator.backward == backward, len(model._forward_hooks))

model, optimizer, loader = parts()
try:
    with training(loader, model=model, optimizer=optimizer, accumulate=2, run="broken") as batches:
        for count, batch in enumerate(batches):
            if count == 7:
                raise ValueError("mine")
            loss = model(batch).square().mean()
            with batches.phase("backward"):
                loss.backward()
            if count % 2:
                optimizer.step()
            batches.log(loss=loss)
except ValueError as error:
    print(error)

model, optimizer, loader = parts()
with training(loader, model=model, optimizer=optimizer, run="left") as batches:
    for count, batch in enumerate(batches):
        model(batch).square().mean().backward()
        if count == 5:
            break  # before its step: it does not count
        optimizer.step()
    for count, _ in enumerate(batches):
        optimizer.step()
        if count == 2:
            break  # after its step: it does

model, optimizer, loader = parts()
with training(loader, model=model, optimizer=optimizer, run="own-accumulation") as batches:
    for count, batch in enumerate(batches):
        model(batch).square().mean().backward()
        if count % 2 or count == len(batches) - 1:
            optimizer.step()
            optimizer.zero_grad()
