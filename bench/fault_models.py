"""The small model of the fault bench, and how four ranks train it under each parallelism.

What a GPU would compute is slept: forward in the model's forward, backward when the gradient of the hidden layer is
there, which is before the last bucket of gradients is ready, as a GPU's kernels would be; the optimizer in its step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tachograph_lab.demo import fault_injection

CLASSES, WIDTH = 16, 32

Train = Callable[[Tensor, Tensor], Tensor | None]
"""Forward and backward of inputs (batch, width) and labels (batch); the loss, where this rank has it."""


class Model(nn.Module):  # type: ignore[misc]  # torch is not checked
    """Two layers; a stage of a pipeline is such a model, too. Its seconds are of one forward and one backward."""

    def __init__(self, outputs: int = CLASSES) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, outputs)
        self.forward_seconds = self.backward_seconds = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits (batch, classes), or what the next stage takes."""
        time.sleep(self.forward_seconds)
        hidden = self.hidden(inputs)
        if hidden.requires_grad:
            fault_injection.slow_backward(hidden, self.backward_seconds)
        outputs: Tensor = self.second(hidden)
        return outputs

    def hidden(self, inputs: Tensor) -> Tensor:
        """Return the activations of the hidden layer."""
        return torch.tanh(self.first(inputs))


class Experts(Model):
    """Each rank has an expert of its own between the layers, which takes a part of every rank's batch."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(WIDTH, WIDTH)

    def hidden(self, inputs: Tensor) -> Tensor:
        """Send each part to its expert, and take the results back."""
        return exchanged(torch.tanh(self.expert(exchanged(super().hidden(inputs)))))


def exchanged(parts: Tensor) -> Tensor:
    """Return the part that each rank has for this one."""
    mine: Tensor = all_to_all_single_autograd(parts, None, None, dist.group.WORLD)
    return mine


class SleepingSGD(torch.optim.SGD):  # type: ignore[misc]
    """SGD whose step takes as long as it is told to."""

    seconds = 0.0

    def step(self, closure: Any = None) -> Any:
        """Sleep, then step."""
        time.sleep(self.seconds)
        return super().step(closure)


def sharded(model: Model, mesh: Any = None) -> nn.Module:
    """Shard each layer, and what is left of the model."""
    for part in (model.first, model.second):
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def split(model: Model, mesh: Any) -> Model:
    """Split the first layer by columns, the second one by rows."""
    parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    return model


def whole(model: nn.Module, after: Callable[[], None] = lambda: None) -> Train:
    """Train all of the model on this rank's batch."""

    def train(inputs: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        after()
        return loss

    return train


def experts(model: Experts) -> Train:
    """Train the layers that all ranks share by an all-reduce of each gradient."""

    def reduce() -> None:
        for part in (model.first, model.second):
            for parameter in part.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    return whole(model, reduce)


def pipeline(model: Model, rank: int, ranks: int) -> Train:
    """Train one stage by the schedule 1F1B, which takes as many micro-batches as stages or more."""
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, ranks, loss_fn=functional.cross_entropy)

    def train(inputs: Tensor, labels: Tensor) -> Tensor | None:
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(inputs)
        elif rank == ranks - 1:
            schedule.step(target=labels, losses=losses)
        else:
            schedule.step()
        return torch.stack([loss.detach() for loss in losses]).mean() if losses else None

    return train


def build(parallelism: str, rank: int) -> tuple[Model, nn.Module, Train]:
    """Return the model, what its loop watches, and how a batch is trained; the process group exists."""
    torch.manual_seed(0)
    ranks = dist.get_world_size()
    if parallelism == "pipeline":
        stage = Model(WIDTH if rank < ranks - 1 else CLASSES)
        return stage, stage, pipeline(stage, rank, ranks)
    if parallelism == "experts":
        mixture = Experts()
        return mixture, mixture, experts(mixture)
    model = Model()
    if parallelism == "tensor":
        split(model, init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",)))
        trained: nn.Module = model
    elif parallelism == "fsdp2-tensor":
        mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("dp", "tp"))
        trained = sharded(split(model, mesh["tp"]), mesh["dp"])
    elif parallelism == "hsdp":
        trained = sharded(model, init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard")))
    else:
        trained = sharded(model) if parallelism == "fsdp2" else DistributedDataParallel(model)
    return model, trained, whole(trained)


def forwards(parallelism: str, ranks: int) -> int:
    """Return how many times a step runs the model."""
    return ranks if parallelism == "pipeline" else 1


def replica(parallelism: str, rank: int, ranks: int) -> int:
    """Return the number of the batch that a rank trains: alike in all that share one."""
    return {"tensor": 0, "pipeline": 0, "fsdp2-tensor": rank // (ranks // 2)}.get(parallelism, rank)
