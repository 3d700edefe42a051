"""Trainings by frameworks, with workers that load their batches; the argument names one, and the output is its weights.

The second one is a folder for checkpoints.
"""

from __future__ import annotations

import contextlib
import io
import sys

import torch
from torch.utils.data import Dataset

KIND, FOLDER = sys.argv[1:]
STEPS, TOKENS = 30, 16


class Samples(Dataset[dict[str, torch.Tensor]]):
    """The same tokens at every start."""

    def __len__(self) -> int:
        return STEPS * 4

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        text = (torch.arange(TOKENS) + index) % 32
        return {"input_ids": text, "labels": text}


def huggingface() -> torch.nn.Module:
    """Accumulate gradients, evaluate and save, as the Trainer does by itself."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    arguments = TrainingArguments(
        output_dir=FOLDER, max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        eval_strategy="steps", eval_steps=10, save_steps=20, report_to="none", disable_tqdm=True, use_cpu=True,
        dataloader_num_workers=1, logging_strategy="no",
    )  # fmt: skip
    data = Samples()
    few = [data[index] for index in range(4)]
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=data, eval_dataset=few)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints how long it took
        trainer.train()
    return trainer.model


def accelerated() -> torch.nn.Module:
    """Accumulate gradients in a loop of the script's own."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader = torch.utils.data.DataLoader(Samples(), batch_size=2, num_workers=1)
    model = torch.nn.Linear(TOKENS, 1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch["input_ids"].float()).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    return model


torch.manual_seed(0)
trained = {"huggingface": huggingface, "accelerate": accelerated}[KIND]()
print(f"{sum(parameter.double().sum().item() for parameter in trained.parameters()):.12f}")
