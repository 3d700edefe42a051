"""A model sharded with FSDP2 (`fully_shard`) that records itself; gloo on a CPU, NCCL where there are GPUs.

Run it with an exporter, or without one:

    tachograph exporter &
    torchrun --nproc-per-node 2 examples/fsdp2.py --steps 100
    torchrun --nproc-per-node 4 examples/fsdp2.py --steps 100 --replicas 2    # hybrid: each half has the whole model
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import tachograph

VOCABULARY, WIDTH, LAYERS, TOKENS, BATCH = 128, 64, 2, 32, 8


class Decoder(torch.nn.Module):
    """A small causal transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        logits: torch.Tensor = self.head(hidden)
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--replicas", type=int, default=1)
    arguments = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    world_size = dist.get_world_size()

    torch.manual_seed(0)
    dataset = TensorDataset(torch.randint(VOCABULARY, (1024, TOKENS + 1)))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler, drop_last=True)

    model = Decoder().to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    mesh = None
    if arguments.replicas > 1:
        shape = (arguments.replicas, world_size // arguments.replicas)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # Whole-run amounts. The embedding is looked up, not multiplied: it costs no operations.
    multiplied = parameters - VOCABULARY * WIDTH
    recorder = tachograph.Recorder(
        run="hsdp" if mesh else "fsdp2",
        tokens_per_step=BATCH * TOKENS * world_size,
        flops_per_token=6 * multiplied,
    )
    recorder.watch(model, optimizer)

    done = 0
    while done < arguments.steps:
        sampler.set_epoch(done)
        for (tokens,) in recorder.data(loader):
            with recorder.step() as step:
                with recorder.phase("copy"):
                    batch = tokens.to(device, non_blocking=True)
                with recorder.phase("forward"):
                    logits = model(batch[:, :-1])
                    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
                with recorder.phase("backward"):
                    loss.backward()
                with recorder.phase("optimizer"):
                    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                step.log(loss=loss, grad_norm=norm)
            done += 1
            if done == arguments.steps:
                break

    with recorder.collective("barrier"):
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
