"""A Lightning Trainer that records itself, with one callback.

Run it with an exporter, or without one:

    tachograph exporter &
    python examples/lightning_trainer.py --steps 100
"""

from __future__ import annotations

import argparse
from tempfile import TemporaryDirectory

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from tachograph.integrations.lightning import TachographCallback

FEATURES, BATCH, MICRO_BATCHES = 64, 32, 2


class Regression(lightning.LightningModule):
    """A small network that learns a sine."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        features, target = batch
        return torch.nn.functional.mse_loss(self.network(features), target)

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        features, target = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.network(features), target))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()

    lightning.seed_everything(0)
    inputs = torch.randn(4096, FEATURES)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    with TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="auto",
            devices=1,
            max_steps=arguments.steps,
            accumulate_grad_batches=MICRO_BATCHES,
            limit_val_batches=4,
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            callbacks=[
                TachographCallback(run="lightning", samples_per_step=BATCH * MICRO_BATCHES),
                ModelCheckpoint(folder, every_n_train_steps=20),
            ],
        )
        trainer.fit(Regression(), DataLoader(dataset, BATCH, shuffle=True), DataLoader(dataset, BATCH))


if __name__ == "__main__":
    main()
