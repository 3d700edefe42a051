"""Trainings with a Hugging Face Trainer: a callback alone, attached, resuming, with a given recorder, failing."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import tachograph
from tachograph.integrations import huggingface
from tachograph.integrations.huggingface import TachographCallback

FOLDER = sys.argv[1]
TOKENS, STEPS, SLEEP = 16, 30, 0.003


class Slow(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return STEPS * 4

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(SLEEP)
        text = (torch.arange(TOKENS) + index) % 32
        return {"input_ids": text, "labels": text}


class UntilScraped(TrainerCallback):
    """Keeps a short training open at its end: its gauges go with it, and it may be over between two scrapes."""

    def on_train_end(self, *_: Any, **__: Any) -> None:
        time.sleep(1.2)


def trainer(steps: int = STEPS, make: type[Trainer] = Trainer, **more: Any) -> Trainer:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    arguments = TrainingArguments(
        output_dir=FOLDER, max_steps=steps, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        logging_steps=5, eval_strategy="steps", eval_steps=10, save_steps=20, report_to="none", disable_tqdm=True,
        **more,
    )  # fmt: skip
    data = Slow()
    few = [data[index] for index in range(4)]
    return make(LlamaForCausalLM(config), arguments, train_dataset=data, eval_dataset=few)


def weights(of: Trainer) -> str:
    return f"{sum(each.double().sum().item() for each in of.model.parameters()):.9f}"


without = trainer()
without.train()

told = trainer(include_num_input_tokens_seen="all")
told.add_callback(UntilScraped())
told.add_callback(TachographCallback(run="callback"))
told.train()

attached = trainer()
attached.add_callback(UntilScraped())
TachographCallback(run="attached").attach(attached)
attached.train()
print("unchanged", weights(without) == weights(told) == weights(attached))

counts = []
for sizes in ({}, {"tp_size": 8}, {"cp_size": 2, "sp_size": 4}):
    args: Any = SimpleNamespace(
        train_batch_size=32, gradient_accumulation_steps=2, world_size=64, parallelism_config=SimpleNamespace(**sizes)
    )
    counted = huggingface.Tokens(2.0)
    counted.begin(SimpleNamespace(num_input_tokens_seen=0), args, None, object(), static=False)
    counted.count += 1000
    counts.append((huggingface._global_batch(args, None), dict(counted.metrics())["tokens_total"]))
print("of 64 ranks", counts)

resumed = trainer(STEPS + 10)
resumed.add_callback(UntilScraped())
TachographCallback(run="resumed", sequence_length=TOKENS).attach(resumed)
resumed.train(resume_from_checkpoint=f"{FOLDER}/checkpoint-{STEPS}")

twice = TachographCallback(run="twice")
for _ in range(2):  # as in a sweep
    one = trainer(10)
    one.add_callback(UntilScraped())
    twice.attach(one)
    one.train()

given = trainer(10)
recorder = tachograph.Recorder(run="given")
TachographCallback(recorder=recorder).attach(given)
given.train()
time.sleep(1.2)  # the recorder is the script's: its record goes on, and is sent once a second


SAMPLE_TOKENS = 40


class Lists(Trainer):
    """Batches are lists of samples until its own step makes tensors of them, as in TRL's trainers that generate.

    They count the tokens of prompts and samples themselves, whatever `include_num_input_tokens_seen` says.
    """

    def get_train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Slow(), batch_size=2, collate_fn=list)

    def _prepare_inputs(self, inputs: Any) -> Any:
        return self._generate_and_score_completions(inputs) if isinstance(inputs, list) else inputs

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        time.sleep(0.05)
        self.state.num_input_tokens_seen += SAMPLE_TOKENS
        self._calculate_rewards()
        return torch.utils.data.default_collate(inputs)

    def _calculate_rewards(self) -> None:
        time.sleep(0.03)


listed = trainer(4, Lists)
listed.add_callback(UntilScraped())
TachographCallback(run="listed").attach(listed)
listed.train()


class Broken(Trainer):
    calls = 0

    def compute_loss(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls == 10:
            raise ValueError("mine")
        return super().compute_loss(*arguments, **named)


failing = trainer(make=Broken)
TachographCallback(run="fails").attach(failing)
failing.train()
