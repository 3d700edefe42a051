"""TRL on a tiny GPT-2: supervised fine-tuning, preferences (DPO), or GRPO, which generates in each step."""

from __future__ import annotations

import argparse
from typing import Any

from datasets import Dataset
from tiny_models import VOCABULARY, language_model, tokenizer
from trainer_truth import Counting, counted
from transformers import set_seed
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from truth import Truth

ROWS = 400


def text(row: int, words: int) -> str:
    """Return some words."""
    return " ".join(f"w{(row * 7 + word * 3) % (VOCABULARY - 2)}" for word in range(words))


def rewards(completions: list[str], **_: Any) -> list[float]:
    """Return the length of each completion, in letters."""
    return [float(len(completion)) for completion in completions]


def main() -> None:
    """Train by one method."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", choices=("sft", "dpo", "grpo"), default="sft")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--save_every", type=int, default=10)
    options = parser.parse_args()
    truth = Truth()
    set_seed(0)
    given: dict[str, Any] = {
        "output_dir": "saved",
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": options.steps,
        "save_steps": options.save_every,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "seed": 0,
    }
    rows = range(ROWS)
    if options.method == "sft":
        kind, arguments = SFTTrainer, SFTConfig(**given, max_length=32)
        data = {"text": [text(row, 24) for row in rows]}
    elif options.method == "dpo":
        kind, arguments = DPOTrainer, DPOConfig(**given, max_length=32)
        data = {
            "prompt": [text(row, 8) for row in rows],
            "chosen": [text(row + 1, 12) for row in rows],
            "rejected": [text(row + 2, 12) for row in rows],
        }
    else:
        kind, arguments = GRPOTrainer, GRPOConfig(**given, num_generations=4, max_completion_length=6)
        data = {"prompt": [text(row, 8) for row in rows]}
    more = {"dpo": {"ref_model": language_model()}, "grpo": {"reward_funcs": rewards}}
    model = language_model()
    truth.time_forward(model)
    trainer = counted(kind, truth)(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(data),
        processing_class=tokenizer(),
        callbacks=[Counting(truth)],
        **more.get(options.method, {}),
    )
    trainer.train()
    truth.write(model)


main()
