"""A model split by tensor parallelism whose parts FSDP2 shards: a 2-D mesh; gloo on a CPU, NCCL where there are GPUs.

Run it with an exporter, or without one:

    tachograph exporter &
    torchrun --nproc-per-node 4 examples/mesh_2d.py --steps 100
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tachograph

WIDTH, LAYERS, BATCH, SPLIT = 64, 2, 32, 2


class Layer(torch.nn.Module):
    """Two linear layers: the first is split by columns, the second by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(x)))
        return x + added


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    replicas = dist.get_world_size() // SPLIT
    mesh = init_device_mesh(kind, (replicas, SPLIT), mesh_dim_names=("fsdp", "tp"))

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Layer() for _ in range(LAYERS))).to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    for layer in model:
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["fsdp"])
    fully_shard(model, mesh=mesh["fsdp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # Whole-run amounts. `watch` finds the mesh, and measures where PyTorch waits for the other ranks.
    samples = BATCH * replicas
    recorder = tachograph.Recorder(run="mesh", samples_per_step=samples, flops_per_step=6 * parameters * samples)
    recorder.watch(model, optimizer)

    batches = torch.Generator(kind).manual_seed(mesh["fsdp"].get_local_rank())  # alike in a tensor-parallel group
    for _ in recorder.data(range(arguments.steps)):
        inputs = torch.randn(BATCH, WIDTH, device=device, generator=batches)
        with recorder.step() as step:
            with recorder.phase("forward"):
                loss = torch.nn.functional.mse_loss(model(inputs), inputs.sin())
            with recorder.phase("backward"):
                loss.backward()
            with recorder.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            step.log(loss=loss)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
