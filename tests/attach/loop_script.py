"""A training script that knows nothing of Tachograph; its arguments say what it does."""

from __future__ import annotations

import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

KINDS = sys.argv[1:]
STEPS, ACCUMULATE, SLEEP = 60, 2, 0.01


class Slow(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that take their time."""

    def __init__(self, size: int) -> None:
        self.inputs = torch.randn(size, 8)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(SLEEP / 4)
        return self.inputs[index], self.inputs[index].sum().unsqueeze(0)


torch.manual_seed(0)
model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
if {"ddp", "fsdp2"} & {*KINDS}:
    alone = {} if "RANK" in os.environ else {"store": torch.distributed.HashStore(), "rank": 0, "world_size": 1}
    torch.distributed.init_process_group("gloo", **alone)
if "ddp" in KINDS:
    model = torch.nn.parallel.DistributedDataParallel(model)
if "fsdp2" in KINDS:
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=STEPS)
scaler = torch.amp.GradScaler("cpu", enabled="amp" in KINDS, init_scale=1024.0)
training = DataLoader(Slow(STEPS * ACCUMULATE * 4), batch_size=4, shuffle=True)
validation = DataLoader(Slow(16), batch_size=4)
if "own" in KINDS:
    import tachograph

    recorder = tachograph.Recorder(run="own")

for micro, (features, target) in enumerate(training, 1):
    loss = torch.nn.functional.mse_loss(model(features), target)
    if "amp" in KINDS and micro in (21, 22):
        loss = loss * float("inf")
    scaler.scale(loss / ACCUMULATE).backward()
    if micro % ACCUMULATE == 0:
        if "own" in KINDS:
            with recorder.step() as step:
                step.log(loss=loss)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad()
    if micro % 40 == 0:
        for unseen, _ in validation:
            with torch.no_grad():
                model(unseen)
if torch.distributed.is_initialized():
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
if "fsdp2" not in KINDS:
    print(f"{sum(parameter.double().sum().item() for parameter in model.parameters()):.9f}")
if "fails" in KINDS:
    raise ValueError("mine")
if "exits" in KINDS:
    try:
        raise ValueError("mine")
    except ValueError as error:
        sys.exit(f"training failed: {error}")
