"""What `tachograph run` records of each kind of loop: twins in plain PyTorch of what frameworks do (`kinds.py`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

KINDS = Path(__file__).with_name("kinds.py")
STEPS, SLEEP, RATE = 12, 0.004, 0.015625
GENERATES, REWARDS = 0.5, 0.3

pytestmark = pytest.mark.torch

BATCHES = {
    "guarded": 24, "weighted_terms": 48, "means_by_hand": 48, "two_loaders": 24,
    "divided": 48, "undivided": 48, "weighted": 48, "fetched_first": 48, "out_of_memory": 13, "container": 0,
}  # fmt: skip
"""Batches trained on; else one a step."""

WITHOUT_LOSS = {
    "two_files", "two_files_at_the_top", "through_memory", "two_files_through_memory", "into_memory_alone",
    "safetensors",
}  # fmt: skip

SAVES = WITHOUT_LOSS - {"into_memory_alone"}

EVALUATED = (
    "evaluated_by_train_false", "evaluated_by_nothing", "evaluated_with_flat_copies", "evaluated_by_an_average",
)  # fmt: skip


@pytest.fixture(scope="module")
def told(torch_programs: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What was recorded of each kind."""
    folder = tmp_path_factory.mktemp("kinds")
    out, errors = folder / "out", folder / "errors"
    program = torch_programs.python(
        [KINDS], environment={"PATH": "", "OMP_NUM_THREADS": "1"}, folder=folder, out=out, errors=errors
    )
    assert program.wait() == 0, errors.read_text()
    return json.loads(out.read_text().splitlines()[-1])


LATE = {"twice_and_kept", "second_phase"}
"""Where an optimizer is known for the one that counts with its third update: nobody has the losses of the first two."""

NAMES = [line[4:].split("(")[0] for line in KINDS.read_text().split("@kind\n")[1:]]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_what_was_updated_after_a_backward(told: Any, name: str) -> None:
    """Its steps, batches, loss and learning rate are the loop's own, whoever called what."""
    metrics = told[name]["metrics"]
    assert metrics["steps_total"] == STEPS
    assert metrics["batches_total"] == BATCHES.get(name, STEPS)
    assert metrics["learning_rate"] == RATE
    if name not in WITHOUT_LOSS:
        assert metrics["loss"] == pytest.approx(told[name]["loss"], rel=1e-5)
        losses = STEPS * (1 + name.startswith("twice")) - 2 * (name in LATE)
        assert f"{losses} losses" in told[name]["summary"] or name == "in_chunks"


def test_what_is_fetched_midway_leaves_forward_in_the_step(told: Any) -> None:
    """The step begins with its forward, though its batch came before that of the step before was done."""
    assert told["fetched_after_forward"]["seconds"] > (STEPS - 1) * SLEEP


@pytest.mark.parametrize("name", ["twice", "twice_and_kept"])
def test_another_training_in_one_process_is_a_record_of_its_own(told: Any, name: str) -> None:
    """Its steps begin anew, so that nothing is compared with those of another model; all of both are counted."""
    assert told[name]["metrics"]["steps_total"] == STEPS
    assert f"recorded {2 * STEPS} steps of 2 trainings, " in told[name]["summary"]


@pytest.mark.parametrize(
    "name",
    ["closure", "searching", "container", "in_turn", "two_after_one_backward", "distilled", "fetched_after_forward"],
)
def test_forward_is_where_the_model_runs(told: Any, name: str) -> None:
    """The model's sleep is forward, also inside of an optimizer's step and before another optimizer's backward."""
    calls = {"searching": 3, "in_turn": 2}.get(name, 1)
    assert told[name]["metrics"]["phase_seconds_total"]["forward"] > (STEPS - 1) * calls * SLEEP


@pytest.mark.parametrize("name", EVALUATED)
def test_evaluations_are_seen(told: Any, name: str) -> None:
    """By the model's mode, whoever sets it, or by batches that are not trained on; what they fetch is not counted."""
    assert ", 2 evaluations" in told[name]["summary"]
    assert told[name]["metrics"]["phase_seconds_total"]["eval"] > 2 * 3 * SLEEP


def test_generation_is_told_apart_from_training(told: Any) -> None:
    """Samples and their rewards have phases of their own: neither steps nor goodput's lost seconds hold them."""
    metrics = told["generated"]["metrics"]
    assert metrics["phase_seconds_total"]["generate"] > 4 * GENERATES
    assert metrics["phase_seconds_total"]["reward"] > 3 * REWARDS
    assert metrics["phase_seconds_total"]["forward"] < 3 * REWARDS
    assert told["generated"]["seconds"] < 3 * REWARDS
    assert sum(metrics["lost_seconds_total"].values()) == pytest.approx(
        metrics["lost_seconds_total"]["init"] + metrics["lost_seconds_total"]["data"], abs=0.01
    )


def test_tokens_are_those_that_a_trainer_counts(told: Any) -> None:
    """Of TRL's that generate: this rank's share in this attempt. Of others no token is known."""
    assert told["generated"]["metrics"]["tokens_total"] == -(-STEPS // 4) * 30 / 2
    assert [name for name in told if name != "pickled" and "tokens_total" in told[name]["metrics"]] == ["generated"]


def test_an_evaluation_ends_with_its_loader(told: Any) -> None:
    """Where no model is in evaluation mode that is trained, what follows the loader is something else."""
    assert told["evaluated_by_an_average"]["metrics"]["phase_seconds_total"]["other"] > 2 * 0.5


def test_a_model_in_evaluation_mode_is_not_evaluated_for_that(told: Any) -> None:
    """While its batches are fetched it may be so; the loader is one that is trained on."""
    assert "evaluations (" in told["in_evaluation_mode_until_its_step"]["summary"].partition("not seen")[2]


@pytest.mark.parametrize("name", sorted(SAVES))
def test_a_checkpoint_is_one_however_it_is_written(told: Any, name: str) -> None:
    """All files between two moments of training, from the first byte to the last."""
    metrics = told[name]["metrics"]
    assert metrics["checkpoints_total"] == 2
    assert metrics["checkpoint_step"] == 10
    assert ", 2 checkpoints" in told[name]["summary"]
    if name != "safetensors":
        assert metrics["phase_seconds_total"]["checkpoint"] > 2 * 0.1


def test_a_save_may_be_given_to_another_process(told: Any) -> None:
    """By its name, as `ProcessPoolExecutor.submit(torch.save, …)` does."""
    assert told["pickled"]


def test_what_stays_in_memory_is_no_checkpoint(told: Any) -> None:
    """Nothing is claimed that was not written."""
    assert told["into_memory_alone"]["metrics"]["checkpoints_total"] == 0
    assert "checkpoints (" in told["into_memory_alone"]["summary"].partition("not seen")[2]
