"""`training` around a loop: Accelerate's, a plain one, one that breaks off, one that fails."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest

from tachograph.integrations.accelerate import training

SCRIPT = Path(__file__).with_name("accelerate_script.py")
BATCHES, SLEEP = 41, 0.01

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def done(forked: Any) -> Any:
    ended = forked(SCRIPT)
    assert ended.status == 0, ended.errors
    return ended


def test_accumulated_batches_are_one_step(done: Any) -> None:
    """Every fourth batch completes a step, and so does the last one, as Accelerate decides."""
    steps = BATCHES // 4 + 1
    assert done.value("steps_total", run="accelerate", rank=0) == steps
    assert done.value("samples_total", run="accelerate", rank=0) == steps * 4
    assert done.value("batches_total", run="accelerate", rank=0) == BATCHES
    for phase in ("forward", "backward", "optimizer"):
        assert done.value("phase_seconds_total", run="accelerate", rank=0, phase=phase) > 0
    assert done.value("phase_seconds_total", run="accelerate", rank=0, phase="data") > BATCHES * SLEEP
    for gauge in ("loss", "grad_norm", "learning_rate"):
        assert done.value(gauge, run="accelerate", rank=0) > 0


def test_a_loop_that_accumulates_by_itself_has_the_steps_of_its_optimizer(done: Any) -> None:
    """The optimizer's own hook tells which batches complete a step; nobody says how many make one."""
    assert done.value("steps_total", run="own-accumulation", rank=0) == BATCHES // 2 + 1
    assert done.value("batches_total", run="own-accumulation", rank=0) == BATCHES


def test_what_was_wrapped_is_put_back(done: Any) -> None:
    """After the `with` the accelerator and the model are as they were, and the length is the loader's."""
    assert done.out.splitlines() == [str(BATCHES), "restored True 0", "mine"]


def test_an_exception_goes_through_and_fails_the_run(done: Any) -> None:
    """The user's own exception leaves the `with`; its step is not counted, and the rank has failed."""
    assert done.value("steps_total", run="broken", rank=0) == 3
    assert done.value("failures_total", run="broken", rank=0, category="software") == 1


def test_a_step_that_break_leaves_counts_if_the_optimizer_stepped(done: Any) -> None:
    """`break` before the optimizer's step leaves no step, after it leaves one; the next epoch goes on."""
    assert done.value("steps_total", run="left", rank=0) == 5 + 3


def test_a_model_can_be_copied_and_saved_inside_the_loop() -> None:
    """The best model so far is a deep copy; it has nothing of ours in it."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with training([1, 2], model=model, optimizer=optimizer, socket="/nowhere") as batches:
        for _ in batches:
            best = copy.deepcopy(model)
            copy.deepcopy(optimizer)
            torch.save(model, io.BytesIO())
            best(torch.ones(1))
            assert batches.recorder.position()[1] == "other", "the copy's forward is nobody's"


@pytest.mark.parametrize("accumulate", [0, None, "2"])
def test_a_wrong_number_of_micro_batches_raises_nothing(accumulate: Any) -> None:
    """Each batch is a step, and the loop goes on."""
    with training([1, 2, 3], accumulate=accumulate, socket="/nowhere") as batches:
        assert list(batches) == [1, 2, 3]
        assert batches.recorder.position()[0] == 3


def test_one_accelerator_in_two_loops_is_put_back() -> None:
    """Loops one inside the other (two models trained in turn) take their wrappers off in turn."""

    class Theirs:
        def backward(self, loss: object) -> None: ...
        def clip_grad_norm_(self) -> None: ...

    accelerator = Theirs()
    with training([], accelerator=accelerator, socket="/nowhere"):
        outer = accelerator.backward
        with training([], accelerator=accelerator, socket="/nowhere"):
            assert accelerator.backward is not outer
        assert accelerator.backward is outer
    assert not vars(accelerator)
