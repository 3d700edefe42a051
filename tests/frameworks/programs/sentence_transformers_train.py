"""sentence-transformers' own trainer on static embeddings made here; its loss is a module around the model."""

from __future__ import annotations

import argparse
import time

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import StaticEmbedding
from tiny_models import FORWARD_SECONDS, VOCABULARY, word_tokenizer
from trainer_truth import Counting, counted
from truth import Truth

ROWS = 640


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    truth = Truth()
    model = SentenceTransformer(modules=[StaticEmbedding(word_tokenizer(), embedding_dim=32)], device="cpu")
    truth.time_forward(model)
    model.register_forward_pre_hook(lambda *_: time.sleep(FORWARD_SECONDS / 2))
    texts = [f"w{row % (VOCABULARY - 2)} w{row * 3 % (VOCABULARY - 2)}" for row in range(ROWS)]
    rows = Dataset.from_dict({"anchor": texts, "positive": texts[1:] + texts[:1]})
    arguments = SentenceTransformerTrainingArguments(
        "saved",
        per_device_train_batch_size=8,
        max_steps=options.steps,
        eval_strategy="steps",
        eval_steps=10,
        save_steps=20,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )
    trainer = counted(SentenceTransformerTrainer, truth)(
        model=model,
        args=arguments,
        train_dataset=rows,
        eval_dataset=rows.select(range(64)),
        loss=MultipleNegativesRankingLoss(model),
        callbacks=[Counting(truth)],
    )
    trainer.train()
    truth.write(model)


main()
