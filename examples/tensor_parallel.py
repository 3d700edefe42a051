"""A model split over its ranks by tensor parallelism that records itself; gloo on a CPU, NCCL where there are GPUs.

Run it with an exporter, or without one:

    tachograph exporter &
    torchrun --nproc-per-node 2 examples/tensor_parallel.py --steps 100
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tachograph

WIDTH, LAYERS, BATCH = 64, 2, 32


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
    mesh = init_device_mesh(kind, (dist.get_world_size(),), mesh_dim_names=("tp",))

    torch.manual_seed(0)  # every rank of a tensor-parallel group sees the same batches
    model = torch.nn.Sequential(*(Layer() for _ in range(LAYERS))).to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    for layer in model:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # Whole-run amounts. `watch` finds the mesh, and measures where PyTorch waits for the other ranks.
    recorder = tachograph.Recorder(run="tensor", samples_per_step=BATCH, flops_per_step=6 * parameters * BATCH)
    recorder.watch(model, optimizer)

    for _ in recorder.data(range(arguments.steps)):
        inputs = torch.randn(BATCH, WIDTH, device=device)
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
