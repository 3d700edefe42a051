"""Four ranks on gloo train the same small model under each parallelism: recorded, then once more without a recorder.

    parallel_job.py KIND...

Rank 2 sleeps 50 ms of each step inside its backward pass in the second half of the recorded steps. Rank 0 prints one
line of JSON for each kind: a list of what each rank saw.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tachograph.client.recorder import Recorder

WORLD, SLOW = 4, 2
BLOCKS = MICRO_BATCHES = 4
WIDTH, SAMPLES = 32, 8
WARM_UP, STEPS, DELAY = 2, 10, 0.05

Train = Callable[[Recorder, torch.Tensor], float]


class Delay(torch.autograd.Function):
    """The identity, whose backward sleeps."""

    seconds = 0.0

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(Delay.seconds)
        return gradient


class Block(nn.Module):
    """Two layers, and the delay between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.down(torch.relu(Delay.apply(self.up(x))))
        return x + added


def blocks() -> nn.Sequential:
    """The same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(BLOCKS)))


def by_phases(model: nn.Module, after: Callable[[], None] = lambda: None) -> Train:
    """Train with phases `forward` and `backward`, and what comes after them."""

    def train(recorder: Recorder, x: torch.Tensor) -> float:
        with recorder.phase("forward"):
            loss = model(x).square().mean()
        with recorder.phase("backward"):
            loss.backward()
            after()
        return float(loss)

    return train


def ddp() -> tuple[nn.Module, Train]:
    model = DistributedDataParallel(blocks())
    return model, by_phases(model)


def all_reduce() -> tuple[nn.Module, Train]:
    model = blocks()

    def reduce() -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    return model, by_phases(model, reduce)


def sharded(model: nn.Sequential, mesh: Any = None) -> nn.Module:
    for block in model:
        fully_shard(block, mesh=mesh)
    whole: nn.Module = fully_shard(model, mesh=mesh)
    return whole


def fsdp2() -> tuple[nn.Module, Train]:
    model = sharded(blocks())
    return model, by_phases(model)


def split(mesh: Any) -> nn.Sequential:
    ways = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(
        blocks(), mesh, {f"{i}.{name}": way for i in range(BLOCKS) for name, way in ways.items()}
    )
    assert isinstance(model, nn.Sequential)
    return model


def tensor() -> tuple[nn.Module, Train]:
    model = split(init_device_mesh("cpu", (WORLD,)))
    return model, by_phases(model)


def fsdp2_tensor() -> tuple[nn.Module, Train]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = sharded(split(mesh["tp"]), mesh["dp"])
    return model, by_phases(model)


def hsdp() -> tuple[nn.Module, Train]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = sharded(blocks(), mesh)
    return model, by_phases(model)


class Experts(nn.Module):
    """A block on what all ranks sent to this one, whose results go back."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return exchanged(self.block(exchanged(x)))


def exchanged(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = all_to_all_single_autograd(x, None, None, dist.group.WORLD)
    return result


def experts() -> tuple[nn.Module, Train]:
    model = nn.Sequential(*map(Experts, blocks()))
    return model, by_phases(model)


def pipeline(kind: Any) -> tuple[nn.Module, Train]:
    """One block on each rank; forward and backward of micro-batches take turns, so that all of it is `backward`."""
    rank = dist.get_rank()
    model = blocks()[rank : rank + 1]
    stage = PipelineStage(model, rank, WORLD, torch.device("cpu"))
    schedule = kind(stage, MICRO_BATCHES, loss_fn=lambda y, _: y.square().mean())

    def train(recorder: Recorder, x: torch.Tensor) -> float:
        losses: list[torch.Tensor] = []
        with recorder.phase("backward"):
            if rank == 0:
                schedule.step(x)
            elif rank == WORLD - 1:
                schedule.step(target=x, losses=losses)
            else:
                schedule.step()
        return float(sum(loss.detach() for loss in losses))

    return model, train


KINDS: dict[str, Callable[[], tuple[nn.Module, Train]]] = {
    "ddp": ddp,
    "fsdp2": fsdp2,
    "tensor": tensor,
    "fsdp2_tensor": fsdp2_tensor,
    "hsdp": hsdp,
    "experts": experts,
    "gpipe": lambda: pipeline(ScheduleGPipe),
    "1f1b": lambda: pipeline(Schedule1F1B),
    "all_reduce": all_reduce,
}


def run(kind: str, recorded: bool) -> tuple[list[float], list[torch.Tensor], dict[str, Any]]:
    """Train; return losses, the last gradients, and milliseconds a step: waits and own backward, healthy and not."""
    model, train = KINDS[kind]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recorder = Recorder(run=kind, enabled=recorded)
    recorder.watch(model, optimizer)
    torch.manual_seed(1 + dist.get_rank() if kind in ("ddp", "fsdp2", "hsdp", "all_reduce") else 1)
    calls: Any = recorder._calls
    seen: dict[str, Any] = {"wait": [], "backward": []}
    losses, gradients = [], []
    for delay in (0.0, DELAY if recorded else 0.0):
        Delay.seconds = delay / 4 if dist.get_rank() == SLOW else 0.0  # blocks, or micro-batches of one block
        for i in range(WARM_UP + STEPS):
            if i == WARM_UP and recorded:
                wait, backward = calls.state.collectives.wait.total(), calls.clock.phases["backward"].seconds
            with recorder.step():
                losses.append(train(recorder, torch.randn(SAMPLES, WIDTH)))
                with recorder.phase("optimizer"):
                    optimizer.step()
            local = [getattr(parameter.grad, "_local_tensor", parameter.grad) for parameter in model.parameters()]
            gradients = [gradient.clone() for gradient in local if gradient is not None]
            optimizer.zero_grad()
        if recorded:
            seen["wait"].append(1e3 * (calls.state.collectives.wait.total() - wait) / STEPS)
            seen["backward"].append(1e3 * (calls.clock.phases["backward"].seconds - backward) / STEPS)
    if recorded:
        seen["operations"] = sorted(calls.state.collectives.metrics()["collective_wait_seconds_total"])
    recorder.close()
    return losses, gradients, seen


def main() -> None:
    # The ranks are forked from one process: importing PyTorch once takes a quarter of the time of four imports.
    children = []
    for rank in range(WORLD):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
            break
        children.append(child)
    else:
        sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
    dist.init_process_group("gloo")
    for kind in sys.argv[1:]:
        losses, gradients, seen = run(kind, recorded=True)
        plain_losses, plain_gradients, _ = run(kind, recorded=False)
        seen["same"] = losses == plain_losses and all(map(torch.equal, gradients, plain_gradients)) and bool(gradients)
        ranks: list[Any] = [None] * WORLD
        dist.all_gather_object(ranks, seen)
        if dist.get_rank() == 0:
            print(json.dumps(ranks), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
