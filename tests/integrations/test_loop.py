"""`Loop` keeps steps and phases in order, whatever the order of calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tachograph.client.core.contained import contained
from tachograph.client.recorder import Recorder
from tachograph.integrations.loop import Loop


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TACHOGRAPH_DISABLED"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(run="test", socket=tmp_path / "nobody.sock")
    yield made
    made.close()


def told(recorder: Recorder) -> dict[str, Any]:
    """The metrics of the next frame."""
    recorder.close()  # its thread takes from the same rings
    metrics: Any = recorder._calls.state.frame()["metrics"]
    return dict(metrics)


def test_a_step_without_loss_or_with_zero(recorder: Recorder) -> None:
    """No loss is no sample; a loss of 0 is one."""
    loop = Loop(recorder)
    loop.begin()
    loop.end()
    assert "loss" not in told(recorder)
    loop.begin()
    loop.add_loss(0.0)
    loop.end()
    assert told(recorder)["loss"] == 0.0
    assert told(recorder)["steps_total"] == 2


def test_the_loss_of_a_step_is_the_sum_of_its_micro_batches(recorder: Recorder) -> None:
    """Micro-batches make one step, and their shares of the loss add up; the next step begins from nothing."""
    loop = Loop(recorder)
    for accumulating in (True, True, False):
        loop.begin(7)
        loop.add_loss(3.0, 1 / 3)
        if accumulating:
            loop.end_accumulating()
        else:
            loop.end()
    metrics = told(recorder)
    assert (metrics["steps_total"], metrics["loss"]) == (1, 3.0)
    loop.begin()
    loop.add_loss(float("nan"))
    loop.end()
    assert told(recorder)["loss"] == "NaN"
    assert told(recorder)["nonfinite_total"]["loss"] == 1


def test_a_loss_that_is_no_plain_tensor_is_not_added_up(recorder: Recorder) -> None:
    """Adding up a DTensor could start a collective: any class but PyTorch's own tensor is passed over."""

    class Tensor:
        def __add__(self, other: object) -> object:
            raise AssertionError

    loop = Loop(recorder)
    loop.begin()
    loop.add_loss(Tensor())
    loop.add_loss(Tensor())
    loop.add_loss(None)
    loop.end()
    assert "loss" not in told(recorder)


def test_a_step_begun_again_or_abandoned_is_not_counted(recorder: Recorder) -> None:
    """Only what ends is a step; ending what never began is nothing."""
    loop = Loop(recorder)
    loop.end()
    loop.end_accumulating()
    loop.begin()
    loop.add_loss(5.0)
    loop.begin()
    loop.end()
    loop.begin()
    loop.abandon()
    metrics = told(recorder)
    assert metrics["steps_total"] == 1
    assert "loss" not in metrics


def test_phases_left_in_any_order_leave_the_clock_where_it_was(recorder: Recorder) -> None:
    """Leaving an outer phase leaves the inner one; leaving one that is not open, or a step, leaves nothing over."""
    loop = Loop(recorder)
    clock = recorder._calls.state.clock
    loop.begin()
    loop.enter("forward")
    loop.enter("forward")
    loop.enter("data")
    assert loop.in_phase("forward")
    loop.leave("forward")
    assert clock.current.name == "other"
    loop.leave("forward")
    loop.enter("backward")
    loop.end()
    assert (clock.current.name, clock.outer) == ("other", None)
    loop.enter("eval")
    loop.begin()
    assert clock.current.name == "other"
    loop.end()
    assert clock.outer is None


def test_a_checkpoint_that_failed_is_counted(recorder: Recorder) -> None:
    """A phase left with an error is a failure of the phase."""
    loop = Loop(recorder)
    loop.enter("checkpoint")
    loop.leave("checkpoint", OSError("disk full"))
    loop.enter("checkpoint")
    loop.leave("checkpoint")
    assert told(recorder)["checkpoint_failures_total"] == 1


def test_a_fault_of_a_hook_stays_in_it(caplog: pytest.LogCaptureFixture) -> None:
    """A hook that fails returns None and is logged once, however often it fails; an interrupt goes through."""

    @contained
    def hook(error: BaseException) -> None:
        raise error

    for _ in range(3):
        assert hook(AttributeError("moved")) is None
    assert len([record for record in caplog.records if "moved" in record.message]) == 1
    with pytest.raises(KeyboardInterrupt):
        hook(KeyboardInterrupt())


def test_a_recorder_that_does_nothing_takes_the_same_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disabled: a loop calls what it calls, and nothing happens."""
    loop = Loop(Recorder(enabled=False))
    loop.begin(3)
    loop.enter("forward")
    loop.add_loss(1.0)
    loop.end_accumulating()
    loop.begin()
    loop.end(grad_norm=1.0)
    loop.recorder.watch(None, None, scheduler=None, scaler=None)
    loop.recorder.invariant("global_batch", 1, step=0)
    loop.recorder.resumed(1)
    loop.recorder.add_source(loop)
