"""The Hugging Face callback, alone and attached: what it shows, what it leaves alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("hf_script.py")
STEPS, SLEEP = 30, 0.003

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def done(forked: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return forked(SCRIPT, tmp_path_factory.mktemp("trainer"))


def seconds(done: Any, run: str, phase: str) -> float:
    return done.value("phase_seconds_total", run=run, rank=0, phase=phase) or 0.0


def test_training_is_unchanged_and_its_exception_goes_through(done: Any) -> None:
    """The weights are the same to the bit with and without; an exception of the model ends the script as its own."""
    assert "unchanged True" in done.out, done.errors
    assert done.status == 1
    assert "ValueError: mine" in done.errors
    assert "TachographCallback" not in done.errors.replace("run=", "")
    assert done.value("failures_total", run="fails", rank=0, category="software") == 1
    assert done.value("steps_total", run="fails", rank=0) == 4  # the tenth micro-batch is the second of the fifth step


@pytest.mark.parametrize("run", ["callback", "attached"])
def test_steps_evaluation_and_checkpoints_need_the_callback_alone(done: Any, run: str) -> None:
    """Optimizer steps, not micro-batches; evaluation and checkpoints as phases; the global batch is shared."""
    assert done.value("steps_total", run=run, rank=0) == STEPS
    assert done.value("samples_total", run=run, rank=0) == STEPS * 4
    assert done.value("checkpoints_total", run=run, rank=0) == 2
    assert done.value("checkpoint_step", run=run, rank=0) == STEPS
    assert done.value("checkpoint_failures_total", run=run, rank=0) == 0
    assert seconds(done, run, "eval") > 0
    assert done.value("val_loss", run=run, rank=0) > 0
    assert seconds(done, run, "checkpoint") > 0
    assert seconds(done, run, "optimizer") > 0
    assert done.having("config_info", run=run, global_batch=4)


def test_data_needs_the_trainer(done: Any) -> None:
    """Attached, each wait for a batch is booked. The callback alone sees phases by the hooks of model and optimizer."""
    assert seconds(done, "attached", "data") > STEPS * 4 * SLEEP
    assert seconds(done, "attached", "forward") > 0
    assert seconds(done, "attached", "backward") > 0
    assert done.value("batches_total", run="attached", rank=0) >= STEPS * 2
    assert seconds(done, "callback", "data") == 0
    assert seconds(done, "callback", "forward") > 0
    assert seconds(done, "callback", "backward") > 0


def test_batches_that_are_lists_are_trained_on(done: Any) -> None:
    """Of trainers that generate within a step, as TRL's: their own count of tokens, and phases of its own."""
    assert done.value("steps_total", run="listed", rank=0) == 4, done.errors
    assert done.value("tokens_total", run="listed", rank=0) == 4 * 2 * 40
    assert "could not record" not in done.errors
    assert seconds(done, "listed", "generate") > 4 * 2 * 0.05
    assert seconds(done, "listed", "reward") > 4 * 2 * 0.03
    assert done.value("phase_seconds_total", run="attached", rank=0, phase="generate") is None


def test_tokens_are_counted_where_they_are_known(done: Any) -> None:
    """By the Trainer where it counts, else by the batches' shape, else as sequences of the length that was said."""
    tokens = STEPS * 4 * 16
    assert done.value("tokens_total", run="callback", rank=0) == tokens
    assert done.value("tokens_total", run="attached", rank=0) == tokens
    assert done.value("tokens_total", run="resumed", rank=0) == 10 * 4 * 16
    assert (done.value("flops_total", run="resumed", rank=0) or 0) > 0
    assert done.having("config_info", run="resumed", flops_convention="causal")
    assert done.value("flops_total", run="attached", rank=0) is None


def test_a_resumed_training_says_so_and_goes_on_counting(done: Any) -> None:
    """The first step is the checkpoint's; this attempt counts its own steps."""
    assert done.value("resume_step", run="resumed", rank=0) == STEPS
    assert done.value("step", run="resumed", rank=0) == STEPS + 10
    assert done.value("total_steps", run="resumed", rank=0) == STEPS + 10
    assert done.value("steps_total", run="resumed", rank=0) == 10


def test_two_trainings_in_one_process_are_counted_each_for_itself(done: Any) -> None:
    """With one callback: the second begins anew, and none of its steps was done before."""
    assert done.value("restarts_total", run="twice", rank=0) == 1
    assert done.value("steps_total", run="twice", rank=0) == 10
    assert done.value("samples_total", run="twice", rank=0) == 10 * 4
    assert done.value("lost_seconds_total", run="twice", cause="rework") == 0


def test_a_recorder_of_the_callers_stays_open(done: Any) -> None:
    """A recorder that was given is not closed with the training: its gauges are there after it."""
    assert done.value("steps_total", run="given", rank=0) == 10
    assert done.value("tokens_total", run="given", rank=0) == 10 * 4 * 16
    loss = done.value("loss", run="given", rank=0)
    assert loss is not None
    assert 0 < loss < 10


def test_without_transformers_it_says_what_is_missing() -> None:
    """The module imports without transformers; using it names what to install."""
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "from tachograph.integrations.huggingface import TachographCallback\n"
        "try: TachographCallback()\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "TachographCallback needs transformers: pip install transformers\n"


def test_ranks_that_share_a_batch_count_it_once(done: Any) -> None:
    """As the Trainer's own get_total_train_batch_size: by tensor, context and sequence parallelism."""
    assert "of 64 ranks [(4096, 1000.0), (512, 125.0), (512, 500.0)]" in done.out, done.errors
