"""A small training on two ranks, recorded as the documentation shows each way in; its first argument says which.

All train with AdamW, a schedule and clipped gradients. The loss spikes and becomes NaN at the last step but one; the
model is saved twice, and the second save fails.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

WAY, FOLDER = sys.argv[1], Path(sys.argv[2])
STEPS, SAVE_EVERY, SPIKE, SLEEP, RATE = 80, 40, range(60, 70), 0.04, 0.001


def factor(step: int) -> float:
    """The factor by which the loss of a step is multiplied."""
    return float("nan") if step == STEPS - 2 else 100.0 if step in SPIKE else 1.0


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Samples that take their time."""

    def __len__(self) -> int:
        return 2 * 2 * STEPS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(SLEEP / 2)
        text = (torch.arange(16) + index) % 32
        return {"input_ids": text, "labels": text}


FEW = torch.utils.data.Subset(Texts(), range(4))


class Model(torch.nn.Module):
    """One layer, and its loss multiplied as the step says."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Linear(16, 1)
        self.steps = 0

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.steps += 1
        return self.network(batch["input_ids"] / 32).square().mean() * factor(self.steps - 1)


def loop() -> None:
    """The README's loop; under `tachograph run` the same without a recorder."""
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=STEPS)

    def train(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = model(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if model.module.steps % SAVE_EVERY == 0:
            with suppress(RuntimeError):
                torch.save({"model": model.state_dict()}, FOLDER / f"{model.module.steps}.pt")
        return loss

    (FOLDER / f"{STEPS}.pt").mkdir(exist_ok=True)
    loader = DataLoader(Texts(), batch_size=2, sampler=torch.utils.data.DistributedSampler(Texts()))
    if WAY == "loop":
        import tachograph

        recorder = tachograph.Recorder(run=WAY, tokens_per_step=64, flops_per_token=6 * 17)
        recorder.watch(model, optimizer)
        for batch in recorder.data(loader):
            with recorder.step() as step:
                loss = train(batch)
                step.log(loss=loss)
    else:
        for batch in loader:
            train(batch)
    torch.distributed.destroy_process_group()


def hugging_face() -> None:
    """A Trainer with the callback attached, then one with the callback alone."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from tachograph.integrations.huggingface import TachographCallback

    class Spiking(Trainer):
        def compute_loss(self, *arguments: Any, **named: Any) -> Any:
            loss: Any = super().compute_loss(*arguments, **named)
            return loss * factor(self.state.global_step) if self.model.training else loss

    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    for run in ("huggingface", "callback"):
        arguments = TrainingArguments(
            FOLDER / run, max_steps=STEPS, per_device_train_batch_size=2, logging_steps=1, save_steps=SAVE_EVERY,
            eval_strategy="steps", eval_steps=SAVE_EVERY, report_to="none", disable_tqdm=True, use_cpu=True,
            ddp_backend="gloo",
        )  # fmt: skip
        callback = TachographCallback(run=run, sequence_length=16)
        trainer = Spiking(
            LlamaForCausalLM(config), arguments, train_dataset=Texts(), eval_dataset=FEW, callbacks=[callback]
        )
        if run == "huggingface":
            callback.attach(trainer)
        (FOLDER / run).mkdir(exist_ok=True)
        (FOLDER / run / f"checkpoint-{STEPS}").touch()  # a folder is to be there
        with suppress(OSError):
            trainer.train()


def lightning() -> None:
    """A Trainer with the callback."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from tachograph.integrations.lightning import TachographCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(batch)
            return loss

        def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
            self.log("val_loss", self.model.network(batch["input_ids"] / 32).square().mean())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=RATE)
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=STEPS)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    saving = ModelCheckpoint(
        FOLDER, "{step}/model", every_n_train_steps=SAVE_EVERY, save_top_k=-1, enable_version_counter=False
    )
    callback = TachographCallback(run=WAY, samples_per_step=4)
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, val_check_interval=SAVE_EVERY, logger=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0, callbacks=[callback, saving],
    )  # fmt: skip
    (FOLDER / f"step={STEPS}").touch()  # a folder is to be there
    with suppress(OSError, RuntimeError):
        trainer.fit(Module(), DataLoader(Texts(), batch_size=2), DataLoader(FEW, batch_size=2))


{"huggingface": hugging_face, "lightning": lightning}.get(WAY, loop)()
