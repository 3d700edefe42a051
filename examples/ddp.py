"""A minimal DistributedDataParallel loop that records itself.

Run it with an exporter, or without one:

    tachograph exporter &
    torchrun --nproc-per-node 4 examples/ddp.py --steps 500
"""

from __future__ import annotations

import argparse
import io
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import tachograph

FEATURES, BATCH = 64, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-every", type=int, default=50)
    arguments = parser.parse_args()

    # Alone it is a run of one rank; torchrun's variables make it part of a larger one.
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group(
        "gloo", rank=int(os.environ.get("RANK", "0")), world_size=int(os.environ.get("WORLD_SIZE", "1"))
    )
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    inputs = torch.randn(4096, FEATURES)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)

    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parameters = sum(parameter.numel() for parameter in model.parameters())

    # Amounts are of the whole run: each rank counts its share. 6 FLOPs per parameter and sample, forward and backward.
    recorder = tachograph.Recorder(
        run="example", samples_per_step=BATCH * world_size, flops_per_step=6 * parameters * BATCH * world_size
    )
    recorder.watch(model, optimizer)

    done = 0
    while done < arguments.steps:
        sampler.set_epoch(done)
        for features, target in recorder.data(loader):
            with recorder.step() as step:
                with recorder.phase("forward"):
                    loss = torch.nn.functional.mse_loss(model(features), target)
                with recorder.phase("backward"):
                    loss.backward()
                    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                with recorder.phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()
                step.log(loss=loss, grad_norm=norm)
            done += 1
            if done % arguments.checkpoint_every == 0 and rank == 0:
                with recorder.phase("checkpoint"):
                    file = io.BytesIO()  # a real job writes to storage here
                    torch.save(model.module.state_dict(), file)
                recorder.checkpoint_saved(step=done, bytes=file.tell())
            if done == arguments.steps:
                break

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
