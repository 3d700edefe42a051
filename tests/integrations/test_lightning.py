"""The Lightning callback: what it shows, what it leaves alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("lightning_script.py")
BATCHES, SLEEP = 60, 0.004

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def done(forked: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return forked(SCRIPT, tmp_path_factory.mktemp("trainer"))


def test_training_is_unchanged_and_its_exception_goes_through(done: Any) -> None:
    """The weights are the same to the bit, the user's profiler reports, and an exception is the script's own."""
    assert "unchanged True" in done.out, done.errors
    assert "FIT Profiler Report" in done.out + done.errors
    assert done.status == 1
    assert "ValueError: mine" in done.errors
    assert done.value("steps_total", run="fails", rank=0) == 9
    assert done.value("failures_total", run="fails", rank=0, category="software") == 1


def test_phases_are_the_trainers_own_actions(done: Any) -> None:
    """Steps are the optimizer's, not the batches; data is at least what the loader slept; the rest has its phase."""
    steps = BATCHES // 4
    assert done.value("steps_total", run="automatic", rank=0) == steps
    assert done.value("step", run="automatic", rank=0) == steps
    assert done.value("batches_total", run="automatic", rank=0) == BATCHES
    seconds = {
        phase: done.value("phase_seconds_total", run="automatic", rank=0, phase=phase) or 0.0
        for phase in ("data", "copy", "forward", "backward", "optimizer", "eval", "checkpoint")
    }
    assert seconds["data"] > BATCHES * SLEEP
    assert seconds["eval"] > 2 * SLEEP
    assert {phase for phase, value in seconds.items() if value <= 0} == set()


def test_checkpoints_are_reported_once_saved(done: Any) -> None:
    """Each save is one checkpoint, at the optimizer's step."""
    assert done.value("checkpoints_total", run="automatic", rank=0) == 1
    assert done.value("checkpoint_step", run="automatic", rank=0) == BATCHES // 4
    assert done.value("checkpoint_failures_total", run="automatic", rank=0) == 0


def test_manual_optimization_makes_each_batch_a_step(done: Any) -> None:
    """Without automatic optimization the callback counts batches, however often optimizers step in one."""
    assert done.value("steps_total", run="manual", rank=0) == BATCHES
    assert done.value("step", run="manual", rank=0) == BATCHES
    assert done.value("checkpoint_step", run="manual", rank=0) == BATCHES
    for phase in ("forward", "backward", "optimizer"):
        assert (done.value("phase_seconds_total", run="manual", rank=0, phase=phase) or 0.0) > 0


def test_a_resumed_training_goes_on_counting(done: Any) -> None:
    """The first step is the checkpoint's, and this attempt counts its own."""
    assert done.value("step", run="resumed", rank=0) == 2 * (BATCHES // 4)
    assert done.value("steps_total", run="resumed", rank=0) == BATCHES // 4


def test_two_trainings_in_one_process_are_counted_each_for_itself(done: Any) -> None:
    """With one callback: the second begins anew, and none of its steps was done before."""
    assert done.value("restarts_total", run="sweep", rank=0) == 1
    assert done.value("steps_total", run="sweep", rank=0) == BATCHES
    assert done.value("lost_seconds_total", run="sweep", cause="rework") == 0


def test_a_recorder_of_the_callers_stays_open(done: Any) -> None:
    """A recorder that was given is not closed with the training; it knows at which step that was to end."""
    assert done.value("steps_total", run="given", rank=0) == 2 * BATCHES
    assert done.value("total_steps", run="given", rank=0) == 2 * BATCHES
    assert done.value("val_loss", run="given", rank=0) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocked", "said"),
    [
        ("'lightning', 'pytorch_lightning'", "TachographCallback needs Lightning: pip install lightning"),
        ("'lightning',", "pytorch_lightning"),
        ("'pytorch_lightning',", "lightning"),
    ],
)
def test_either_lightning_will_do(blocked: str, said: str) -> None:
    """The callback is one of the Lightning that is there; without any it says what is missing."""
    code = (
        f"import sys\nfor name in ({blocked}): sys.modules[name] = None\n"
        "from tachograph.integrations.lightning import TachographCallback\n"
        "try: print(TachographCallback().__class__.__mro__[1].__module__.partition('.')[0])\n"
        "except ImportError as error: print(error)"
    )
    words = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == said
