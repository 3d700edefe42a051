"""A Hugging Face Trainer that records itself, with one line more; a tiny Llama made from a configuration.

Run it with an exporter, or without one:

    tachograph exporter &
    python examples/hf_trainer.py --steps 60
"""

from __future__ import annotations

import argparse
from tempfile import TemporaryDirectory

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tachograph.integrations.huggingface import TachographCallback

VOCABULARY, TOKENS = 128, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=20, help="steps between evaluations and checkpoints")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    texts = torch.randint(VOCABULARY, (256, TOKENS))
    dataset = [{"input_ids": text, "labels": text} for text in texts]

    with TemporaryDirectory() as folder:
        trainer = Trainer(
            model=LlamaForCausalLM(config),
            args=TrainingArguments(
                output_dir=folder,
                max_steps=arguments.steps,
                use_cpu=not torch.cuda.is_available(),
                per_device_train_batch_size=4,
                gradient_accumulation_steps=2,
                logging_steps=10,
                eval_strategy="steps",
                eval_steps=arguments.every,
                save_steps=arguments.every,
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=dataset,
            eval_dataset=dataset[:16],
        )
        TachographCallback(run="huggingface", sequence_length=TOKENS).attach(trainer)
        trainer.train()


if __name__ == "__main__":
    main()
