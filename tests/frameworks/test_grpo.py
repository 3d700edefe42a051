"""TRL's GRPO, as in the example: what is shown is what its trainer logs, and what a stopwatch in the script says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.frameworks.figures import LOOP, Between, Training, false_claims
from tests.frameworks.training import Case, Trainings, compare, figures_of

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

OFFLINE = {"HF_HUB_OFFLINE": "1"}
SEEN = (*(figure for figure in LOOP if figure not in ("batches", "forward")), "gradient norm")
CASES = {
    "run": Case("grpo_example.py", ranks=2, figures=SEEN, environment=OFFLINE),
    "attached": Case("grpo_example.py", ranks=2, door="attached", figures=SEEN, environment=OFFLINE),
    "run-alone": Case("grpo_example.py", figures=SEEN, environment=OFFLINE),
    "attached-alone": Case("grpo_example.py", door="attached", figures=SEEN, environment=OFFLINE),
}
UPDATE = ("forward", "backward", "optimizer")


@pytest.mark.parametrize(("name", "rank", "figure"), figures_of(CASES))
def test_what_is_shown_is_what_the_program_counted(trained: Trainings, name: str, rank: int, figure: str) -> None:
    """Steps, losses, rates and norms, by the trainer's own hooks."""
    compare(trained(name), rank, figure)


@pytest.mark.parametrize("name", ["run", "run-alone"])
def test_the_summary_claims_what_has_a_value(trained: Trainings, name: str) -> None:
    """The two lines at the end: what has a value was recorded so many times, what has none was not seen."""
    assert false_claims(trained(name)) == []


def shown(training: Training, rank: int, *phases: str) -> float:
    """Return the seconds that are shown of some phases."""
    return sum(training.shown("phase_seconds_total", rank, phase=phase) or 0.0 for phase in phases)


def close(seconds: float) -> Any:
    """Return what is within 5 % of a stopwatch."""
    return pytest.approx(seconds, rel=0.05)


def truths(training: Training, name: str) -> list[Mapping[str, Any]]:
    return [training.truth(rank) for rank in CASES[name].recorded_ranks]


@pytest.mark.parametrize("name", CASES)
def test_the_loss_is_the_trainers(trained: Trainings, name: str) -> None:
    """What it logs of each step is the mean of the ranks' losses, of which each rank shows its own."""
    each = truths(trained(name), name)
    logged = [step["loss"] for step in each[0]["log"]]
    means = [sum(losses) / len(losses) for losses in zip(*(one["losses"] for one in each), strict=True)]
    assert means == pytest.approx(logged, abs=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_tokens_are_the_trainers(trained: Trainings, name: str) -> None:
    """Of prompts and samples, over all ranks."""
    training = trained(name)
    counted = [training.shown("tokens_total", rank) or 0.0 for rank in CASES[name].recorded_ranks]
    logged = [step["num_tokens"] for step in training.truth(0)["log"] if "num_tokens" in step]
    assert sum(counted) == pytest.approx(logged[-1], abs=len(counted))
    assert logged[-1] > 10_000


@pytest.mark.parametrize("name", ["run-alone", "attached-alone"])
def test_generate_reward_and_update_are_those_of_a_stopwatch(trained: Trainings, name: str) -> None:
    """Each within 5 %, where nobody waits for others."""
    training = trained(name)
    seconds = training.truth(0)["seconds"]
    figures = {
        "generate": (shown(training, 0, "generate"), seconds["samples"] - seconds["rewards"]),
        "reward": (shown(training, 0, "reward"), seconds["rewards"]),
        "update": (shown(training, 0, *UPDATE), seconds["step"] - seconds["samples"] + seconds["optimizer"]),
    }
    assert {phase: found for phase, (found, _) in figures.items()} == {
        phase: close(right) for phase, (_, right) in figures.items()
    }


@pytest.mark.parametrize("name", ["run", "attached"])
def test_waits_for_the_other_rank_are_apart(trained: Trainings, name: str) -> None:
    """A reward is what its function takes; with the waits, generation and updates are all of the time."""
    training = trained(name)
    for rank, truth in enumerate(truths(training, name)):
        seconds = truth["seconds"]
        assert shown(training, rank, "reward") == close(seconds["reward"])
        everything = shown(training, rank, "generate", "reward", "collective", *UPDATE)
        assert everything == Between(0.95 * (seconds["step"] + seconds["optimizer"]), 1.05 * seconds["whole step"])
        assert shown(training, rank, "generate") < seconds["samples"] - seconds["rewards"]


@pytest.mark.parametrize("name", CASES)
def test_generation_is_no_hang(trained: Trainings, name: str) -> None:
    """Nor any other loss but the start, and the waits within steps."""
    lost = {
        dict(labels)["cause"]: seconds
        for (family, labels), seconds in trained(name).done.series.items()
        if family == "tachograph_train_lost_seconds_total"
    }
    assert {cause for cause, seconds in lost.items() if seconds} <= {"init", "data", "collective"}
    assert lost["hang"] == 0
