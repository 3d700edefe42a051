"""Hugging Face: the Trainer, what builds on it (PEFT, TRL, sentence-transformers), and loops with Accelerate."""

from __future__ import annotations

import pytest

from tests.frameworks.figures import LOOP, false_claims
from tests.frameworks.training import Case, Trainings, compare, figures_of

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

TRAINER = (*LOOP, "gradient norm", "data", "evaluation")
SAVED = ("checkpoints", "checkpoint step")
CALLBACK = ("end", "steps", "step", "step time", "learning rate", "forward", "evaluation")
TRL = (*LOOP, "gradient norm", "evaluation")
DPO = tuple(each for each in TRL if each != "forward")  # which is half the reference model's
GRPO = tuple(each for each in TRL if each not in ("loss", "batches", "step time", "forward"))
"""Its losses are all but 0, and a batch of its loader is generated from, then trained on in parts. To generate is no
part of a usual step, nor of forward: test_grpo.py has both by a stopwatch."""
SENTENCES = (*LOOP, "gradient norm", "evaluation")
OFFLINE = {"HF_HUB_OFFLINE": "1"}
CASES = {
    "run": Case("hf_trainer.py", figures=TRAINER, first=SAVED),
    "run-ddp": Case("hf_trainer.py", ranks=2, figures=TRAINER, first=SAVED),
    "run-lora": Case("hf_trainer.py", "--lora", figures=TRAINER, first=SAVED),
    "attached": Case("hf_trainer.py", door="attached", figures=TRAINER, first=SAVED),
    "callback": Case("hf_trainer.py", door="callback", figures=CALLBACK, first=SAVED),
    "sft": Case("trl_train.py", figures=TRL, first=SAVED, environment=OFFLINE),
    "dpo": Case("trl_train.py", "--method dpo", figures=DPO, first=SAVED, environment=OFFLINE),
    "grpo": Case("trl_train.py", "--method grpo", figures=GRPO, first=SAVED, environment=OFFLINE),
    "sentences": Case("sentence_transformers_train.py", figures=SENTENCES, first=SAVED, environment=OFFLINE),
    "accelerate": Case("accelerate_loop.py", figures=(*LOOP, "evaluation")),
    "plain": Case("accelerate_loop.py", "--plain", figures=(*LOOP, "evaluation")),
}


@pytest.mark.parametrize(("name", "rank", "figure"), figures_of(CASES))
def test_what_is_shown_is_what_the_program_counted(trained: Trainings, name: str, rank: int, figure: str) -> None:
    """A5, A11, A12: batches are those trained on, a checkpoint is of many files, a loss is the mean."""
    compare(trained(name), rank, figure)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.door == "run"])
def test_the_summary_claims_what_has_a_value(trained: Trainings, name: str) -> None:
    """The two lines at the end: what has a value was recorded so many times, what has none was not seen."""
    assert false_claims(trained(name)) == []
