"""A mixture of experts, one on each rank (`all_to_all`), that records itself; gloo on a CPU, NCCL where there are GPUs.

Run it with an exporter, or without one:

    tachograph exporter &
    torchrun --nproc-per-node 2 examples/experts.py --steps 100
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single_autograd

import tachograph

WIDTH, BATCH = 64, 32


class Mixture(torch.nn.Module):
    """A router that all ranks share, and this rank's expert. Each token goes to its best expert, `capacity` at most."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.experts, self.capacity = experts, BATCH // experts
        self.router = torch.nn.Linear(WIDTH, experts)
        self.expert = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(dim=-1).t().topk(self.capacity)  # each (experts, capacity)
        results = exchange(self.expert(exchange(x[chosen.flatten()])))
        return x.index_add(0, chosen.flatten(), weights.flatten()[:, None] * results)


def exchange(parts: torch.Tensor) -> torch.Tensor:
    """Send the n-th part to rank n, and return what the ranks sent to this one."""
    received: torch.Tensor = all_to_all_single_autograd(parts, None, None, dist.group.WORLD)
    return received


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = Mixture(world_size).to(device)
    with torch.no_grad():
        for parameter in model.expert.parameters():
            parameter.add_(0.01 * rank)  # experts differ
    parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # Whole-run amounts. Parameters do not tell that experts differ: `mesh` says which one this rank has.
    samples = BATCH * world_size
    recorder = tachograph.Recorder(
        run="experts", samples_per_step=samples, flops_per_step=6 * parameters * samples, mesh={"ep": rank}
    )
    recorder.watch(model, optimizer)

    batches = torch.Generator(kind).manual_seed(rank)
    for _ in recorder.data(range(arguments.steps)):
        inputs = torch.randn(BATCH, WIDTH, device=device, generator=batches)
        with recorder.step() as step:
            with recorder.phase("forward"):
                loss = torch.nn.functional.mse_loss(model(inputs), inputs.sin())
            with recorder.phase("backward"):
                loss.backward()
                for parameter in model.router.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= world_size
            with recorder.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            step.log(loss=loss)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
