"""TRL's GRPO that records itself, with one line more: a tiny Llama learns to repeat a digit.

Model, tokenizer and task are made here, so nothing is downloaded. It needs TRL (pip install trl) and takes a minute on
a CPU. Run it with an exporter, or without one:

    tachograph exporter &
    torchrun --nproc-per-node 2 examples/grpo/train.py

Each iteration generates completions, rates them, and updates the model four times: phases `generate` and `reward`, and
steps.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig, GRPOTrainer

from tachograph.integrations.huggingface import TachographCallback

WORDS = ["<pad>", "<eos>", "repeat", *"0123456789"]
LENGTH = 16
"""Tokens of a completion, at most."""


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of whole words."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left", model_max_length=64
    )


def model() -> LlamaForCausalLM:
    """Return a Llama of 2 layers that knows nothing yet."""
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), pad_token_id=0, bos_token_id=1, eos_token_id=1, **size))


def tasks(count: int) -> Dataset:
    """Return prompts with the digit to repeat."""
    digits = [str(random.Random(number).randrange(10)) for number in range(count)]
    return Dataset.from_dict({"prompt": [f"repeat {digit}" for digit in digits], "digit": digits})


def repeats(completions: list[str], digit: list[str], **_: object) -> list[float]:
    """Return the reward of each completion: the share of it that is the digit."""
    return [each.split().count(right) / LENGTH for each, right in zip(completions, digit, strict=True)]


def trainer(folder: str, steps: int, reward: Callable[..., list[float]] = repeats, batch: int = 64) -> GRPOTrainer:
    """Return the trainer, ready to train."""
    set_seed(0)
    return GRPOTrainer(
        model=model(),
        processing_class=tokenizer(),
        reward_funcs=reward,
        train_dataset=tasks(1000),
        args=GRPOConfig(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=batch,
            num_generations=8,  # completions of a prompt, which are compared with each other
            steps_per_generation=4,
            max_completion_length=LENGTH,
            learning_rate=3e-3,
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
            ddp_find_unused_parameters=False,
            logging_steps=4,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        grpo = trainer(folder, arguments.steps)
        TachographCallback(run="grpo").attach(grpo)
        grpo.train()
    if grpo.accelerator.is_main_process:
        rewards = [each["reward"] for each in grpo.state.log_history if "reward" in each]
        print(f"mean reward {rewards[0]:.2f} at first, {rewards[-1]:.2f} at last")


if __name__ == "__main__":
    main()
