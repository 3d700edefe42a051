"""`tachograph run` shows the steps of a script that knows nothing of it, and changes nothing about the training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.torch_programs import skip_without_fsdp2

SCRIPT = Path(__file__).with_name("loop_script.py")
RUN = ("-m", "tachograph", "run")
STEPS, MICRO, EVALUATIONS, SLEEP = 60, 120, 3, 0.01
PHASES = ("data", "forward", "backward", "optimizer", "eval")

pytestmark = pytest.mark.torch


def test_a_plain_loop_is_seen_and_unchanged(forked: Any) -> None:
    """Steps, accumulation, waits and evaluation of a plain loop are told apart; the weights are the same to the bit."""
    alone = forked(SCRIPT, "plain")
    done = forked(*RUN, "--run", "seen", "--samples-per-step", "8", SCRIPT, "plain")
    assert (done.status, done.out) == (0, alone.out), done.errors

    assert done.value("steps_total", run="seen", rank=0) == STEPS
    assert done.value("samples_total", run="seen", rank=0) == STEPS * 8
    assert done.value("batches_total", run="seen", rank=0) == MICRO  # though its evaluation is marked by nothing
    seconds = {name: done.value("phase_seconds_total", run="seen", rank=0, phase=name) or 0.0 for name in PHASES}
    assert seconds["data"] > MICRO * SLEEP
    assert all(seconds[name] > 0 for name in PHASES)
    loss = done.value("loss", run="seen", rank=0)
    assert loss is not None
    assert 0 < loss < 100
    assert 0 < (done.value("learning_rate", run="seen", rank=0) or 0) <= 0.01

    said = [line for line in done.errors.splitlines() if line.startswith("tachograph run: ")]
    assert len(said) == 2
    assert said[0].startswith(f"tachograph run: recorded {STEPS} steps: {MICRO} batches and the wait for them")
    assert f"{STEPS} losses (each the sum of 2 backward passes), the learning rate and its schedule" in said[0]
    assert said[1].startswith("tachograph run: not seen: checkpoints (a long one may page RunHung: --hang-seconds)")


def test_under_torchrun_each_rank_is_seen_with_its_collectives(forked: Any) -> None:
    """Two ranks of DDP, which import PyTorch themselves: each has its steps and its all-reduce, rank 0 the summary."""
    done = forked(*RUN, "--name", "ranks", SCRIPT, "ddp", ranks=2)
    assert done.status == 0, done.errors
    for rank in range(2):
        assert done.value("steps_total", run="ranks", rank=rank) == STEPS
        assert done.value("collectives_total", run="ranks", rank=rank, op="all_reduce") == MICRO
    assert done.errors.count("tachograph run: recorded") == 1
    assert f"{MICRO} all-reduces of DistributedDataParallel" in done.errors


@pytest.mark.slow
def test_under_fsdp2_each_rank_shows_its_waits(forked: Any) -> None:
    """Sharded parameters have no hook: the waits at PyTorch's own functions are measured without an edit."""
    skip_without_fsdp2()
    done = forked(*RUN, "--name", "sharded", SCRIPT, "fsdp2", ranks=2)
    assert done.status == 0, done.errors
    for rank in range(2):
        assert done.value("steps_total", run="sharded", rank=rank) == STEPS
        assert (done.value("collective_wait_seconds_total", run="sharded", rank=rank, op="other") or 0) > 0
    assert "waits for collectives" not in done.errors


@pytest.fixture(scope="module")
def failed(forked: Any) -> Any:
    """A script that trains with mixed precision to its last step, and then raises."""
    return forked(*RUN, "--run", "amp", SCRIPT, "amp", "fails")


def test_mixed_precision_shows_the_loss_and_the_steps_it_skips(failed: Any) -> None:
    """A step that the loss scaler skips is one; the loss is the one before scaling."""
    done = failed
    assert done.value("steps_total", run="amp", rank=0) == STEPS
    assert done.value("nonfinite_total", run="amp", rank=0, source="loss") == 1
    loss = done.value("loss", run="amp", rank=0)
    assert loss is not None
    assert loss < 100


def test_a_script_that_records_itself_is_not_recorded_twice(forked: Any) -> None:
    """A script with a recorder of its own keeps the only one."""
    done = forked(*RUN, "--run", "twice", SCRIPT, "own")
    assert done.status == 0, done.errors
    assert done.value("steps_total", run="own", rank=0) == STEPS
    assert not done.having("steps_total", run="twice")
    assert "the script records itself" in done.errors


def test_a_script_that_fails_is_a_rank_that_failed(failed: Any) -> None:
    """The script's own exception ends it as without us, and the rank as failed."""
    done = failed
    assert done.status == 1
    assert "ValueError: mine" in done.errors
    assert os.fspath(Path("tachograph", "attach")) not in done.errors
    assert done.value("failures_total", run="amp", rank=0, category="software") == 1


@pytest.mark.slow  # test_exit_codes.py has it without PyTorch
def test_a_script_that_catches_its_error_and_exits_is_a_rank_that_failed(forked: Any) -> None:
    """As launch scripts do: the exception is printed, and the status is not 0."""
    done = forked(*RUN, "--run", "exits", SCRIPT, "exits")
    assert done.status == 1
    assert "training failed: mine" in done.errors
    assert done.value("failures_total", run="exits", rank=0, category="software") == 1


TWO_TRAININGS = """
import os, sys, torch, urllib.request
for exporter in ("there", "gone"):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    while b'ranks{run="two"' not in urllib.request.urlopen(sys.argv[1]).read():
        pass
    os.environ["TACHOGRAPH_SOCKET"] = os.path.abspath("gone")
"""


def test_what_an_exporter_has_received_is_not_said_to_be_lost(forked: Any, scraped: Any, tmp_path: Path) -> None:
    """Of several trainings the last may be over before the exporter has answered it, as this one's never does."""
    script = tmp_path / "two.py"
    script.write_text(TWO_TRAININGS)
    done = forked(*RUN, "--run", "two", script, scraped.url)
    assert done.value("steps_total", run="two", rank=0) == 5
    assert "recorded 10 steps of 2 trainings: backward" in done.errors
