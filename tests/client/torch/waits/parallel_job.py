"""Ranks on gloo train the same small model under each parallelism: recorded, then once more without a recorder.

    WORLD_SIZE=4 parallel_job.py KIND...

Rank 2 sleeps 50 ms of each step, of eight ranks 200 ms, inside its backward pass in the second half of the recorded
steps; on a busy machine three times as long as a step took before. Rank 0 prints one line of JSON for each kind: a
list of what each rank saw.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import all_gather_into_tensor, reduce_scatter_tensor  # bound before anything is watched
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from tachograph.client.recorder import Recorder

try:
    from torch.distributed.tensor import Shard
except ImportError:  # it was private
    from torch.distributed._tensor import Shard

WORLD, SLOW = int(os.environ["WORLD_SIZE"]), 2
BLOCKS = MICRO_BATCHES = 4
WIDTH, SAMPLES = 32, 8
WARM_UP, STEPS = 2, 10
DELAY = 0.05 if WORLD == 4 else 0.2
"""Eight ranks share two cores: one that sleeps leaves them to the others, and all wait for a core as well."""

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
        self.norm = nn.Identity()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.down(torch.relu(Delay.apply(self.up(self.norm(x)))))
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


def futures() -> tuple[nn.Module, Train]:
    """All gradients at once, each waited for by its future instead of its work."""
    model = blocks()

    def reduce() -> None:
        works = [dist.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]
        for work in works:
            work.get_future().wait()

    return model, by_phases(model, reduce)


def sharded(model: nn.Sequential, mesh: Any = None) -> nn.Module:
    from torch.distributed.fsdp import fully_shard  # which an older PyTorch has not

    for block in model:
        fully_shard(block, mesh=mesh)
    whole: nn.Module = fully_shard(model, mesh=mesh)
    return whole


def fsdp2() -> tuple[nn.Module, Train]:
    model = sharded(blocks())
    return model, by_phases(model)


def fsdp1() -> tuple[nn.Module, Train]:
    model = FullyShardedDataParallel(
        blocks(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"), use_orig_params=True
    )
    return model, by_phases(model)


def planned(model: nn.Sequential, mesh: Any, ways: dict[str, Any]) -> nn.Sequential:
    plan = {f"{i}.{name}": way for i in range(BLOCKS) for name, way in ways.items()}
    result = parallelize_module(model, mesh, plan)
    assert isinstance(result, nn.Sequential)
    return result


def split(mesh: Any) -> nn.Sequential:
    return planned(blocks(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def tensor() -> tuple[nn.Module, Train]:
    model = split(init_device_mesh("cpu", (WORLD,)))
    return model, by_phases(model)


def sequence() -> tuple[nn.Module, Train]:
    """Every rank has its own samples between blocks; a block gathers them and scatters what it adds."""
    model = blocks()
    for block in model:
        block.norm = nn.LayerNorm(WIDTH)
    ways = {
        "norm": SequenceParallel(sequence_dim=0, use_local_output=True),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0)),
    }
    model = planned(model, init_device_mesh("cpu", (WORLD,)), ways)
    return model, by_phases(model)


def fsdp2_tensor() -> tuple[nn.Module, Train]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = sharded(split(mesh["tp"]), mesh["dp"])
    return model, by_phases(model)


def hsdp() -> tuple[nn.Module, Train]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = sharded(blocks(), mesh)
    return model, by_phases(model)


def hsdp_tensor() -> tuple[nn.Module, Train]:
    """Of eight ranks."""
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tp"))
    model = sharded(split(mesh["tp"]), mesh["replicate", "shard"])
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


def pipeline(kind: Any, interleaved: bool = False) -> tuple[nn.Module, Train]:
    """One block on each rank; forward and backward of micro-batches take turns, so that all of it is `backward`.

    Interleaved, the ranks have a layer each after all blocks.
    """
    rank = dist.get_rank()
    model = nn.Sequential(blocks()[rank], nn.Linear(WIDTH, WIDTH)) if interleaved else blocks()[rank : rank + 1]
    needed = inspect.signature(PipelineStage).parameters["input_args"].default is inspect.Parameter.empty
    shape = (torch.empty(SAMPLES // MICRO_BATCHES, WIDTH),) if needed else ()  # a later PyTorch finds it out
    stages = [
        PipelineStage(part, i * WORLD + rank, len(model) * WORLD, torch.device("cpu"), *shape)
        for i, part in enumerate(model)
    ]
    schedule = kind(stages if interleaved else stages[0], MICRO_BATCHES, loss_fn=lambda y, _: y.square().mean())

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


def gathered(x: torch.Tensor, group: Any) -> tuple[torch.Tensor, Any]:
    whole = x.new_empty(x.shape[0] * dist.get_world_size(group), *x.shape[1:])
    return whole, all_gather_into_tensor(whole, x, group=group, async_op=True)


def scattered(x: torch.Tensor, group: Any) -> tuple[torch.Tensor, Any]:
    part = x.new_empty(x.shape[0] // dist.get_world_size(group), *x.shape[1:])
    return part, reduce_scatter_tensor(part, x, group=group, async_op=True)


class Column(torch.autograd.Function):
    """Megatron's column-parallel product of a split sequence, whose weight's gradient overlaps with communication."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, weight: torch.Tensor, group: Any) -> torch.Tensor:
        context.save_for_backward(x, weight)
        context.group = group
        whole, handle = gathered(x, group)
        handle.wait()
        return whole @ weight.T

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight = context.saved_tensors
        whole, handle = gathered(x, context.group)
        back = gradient @ weight
        handle.wait()
        part, handle = scattered(back, context.group)
        of_weight = gradient.T @ whole
        handle.wait()
        return part, of_weight, None


class Row(torch.autograd.Function):
    """Megatron's row-parallel product, whose result is scattered along the sequence."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, weight: torch.Tensor, group: Any) -> torch.Tensor:
        context.save_for_backward(x, weight)
        context.group = group
        part, handle = scattered(x @ weight.T, group)
        handle.wait()
        return part

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight = context.saved_tensors
        whole, handle = gathered(gradient.contiguous(), context.group)
        handle.wait()
        return whole @ weight, whole.T @ x, None


class Megatron(nn.Module):
    """A block whose layers are split by hand, between ranks of one group."""

    def __init__(self, block: Any, group: Any) -> None:
        super().__init__()
        ways, rank = dist.get_world_size(group), dist.get_rank(group)
        self.group = group
        self.up = nn.Parameter(block.up.weight.detach().chunk(ways)[rank].clone())
        self.down = nn.Parameter(block.down.weight.detach().chunk(ways, 1)[rank].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up = Delay.apply(Column.apply(x, self.up, self.group))
        added: torch.Tensor = Row.apply(torch.relu(up), self.down, self.group)
        return x + added


def passed(peer: int, give: torch.Tensor | None = None) -> torch.Tensor:
    """Give a tensor to another stage, or take one from it, as Megatron's pipeline does."""
    tensor = torch.empty(SAMPLES, WIDTH) if give is None else give.contiguous()
    for request in dist.batch_isend_irecv([dist.P2POp(dist.irecv if give is None else dist.isend, tensor, peer)]):
        request.wait()
    return tensor


def megatron() -> tuple[nn.Module, Train]:
    """Two stages of two ranks, each with half of the blocks, half of every layer and half of the sequence."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    last, rank, group = mesh["pp"].get_local_rank(), dist.get_rank(), mesh["tp"].get_group()
    model = nn.Sequential(*(Megatron(block, group) for block in blocks()[2 * last : 2 * last + 2]))
    peer = (rank + 2) % WORLD

    def train(recorder: Recorder, x: torch.Tensor) -> float:
        total = torch.zeros(())
        for _ in range(2):
            with recorder.phase("forward"):
                given = passed(peer).requires_grad_() if last else x
                result = model(given)
            if not last:
                with recorder.phase("forward"):
                    passed(peer, result.detach())
                with recorder.phase("backward"):
                    result.backward(passed(peer))
            else:
                with recorder.phase("backward"):
                    loss = result.square().mean()
                    loss.backward()
                    assert given.grad is not None
                    passed(peer, given.grad)
                total += loss.detach()
        with recorder.phase("optimizer"):  # the loss, and the norm of all gradients
            dist.all_reduce(total)
            norm = torch.stack([parameter.grad.square().sum() for parameter in model.parameters()]).sum()
            dist.all_reduce(norm)
        return float(total + norm)

    return model, train


def deepspeed() -> tuple[nn.Module, Train]:
    """ZeRO: hooks on parameters reduce and scatter gradients in the backward pass; the optimizer waits for them."""
    model = blocks()
    flying: list[tuple[nn.Parameter, torch.Tensor, Any]] = []

    def launch(parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        flying.append((parameter, *scattered(parameter.grad.flatten(), None)))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(launch)
    by_two = by_phases(model)

    def train(recorder: Recorder, x: torch.Tensor) -> float:
        loss = by_two(recorder, x)
        with recorder.phase("optimizer"):
            for parameter, part, handle in flying:
                handle.wait()
                whole, again = gathered(part / WORLD, None)
                again.wait()
                parameter.grad = whole.view_as(parameter)
            flying.clear()
        return loss

    return model, train


KINDS: dict[str, Callable[[], tuple[nn.Module, Train]]] = {
    "ddp": ddp,
    "fsdp1": fsdp1,
    "fsdp2": fsdp2,
    "tensor": tensor,
    "sequence": sequence,
    "fsdp2_tensor": fsdp2_tensor,
    "hsdp": hsdp,
    "hsdp_tensor": hsdp_tensor,
    "experts": experts,
    "gpipe": lambda: pipeline(ScheduleGPipe),
    "1f1b": lambda: pipeline(Schedule1F1B),
    "interleaved": lambda: pipeline(ScheduleInterleaved1F1B, interleaved=True),
    "all_reduce": all_reduce,
    "futures": futures,
    "megatron": megatron,
    "deepspeed": deepspeed,
}
OWN_SAMPLES = ("ddp", "fsdp1", "fsdp2", "hsdp", "sequence", "all_reduce", "futures", "deepspeed")
"""What trains every rank on samples of its own."""


def run(kind: str, recorded: bool) -> tuple[list[float], list[torch.Tensor], dict[str, Any]]:
    """Train; return losses, the last gradients, and milliseconds a step: waits and own backward, healthy and not."""
    model, train = KINDS[kind]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recorder = Recorder(run=kind, enabled=recorded)
    recorder.watch(model, optimizer)
    torch.manual_seed(1 + dist.get_rank() if kind in OWN_SAMPLES else 1)
    calls: Any = recorder._calls
    seen: dict[str, Any] = {"wait": [], "backward": []}
    losses, gradients = [], []
    Delay.seconds = 0.0
    for _ in range(2):
        for i in range(WARM_UP + STEPS):
            if i == WARM_UP:
                began = time.perf_counter()
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
        if recorded and dist.get_rank() == SLOW and not Delay.seconds:
            delay = max(DELAY, 3 * (time.perf_counter() - began) / STEPS)
            Delay.seconds, seen["slept"] = delay / 4, 1e3 * delay  # blocks, or micro-batches of one block
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
