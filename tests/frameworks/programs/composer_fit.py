"""Composer's Trainer: micro-batches in the closure of the optimizer's step, clipping, evaluations, checkpoints."""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from composer import Callback, ComposerModel, Trainer
from composer.algorithms import GradientClipping
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from truth import Truth

WIDTH, SAMPLE_SECONDS, FORWARD_SECONDS = 64, 0.002, 0.02


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Random inputs that take their time, which the truth is told of, and twice their first number."""

    def __init__(self, size: int, truth: Truth | None = None) -> None:
        self.truth = truth
        self.inputs = torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        with nullcontext() if self.truth is None else self.truth.spending("data"):
            time.sleep(SAMPLE_SECONDS)
            return self.inputs[index], self.inputs[index, :1] * 2


class Model(ComposerModel):
    """A small network whose forward takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return one number for each sample."""
        time.sleep(FORWARD_SECONDS)
        outputs: Tensor = self.network(batch[0])
        return outputs

    def loss(self, outputs: Tensor, batch: tuple[Tensor, Tensor], *_: Any, **__: Any) -> Tensor:
        """Return the mean squared error."""
        return ((outputs - batch[1]) ** 2).mean()

    def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
        """Return none."""
        return {}

    def update_metric(self, *_: Any) -> None:
        """There is none."""


class Counting(Callback):
    """Counts what Composer announces."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def batch_start(self, state: Any, logger: Any) -> None:
        """Count a batch; all of its micro-batches are one step."""
        self.truth.batch()
        self.truth.rates.append(state.optimizers[0].param_groups[0]["lr"])

    def batch_end(self, state: Any, logger: Any) -> None:
        """Count a step."""
        self.truth.step(state.total_loss_dict["loss/train/total"])

    def eval_start(self, state: Any, logger: Any) -> None:
        """Note when an evaluation begins."""
        self.began = time.monotonic()

    def eval_end(self, state: Any, logger: Any) -> None:
        """Count an evaluation."""
        self.truth.evaluated(self.began)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro_batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    truth = Truth()
    torch.manual_seed(0)
    model = Model()
    truth.time_forward(model)
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(Samples(800, truth), batch_size=8, shuffle=True),
        eval_dataloader=DataLoader(Samples(40), batch_size=4),
        optimizers=torch.optim.AdamW(model.parameters(), lr=1e-3),
        algorithms=[GradientClipping("norm", clipping_threshold=1.0)],
        callbacks=[Counting(truth)],
        max_duration=f"{options.steps}ba",
        eval_interval="20ba",
        save_folder="saved",
        save_interval="15ba",
        device="cpu",
        device_train_microbatch_size=options.micro_batch,
        progress_bar=False,
        seed=0,
    )
    trainer.fit()
    trainer.close()
    names = {path.name for path in Path("saved").glob("*-rank0*")}
    truth.checkpoints = sorted(int(name.split("-ba")[1].split("-")[0]) for name in names if "-ba" in name)
    truth.write(model)


main()
