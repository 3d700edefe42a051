"""Loops as public scripts write them, under `tachograph run`: what they print stays, and what is recorded is true.

`make test` takes the language model, which accumulates, evaluates, clips and saves; each other script is a variation.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).with_name("public")
RUN = ("-m", "tachograph", "run")

pytestmark = pytest.mark.torch


def run(forked: Any, folder: Path, script: str, *arguments: str) -> Any:
    """Run a script without and with us, in folders of its own; assert that it prints the same to the last digit."""
    folders = [folder / kind for kind in ("alone", "under")]
    for each in folders:
        each.mkdir(exist_ok=True)
    alone = forked(SCRIPTS / script, *arguments, folder=folders[0])
    name = script.removesuffix(".py")
    done = forked(*RUN, "--name", name, SCRIPTS / script, *arguments, folder=folders[1])
    assert (done.status, done.out) == (alone.status, alone.out), done.errors
    return done


def phase_seconds(done: Any, run: str, phase: str) -> float:
    return done.value("phase_seconds_total", run=run, rank=0, phase=phase) or 0.0


@pytest.mark.slow
def test_batches_are_those_that_are_trained_on(forked: Any, tmp_path: Path) -> None:
    """Neither a validation that is left by `break` nor the ones after each epoch are counted, or tag a step."""
    done = run(forked, tmp_path, "classify.py")
    assert done.value("steps_total", run="classify", rank=0) == 200
    assert done.value("batches_total", run="classify", rank=0) == 200
    assert done.value("tagged_steps_total", run="classify", rank=0, tag="warm-up") == 1
    assert done.value("tagged_steps_total", run="classify", rank=0, tag="eval") is None
    assert phase_seconds(done, "classify", "eval") > 0


@pytest.fixture(scope="module")
def language_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what it saves."""
    return tmp_path_factory.mktemp("language_models")


@pytest.fixture(scope="module")
def language_model(forked: Any, language_models: Path) -> Any:
    """The language model's first 130 steps."""
    return run(forked, language_models, "language_model.py", "130")


def test_a_loop_without_a_loader_shows_all_of_it(language_model: Any) -> None:
    """Evaluations and saves are phases, outside of steps that begin where the last one ended; no time is lost."""
    done = language_model
    assert done.value("steps_total", run="language_model", rank=0) == 130
    assert phase_seconds(done, "language_model", "eval") >= 7 * 0.2
    assert phase_seconds(done, "language_model", "checkpoint") > 0
    assert phase_seconds(done, "language_model", "forward") > 130 * 3 * 0.002
    assert done.value("tagged_steps_total", run="language_model", rank=0, tag="warm-up") == 1
    assert not done.having("tagged_steps_total", run="language_model", rank=0, tag="eval")
    assert not done.having("tagged_steps_total", run="language_model", rank=0, tag="checkpoint")
    assert done.value("checkpoints_total", run="language_model", rank=0) == 6
    assert done.value("checkpoint_step", run="language_model", rank=0) == 120
    step_seconds = done.value("step_seconds_sum", run="language_model") or 0.0
    assert step_seconds > 129 * 4 * 0.002
    assert done.errors.splitlines()[0] == (
        "tachograph run: recorded 130 steps: backward, the optimizer, 130 losses (each the sum of 4 backward passes), "
        "the learning rate, 130 gradient norms, 7 evaluations, 6 checkpoints"
    )


def test_the_loss_is_the_sum_of_the_micro_batches_and_the_norm_is_the_clipped_one(language_model: Any) -> None:
    """A script divides each micro-batch's loss by their number: their sum is what it prints itself."""
    loss, norm = (float(word) for word in language_model.out.splitlines()[-1].split())
    assert language_model.value("loss", run="language_model", rank=0) == pytest.approx(loss, rel=1e-5)
    assert language_model.value("grad_norm", run="language_model", rank=0) == pytest.approx(norm, rel=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("language_model")
def test_a_restored_optimizer_continues_the_count(forked: Any, language_models: Path) -> None:
    """A second start from the checkpoint of step 120 has the numbers from there on, without a word of the script."""
    shutil.copy(language_models / "under/ckpt.pt", language_models / "alone")
    again = run(forked, language_models, "language_model.py", "150")
    assert again.value("resume_step", run="language_model", rank=0) == 120
    assert again.value("step", run="language_model", rank=0) == 150
    assert again.value("steps_total", run="language_model", rank=0) == 30


@pytest.mark.slow
def test_the_loss_is_that_of_the_optimizer_that_makes_the_steps(forked: Any, tmp_path: Path) -> None:
    """What the discriminator's backward was called on is summed; the generator's loss is not its."""
    done = run(forked, tmp_path, "gan.py")
    assert done.value("steps_total", run="gan", rank=0) == 60
    assert done.value("loss", run="gan", rank=0) == pytest.approx(float(done.out.splitlines()[-1]), abs=1e-5)
    assert "more than one optimizer" in done.errors


def test_a_crash_before_the_first_batch_is_a_run_that_failed(scraped: Any, tmp_path: Path) -> None:
    """The record begins with the script, also of one that has put its own hook for exceptions over ours."""
    script = tmp_path / "early.py"
    script.write_text("import sys\nsys.excepthook = lambda *_: print('theirs')\nraise FileNotFoundError('no data')\n")
    done = scraped.run(*RUN, "--name", "early", script)
    assert (done.status, done.out) == (1, "theirs\n")
    assert done.value("failures_total", run="early", rank=0, category="configuration") == 1


def test_the_limit_of_a_hang_can_be_given(scraped: Any, tmp_path: Path) -> None:
    """By an option, or by the environment, for a script that nobody edits."""
    script = tmp_path / "waits.py"
    script.write_text("import time\ntime.sleep(2)\n")
    done = scraped.run(*RUN, "--name", "option", "--hang-seconds", "900", script)
    assert set(done.having("threshold", run="option").values()) == {900}
    done = scraped.run(*RUN, "--name", "variable", script, TACHOGRAPH_HANG_SECONDS="800")
    assert set(done.having("threshold", run="variable").values()) == {800}


@pytest.mark.slow
def test_a_script_that_launches_its_ranks_itself_is_told_which_are_not_recorded(scraped: Any) -> None:
    """Its rank and world size are known once it has joined the others, which it has started without us."""
    done = scraped.run(*RUN, "--name", "launches", SCRIPTS / "launches.py")
    assert done.status == 0, done.errors
    assert done.value("steps_total", run="launches", rank=1) == 20
    assert "tachograph run: recorded" not in done.errors  # rank 0 would say it
    done = scraped.run(*RUN, "--name", "launched", SCRIPTS / "launches.py", "0")
    assert done.value("steps_total", run="launched", rank=0) == 20
    assert "not seen: 1 of 2 ranks, unless each was started with tachograph run" in done.errors


@pytest.mark.slow
def test_a_process_that_only_starts_others_is_no_rank_that_hangs(scraped: Any, tmp_path: Path) -> None:
    """Its record ends before the others begin."""
    script = tmp_path / "spawns.py"
    script.write_text(
        "import time, torch\n"
        "def train(rank):\n    time.sleep(2)\n"
        "if __name__ == '__main__':\n    torch.multiprocessing.spawn(train, nprocs=1)\n"
    )
    done = scraped.run(*RUN, "--name", "spawns", script)
    assert done.status == 0, done.errors
    assert {
        dict(labels)["state"]
        for (name, labels) in done.series
        if name == "tachograph_rank_state" and ("run", "spawns") in labels
    } == {"running", "finished"}


@pytest.mark.slow
def test_dynamo_sees_nothing_of_us(forked: Any, tmp_path: Path) -> None:
    """A compiled optimizer step has no more graph breaks than without us; its steps are counted, recompilations tag."""
    done = run(forked, tmp_path, "compiled.py")
    assert done.out.endswith(" graph breaks\n")
    assert done.value("steps_total", run="compiled", rank=0) == 40
    assert done.value("tagged_steps_total", run="compiled", rank=0, tag="compile") == 1
    assert done.value("loss", run="compiled", rank=0) == pytest.approx(float(done.out.splitlines()[-2]), rel=1e-5)
    assert "could not" not in done.errors


@pytest.mark.slow
def test_distributed_saves_are_checkpoints(forked: Any, tmp_path: Path) -> None:
    """One is saved when its call returns, one when its upload is complete; one that raises has failed."""
    done = run(forked, tmp_path, "distributed_saves.py")
    assert done.value("checkpoints_total", run="distributed_saves", rank=0) == 2
    assert done.value("checkpoint_step", run="distributed_saves", rank=0) == 16
    assert done.value("checkpoint_failures_total", run="distributed_saves", rank=0) == 1


@pytest.mark.slow
def test_the_save_at_the_end_is_reported(scraped: Any, tmp_path: Path) -> None:
    """No step follows it: the end of the script reports it."""
    script = tmp_path / "last.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.ones(2)).sum().backward()\noptimizer.step()\ntorch.save(model.state_dict(), 'last.pt')\n"
    )
    done = scraped.run(*RUN, "--name", "last", script, folder=tmp_path)
    assert done.status == 0, done.errors
    assert done.value("checkpoints_total", run="last", rank=0) == 1


@pytest.mark.slow
def test_a_framework_is_seen_as_its_parts(forked: Any, tmp_path: Path) -> None:
    """Under Lightning a step is two batches, and its validations are neither batches nor tags of steps."""
    done = run(forked, tmp_path, "lightning_fit.py")
    assert done.value("steps_total", run="lightning_fit", rank=0) == 60
    assert done.value("batches_total", run="lightning_fit", rank=0) == 120
    assert phase_seconds(done, "lightning_fit", "eval") > 0
    assert not done.having("tagged_steps_total", run="lightning_fit", rank=0, tag="eval")
