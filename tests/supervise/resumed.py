"""A training by a framework that goes on where `tachograph.resume_from` says; the first attempt damages what it saved.

`resumed.py FRAMEWORK FOLDER STATE` saves every 10 of 40 steps. In the first attempt, once the supervisor whose journal
is in STATE knows the checkpoint of step 20, that is cut short, and the process killed. Each attempt leaves the step
that it begins from as a line in FOLDER/begun.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import tachograph

FRAMEWORK, FOLDER, STATE = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
CHECKPOINTS = FOLDER / "checkpoints"
STEPS, EVERY, DIES = 40, 10, 25
DEADLINE = 120.0


def begun(step: int) -> None:
    with (FOLDER / "begun").open("a") as file:
        file.write(f"{step}\n")


def maybe_die(step: int) -> None:
    """Damage the checkpoint of step 20 and die, in the first attempt; until then, wait for each to be known."""
    if step not in (DIES - EVERY, DIES) or os.environ["TACHOGRAPH_PLAN_ATTEMPT"] != "0":
        return
    deadline = time.monotonic() + DEADLINE
    while not (STATE / "checkpoints" / f"{step // 10 * 10}.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    if step != DIES:
        return
    (path,) = [each for each in CHECKPOINTS.iterdir() if "20" in each.name]
    largest = max((each for each in (path, *path.rglob("*")) if each.is_file()), key=lambda each: each.stat().st_size)
    os.truncate(largest, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def data(count: int = 4 * STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.full((4,), number / count), torch.full((1,), number / count)) for number in range(count)]


def hugging_face() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from tachograph.integrations.huggingface import TachographCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.inner(x) - labels).square().mean()}

    class Dying(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            begun(state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            maybe_die(state.global_step)

    arguments = TrainingArguments(
        output_dir=str(CHECKPOINTS), max_steps=STEPS, per_device_train_batch_size=4, save_steps=EVERY,
        report_to="none", disable_tqdm=True, logging_steps=1000,
    )  # fmt: skip
    samples = [{"x": x, "labels": y} for x, y in data()]
    trainer = Trainer(Model(), arguments, train_dataset=samples, callbacks=[Dying()])  # type: ignore[arg-type]
    TachographCallback().attach(trainer)
    trainer.train(resume_from_checkpoint=tachograph.resume_from(CHECKPOINTS))


def lightning() -> None:
    import lightning

    from tachograph.integrations.lightning import TachographCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return (self.inner(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

        def on_train_start(self) -> None:
            begun(self.trainer.global_step)

        def on_train_batch_end(self, *_: Any) -> None:
            maybe_die(self.trainer.global_step)

    saves = lightning.pytorch.callbacks.ModelCheckpoint(
        CHECKPOINTS, every_n_train_steps=EVERY, save_top_k=-1, filename="{step}"
    )
    trainer = lightning.Trainer(
        max_steps=STEPS, callbacks=[TachographCallback(), saves], logger=False, enable_progress_bar=False,
        accelerator="cpu", default_root_dir=FOLDER,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(data(), batch_size=4)
    trainer.fit(Module(), loader, ckpt_path=tachograph.resume_from(CHECKPOINTS))


def accelerated() -> None:
    from accelerate import Accelerator

    from tachograph.integrations.accelerate import training

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data(), batch_size=4))
    step = 0
    if path := tachograph.resume_from(CHECKPOINTS):
        accelerator.load_state(path)
        step = int(path.rpartition("-")[2])
    begun(step)
    rest = accelerator.skip_first_batches(loader, step)
    with training(rest, accelerator=accelerator, model=model, optimizer=optimizer) as batches:
        if step:
            batches.recorder.resumed(step)
        for x, y in batches:
            accelerator.backward((model(x) - y).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % EVERY == 0:
                accelerator.save_state(str(CHECKPOINTS / f"checkpoint-{step}"))
                batches.recorder.checkpoint_saved(step, path=CHECKPOINTS / f"checkpoint-{step}")
            maybe_die(step)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"hugging_face": hugging_face, "lightning": lightning, "accelerate": accelerated}[FRAMEWORK]()
