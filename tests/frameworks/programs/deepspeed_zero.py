"""DeepSpeed on a CPU: ZeRO of a stage, one optimizer group or two, accumulation, clipping, saves, evaluations."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
from doors import ThreeLines
from injected import strike
from torch import Tensor, nn
from truth import Truth

WIDTH, FORWARD_SECONDS = 64, 0.02


class Samples(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Random inputs, and twice their first number."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        strike("data")
        inputs = torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))
        return inputs, inputs[:1] * 2


class Model(nn.Sequential):
    """Layers that take their time."""

    def __init__(self) -> None:
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH)) for _ in range(3)]
        super().__init__(*layers, nn.Linear(WIDTH, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return one number for each sample."""
        time.sleep(FORWARD_SECONDS)
        if self.training:
            strike("forward")
        outputs: Tensor = super().forward(inputs)
        return outputs


def groups_of(model: nn.Module, number: int) -> list[dict[str, Any]]:
    """Return all parameters in one group, or matrices and the rest in two, as with and without weight decay."""
    if number == 1:
        return [{"params": list(model.parameters())}]
    matrices = [each for each in model.parameters() if each.ndim > 1]
    others = [each for each in model.parameters() if each.ndim <= 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]


def configuration(options: argparse.Namespace) -> dict[str, Any]:
    """Return DeepSpeed's own."""
    zero: dict[str, Any] = {"stage": options.stage}
    if options.sub_group_size:
        zero["sub_group_size"] = options.sub_group_size
    warm_up = {"warmup_min_lr": 0, "warmup_max_lr": [1e-3] * options.groups, "warmup_num_steps": 20}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": options.accumulate,
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "scheduler": {"type": "WarmupLR", "params": warm_up},
        "steps_per_print": 1000,
        "bf16": {"enabled": options.bf16},
    }


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)  # given by DeepSpeed's launcher
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--sub_group_size", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save_every", type=int, default=15)
    parser.add_argument("--evaluate_every", type=int, default=20)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--door", default="")
    options = parser.parse_args()
    truth = Truth()
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(groups_of(model, options.groups), lr=1e-3)
    engine, _, loader, _ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=configuration(options), training_data=Samples()
    )
    truth.time_forward(engine.module)
    door = ThreeLines(options.door, samples_per_step=4 * options.accumulate * engine.world_size)
    door.watch(engine.module)
    batches = iter(door.data(loader))
    while truth.steps < options.steps:
        with door.step() as values:
            losses = []
            for _ in range(options.accumulate):
                inputs, target = next(batches)
                truth.batch()
                kind = torch.bfloat16 if options.bf16 else torch.float32
                loss = ((engine(inputs.to(kind)) - target.to(kind)) ** 2).mean()
                with truth.spending("backward"):
                    engine.backward(loss)
                with truth.spending("optimizer"):
                    engine.step()
                losses.append(loss.item())
            values["loss"] = sum(losses) / len(losses)
        truth.step(values["loss"], engine.get_lr()[0], engine.get_global_grad_norm())
        if truth.steps % options.save_every == 0:
            with truth.spending("checkpoint"):
                engine.save_checkpoint("saved")
            truth.checkpoint()
        if truth.steps % options.evaluate_every == 0:
            with truth.spending("eval"), torch.no_grad():
                engine.eval()
                for _ in range(15):
                    engine(inputs.to(kind))
                engine.train()
            truth.evaluations += 1
    door.close()
    truth.write()
    torch.distributed.destroy_process_group()


main()
