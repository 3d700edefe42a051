"""Trainings with Lightning: automatic optimization, manual optimization, resuming, failing."""

from __future__ import annotations

import sys
import time
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import tachograph
from tachograph.integrations.lightning import TachographCallback

FOLDER = sys.argv[1]
BATCHES, SLEEP = 60, 0.004


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return BATCHES * 2

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SLEEP / 2)
        return torch.full((4,), index / 100)


class Module(lightning.LightningModule):
    def __init__(self, kind: str = "automatic") -> None:
        super().__init__()
        self.kind = kind
        self.automatic_optimization = kind != "manual"
        self.network = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> Any:
        if self.kind == "fails" and index == 9:
            raise ValueError("mine")
        loss = self.network(batch).square().mean()
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            optimizer.step()  # as with two optimizers: Lightning's global_step rises by two
        return loss

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("val_loss", 3 + 0 * self.network(batch).mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=50)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit(
    kind: str,
    run: str | tachograph.Recorder | TachographCallback | None,
    resume: str | None = None,
    epochs: int = 1,
    **more: Any,
) -> Module:
    lightning.seed_everything(0, verbose=False)
    who = {"recorder" if isinstance(run, tachograph.Recorder) else "run": run}
    callbacks: list[Any] = [] if run is None else [TachographCallback(**who)]  # type: ignore[arg-type]
    if isinstance(run, TachographCallback):
        callbacks = [run]
    callbacks.append(
        ModelCheckpoint(FOLDER, filename="last", save_on_train_epoch_end=True, enable_version_counter=False)
    )
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=epochs, callbacks=callbacks, logger=False, limit_val_batches=2,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=FOLDER, **more,
    )  # fmt: skip
    module = Module(kind)
    loader = torch.utils.data.DataLoader(Slow(), batch_size=2, shuffle=True)
    trainer.fit(module, loader, torch.utils.data.DataLoader(Slow(), batch_size=2), ckpt_path=resume)
    return module


def weights(of: Module) -> str:
    return f"{sum(each.double().sum().item() for each in of.parameters()):.9f}"


without = fit("automatic", None, accumulate_grad_batches=4)
recorded = fit("automatic", "automatic", accumulate_grad_batches=4, profiler="simple")
print("unchanged", weights(without) == weights(recorded))
fit("automatic", "resumed", resume=f"{FOLDER}/last.ckpt", epochs=2, accumulate_grad_batches=4)
fit("manual", "manual")
twice = TachographCallback(run="sweep")
fit("automatic", twice)
fit("automatic", twice)
fit("automatic", tachograph.Recorder(run="given"), epochs=2)
time.sleep(1.2)  # the recorder is the script's: its record goes on, and is sent once a second
fit("fails", "fails")
