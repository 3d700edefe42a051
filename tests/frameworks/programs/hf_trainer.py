"""Hugging Face's Trainer on a tiny GPT-2: accumulation, clipping, evaluations, saves; with LoRA, PEFT's adapter."""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from typing import Any

import torch
from doors import open_trainer
from injected import strike
from peft import LoraConfig, get_peft_model
from tiny_models import LENGTH, VOCABULARY, language_model
from torch.utils.data import Dataset
from trainer_truth import Counting, counted
from transformers import Trainer, TrainingArguments, set_seed
from truth import Truth

SAMPLE_SECONDS = 0.002


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Random tokens that take their time, which the truth is told of."""

    def __init__(self, size: int, truth: Truth | None = None) -> None:
        self.truth = truth
        numbers = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, VOCABULARY, (size, LENGTH), generator=numbers)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        with nullcontext() if self.truth is None else self.truth.spending("data"):
            time.sleep(SAMPLE_SECONDS)
            if self.truth is not None:
                strike("data")
            return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--save_every", type=int, default=20)
    parser.add_argument("--evaluate_every", type=int, default=20)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--door", default="")
    options = parser.parse_args()
    truth = Truth()
    set_seed(0)
    model: Any = language_model()
    truth.time_forward(model)
    if options.lora:
        model.eval()  # as one that was loaded
        model = get_peft_model(model, LoraConfig(target_modules=["c_attn"], r=4))
    arguments = TrainingArguments(
        "saved",
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=options.accumulate,
        max_steps=options.steps,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=options.evaluate_every,
        save_steps=options.save_every,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=5,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        seed=0,
    )
    trainer = counted(Trainer, truth)(
        model=model,
        args=arguments,
        train_dataset=Samples(20_000, truth),
        eval_dataset=Samples(64),
        callbacks=[Counting(truth)],
    )
    open_trainer(options.door, trainer)
    trainer.train()
    truth.write(model)


main()
