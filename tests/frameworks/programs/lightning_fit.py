"""Lightning's Trainer: accumulation, clipping, a schedule, validation, checkpoints; or a GAN by manual optimization."""

from __future__ import annotations

import argparse
import os
import time
from contextlib import nullcontext
from typing import Any

import lightning
import torch
from doors import lightning_callbacks
from injected import strike
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from truth import Truth

WIDTH, BATCH, SAMPLES, GENERATOR_RATE = 64, 8, 100_000, 1e-3
SAMPLE_SECONDS, FORWARD_SECONDS, OPTIMIZER_SECONDS, VALIDATION_SECONDS = 0.001, 0.04, 0.02, 0.05


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
            if self.truth is not None:
                strike("data")
            return self.inputs[index], self.inputs[index, :1] * 2


class Module(lightning.LightningModule):
    """A small network whose forward takes its time."""

    def __init__(self, truth: Truth, steps: int) -> None:
        super().__init__()
        self.truth, self.steps = truth, steps
        self.network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean squared error."""
        return ((self.network(batch[0]) - batch[1]) ** 2).mean()

    def training_step(self, batch: Any, index: int) -> Any:
        """Return a batch's loss."""
        self.truth.batch()
        with self.truth.spending("forward"):
            time.sleep(FORWARD_SECONDS)
            strike("forward")
            loss = self.loss(batch)
        self.log("train_loss", loss)
        self.truth.micro_batch(loss)
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Take the rate and the norm that this step is made with."""
        gradients = [each.grad.norm() for each in self.parameters() if each.grad is not None]
        self.truth.rates.append(optimizer.param_groups[0]["lr"])
        self.truth.norms.append(torch.stack(gradients).norm().item())

    def takes_its_time(self, *_: Any) -> None:
        """Have the optimizer's own step take longer."""
        with self.truth.spending("optimizer"):
            time.sleep(OPTIMIZER_SECONDS)

    def validation_step(self, batch: Any, index: int) -> None:
        """Log a batch's loss."""
        time.sleep(VALIDATION_SECONDS)
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> Any:
        """Return the optimizer with its schedule, which each step moves."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        optimizer.register_step_pre_hook(self.takes_its_time)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Gan(Module):
    """A generator and a discriminator, stepped in turn on each batch; the loss is that of the first one."""

    def __init__(self, truth: Truth, steps: int) -> None:
        super().__init__(truth, steps)
        self.automatic_optimization = False
        self.generator = nn.Linear(8, WIDTH)

    def training_step(self, batch: Any, index: int) -> None:
        """Step both optimizers."""
        self.truth.batch()
        generator, discriminator = self.optimizers()
        with self.truth.spending("forward"):
            time.sleep(FORWARD_SECONDS)
            made = self.generator(torch.randn(len(batch[0]), 8))
            loss = -self.network(made).mean()
        self.truth.micro_batch(loss)
        generator.zero_grad()
        self.manual_backward(loss)
        generator.step()
        with self.truth.spending("forward"):
            time.sleep(FORWARD_SECONDS)
            loss = self.network(made.detach()).mean() - self.network(batch[0]).mean()
        discriminator.zero_grad()
        self.manual_backward(loss)
        discriminator.step()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Keep the generator's rate."""
        if optimizer.param_groups[0]["lr"] == GENERATOR_RATE:
            self.truth.rates.append(GENERATOR_RATE)

    def configure_optimizers(self) -> Any:
        """Return one optimizer for each."""
        adam = torch.optim.Adam
        return adam(self.generator.parameters(), lr=GENERATOR_RATE), adam(self.network.parameters(), lr=2e-3)


class Counting(Callback):
    """Counts steps, checkpoints and validations; it comes before the callback that saves."""

    def __init__(self, truth: Truth, every: int) -> None:
        self.truth, self.every = truth, every

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the optimizer's step."""
        if (batch_idx + 1) % self.every == 0 or trainer.is_last_batch:
            self.truth.step_of_micro_batches()
            self.truth.rates.append(trainer.optimizers[0].param_groups[0]["lr"])  # which the next one will have

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        """Count a checkpoint."""
        self.truth.checkpoint()

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Note when a validation begins."""
        self.began = time.monotonic()

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Count a validation."""
        self.truth.evaluated(self.began)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save_every", type=int, default=15)
    parser.add_argument("--evaluate_every", type=int, default=20)
    parser.add_argument("--gan", action="store_true")
    parser.add_argument("--door", default="")
    options = parser.parse_args()
    truth = Truth()
    lightning.seed_everything(0)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    number = 2 if options.gan else 1
    accumulation = {} if options.gan else {"accumulate_grad_batches": options.accumulate, "gradient_clip_val": 1.0}
    saving = ModelCheckpoint("saved", every_n_train_steps=options.save_every * number, save_top_k=-1)
    module = (Gan if options.gan else Module)(truth, options.steps)
    trainer = lightning.Trainer(
        max_steps=options.steps * number,  # Lightning counts the steps of each optimizer
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        callbacks=[
            Counting(truth, 1 if options.gan else options.accumulate),
            *lightning_callbacks(options.door),
            saving,
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        val_check_interval=options.evaluate_every * (1 if options.gan else options.accumulate),
        limit_val_batches=8,
        **accumulation,
    )
    training = DataLoader(Samples(SAMPLES, truth), batch_size=BATCH, shuffle=True)
    validation = DataLoader(Samples(64 * ranks), batch_size=BATCH)
    trainer.fit(module, training, validation)
    truth.write(module)


main()
