"""A model cut into pipeline stages (1F1B) that records itself; gloo on a CPU, NCCL where there are GPUs.

Run it with an exporter, or without one:

    tachograph exporter &
    torchrun --nproc-per-node 2 examples/pipeline.py --steps 100
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import tachograph

WIDTH, BATCH, MICRO_BATCHES = 64, 32, 4


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
    mesh = init_device_mesh(kind, (world_size,), mesh_dim_names=("pp",))

    torch.manual_seed(0)  # the first stage and the last one draw the same batches
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)
    ).to(device)  # one stage: every rank has such a one
    parameters = sum(parameter.numel() for parameter in model.parameters())
    stage = PipelineStage(model, rank, world_size, device, group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # Whole-run amounts. A stage's parameters do not tell which stage it is: the mesh does.
    recorder = tachograph.Recorder(
        run="pipeline", samples_per_step=BATCH, flops_per_step=6 * parameters * world_size * BATCH, mesh=mesh
    )
    recorder.watch(model, optimizer)

    for _ in recorder.data(range(arguments.steps)):
        inputs = torch.randn(BATCH, WIDTH, device=device)
        with recorder.step() as step:
            losses: list[torch.Tensor] = []
            # A schedule runs forward and backward of its micro-batches in turns: together they are one phase. The time
            # in which a stage waits for its neighbours is no part of it.
            with recorder.phase("backward"):
                if rank == 0:
                    schedule.step(inputs)
                elif rank == world_size - 1:
                    schedule.step(target=inputs.sin(), losses=losses)
                else:
                    schedule.step()
            with recorder.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            if losses:
                step.log(loss=torch.stack([loss.detach() for loss in losses]).mean())

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
