"""A process of a loop of several roles, each a world of its own: roles_job.py ROLE RANK WORLD FOLDER.

It knows nothing of Tachograph. Each iteration the actor makes samples and lets the others train on them, before it does
so itself: they wait for each other by files in the folder. A rank with a file `stuck-ROLE-RANK` stays in its forward.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

ACTOR, OTHERS = "actor", ("critic", "reward")
SAMPLES_SECONDS, FORWARD_SECONDS, LOOK_SECONDS = 0.3, 0.1, 0.02
ROLE, RANK, WORLD, FOLDER = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])


class Model(nn.Module):
    """A layer whose forward takes its time, and all time once it is stuck."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        time.sleep(FORWARD_SECONDS)
        while (FOLDER / f"stuck-{ROLE}-{RANK}").exists():
            time.sleep(LOOK_SECONDS)
        output: Tensor = self.layer(x)
        return output


def wait_for(role: str, iteration: int) -> None:
    """Return once a role has done its part of an iteration."""
    while not (FOLDER / f"{role}-{iteration}").exists():
        if os.getppid() == 1:
            sys.exit("nobody is waiting for this any more")
        time.sleep(LOOK_SECONDS)


def main() -> None:
    """Train until ended."""
    torch.manual_seed(0)
    torch.distributed.init_process_group("gloo", f"file://{FOLDER}/{ROLE}.store", rank=RANK, world_size=WORLD)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for iteration in count():
        if ROLE == ACTOR:
            time.sleep(SAMPLES_SECONDS)
            (FOLDER / f"samples-{iteration}").touch()
            for role in OTHERS:
                wait_for(role, iteration)
        else:
            wait_for("samples", iteration)
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if RANK == 0:
            (FOLDER / f"{ROLE}-{iteration}").touch()


main()
