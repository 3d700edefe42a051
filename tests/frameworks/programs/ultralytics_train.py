"""ultralytics: YOLO11n untrained, on pictures made here, with its own loader, EMA, accumulation and checkpoints."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from truth import Truth
from ultralytics import YOLO
from ultralytics.engine.trainer import BaseTrainer
from ultralytics.engine.validator import BaseValidator

PICTURES, SIDE = {"train": 64, "val": 16}, 64
FORWARD_SECONDS = 0.03


def pictures() -> Path:
    """Write the data set, and return the path of its description."""
    folder = Path("pictures").resolve()
    numbers = np.random.default_rng(0)
    for part, count in PICTURES.items():
        for kind in ("images", "labels"):
            (folder / part / kind).mkdir(parents=True)
        for number in range(count):
            pixels = numbers.integers(0, 255, (SIDE, SIDE, 3), np.uint8)
            cv2.imwrite(str(folder / part / f"images/{number}.jpg"), pixels)
            (folder / part / f"labels/{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n", encoding="utf-8")
    described = folder / "data.yaml"
    described.write_text(f"path: {folder}\ntrain: train/images\nval: val/images\nnames: {{0: a}}\n", encoding="utf-8")
    return described


def count(model: YOLO, truth: Truth) -> None:
    """Have ultralytics tell the truth by its callbacks, and by the one method that has none."""
    step, stepped = BaseTrainer.optimizer_step, list[bool]()

    def counted_step(self: Any) -> None:
        truth.micro_batch(self.loss.detach())
        truth.rates.append(self.optimizer.param_groups[0]["lr"])
        step(self)
        truth.step_of_micro_batches()
        stepped.append(True)

    def begins(trainer: Any) -> None:
        truth.time_forward(trainer.model)
        trainer.model.register_forward_pre_hook(lambda *_: time.sleep(FORWARD_SECONDS))

    def batch_ends(trainer: Any) -> None:
        if not stepped:
            truth.micro_batch(trainer.loss.detach())
        stepped.clear()

    validate = BaseValidator.__call__

    def counted_validation(*arguments: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return validate(*arguments, **named)
        finally:
            truth.evaluated(began)

    BaseTrainer.optimizer_step, BaseValidator.__call__ = counted_step, counted_validation
    model.add_callback("on_pretrain_routine_end", begins)
    model.add_callback("on_train_batch_start", lambda _: truth.batch())
    model.add_callback("on_train_batch_end", batch_ends)
    model.add_callback("on_model_save", lambda _: truth.checkpoint())


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()

    truth = Truth()
    model = YOLO("yolo11n.yaml")
    count(model, truth)
    model.train(
        data=str(pictures()),
        epochs=options.epochs,
        imgsz=SIDE,
        batch=8,
        nbs=16,
        workers=0,
        device="cpu",
        amp=False,
        seed=0,
        plots=False,
        verbose=False,
        warmup_epochs=0,
        project=str(Path("saved").resolve()),
        exist_ok=True,
    )
    truth.write(model.model)


main()
