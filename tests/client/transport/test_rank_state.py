"""The cost of a frame in the sender thread, counted in calls of Python functions."""

from __future__ import annotations

import gc
import sys
from types import FrameType

import pytest

from tachograph.client.hello.identity import discover
from tachograph.client.hello.workload import Workload
from tachograph.client.transport.rank_state import RankState

CALLS_LIMIT = 200
"""Of the 635 that a frame cost at first, 192 are left; the rest is room."""


def test_a_frame_with_a_step_takes_few_calls() -> None:
    """Values that do not change between frames are computed once, not for each frame."""
    state = RankState(discover({"run": "test", "rank": 0}, {}), Workload(1, tokens_per_step=1))
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    for _ in range(200):  # until every window is full and every score is known
        with state.step, state.clock.phases["forward"]:
            state.step.log(loss=2.0, grad_norm=0.5, learning_rate=1e-4)
    state.frame()
    with state.step, state.clock.phases["forward"]:
        state.step.log(loss=2.0, grad_norm=0.5, learning_rate=1e-4)
    gc.disable()  # what it finds may be other tests', with calls of their own
    sys.setprofile(count)
    try:
        state.frame()
    finally:
        sys.setprofile(None)
        gc.enable()
    assert calls <= CALLS_LIMIT


def test_operations_are_counted_for_as_long_as_a_run_may_last() -> None:
    """400 TFLOP/s pass 2^53 after 22 s; months of it are still a double, and nothing is refused."""
    state = RankState(discover({"run": "test", "rank": 0}, {}), Workload(1, flops_per_step=2**44))
    for steps in (1, 2**9, 2**9 + 1, 2**30):
        state.step.completed = steps
        metrics = state.frame()["metrics"]
        assert isinstance(metrics, dict)
        assert metrics["flops_total"] == steps * 2**44
    assert type(metrics["flops_total"]) is float, "OTLP has 64 bits for integers"
    assert state.frame()["dropped"] == 0


def test_standing_in_the_middle_of_a_step_outside_every_phase_is_reported() -> None:
    """Not in a phase, nor after the step's optimizer or between steps, where a loop may save or evaluate unmarked."""
    state = RankState(discover({"run": "test", "rank": 0}, {}), Workload(1))
    clock = state.clock

    def stands(seconds: float) -> object:
        clock.since -= seconds
        metrics = state.frame()["metrics"]
        assert isinstance(metrics, dict)
        return metrics.get("step_unmarked_seconds")

    def optimizer() -> None:
        with clock.phases["optimizer"]:
            clock.since -= 1

    with state.step:
        assert stands(10) is None  # a loop that shows no optimizer may save after it, inside its steps
        optimizer()
    assert stands(10) is None  # between steps
    with state.step:
        assert stands(2) is None
        seconds = stands(8)
        assert isinstance(seconds, float)
        assert seconds >= 10
        with clock.phases["forward"]:
            assert stands(10) is None
        assert stands(10) is not None
        optimizer()
        assert stands(10) is None
    state.step.accumulating = True
    with state.step:
        assert stands(10) is not None
    assert stands(10) is None  # between micro-steps


def test_for_how_long_nothing_is_done_in_a_save_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a second on, and in no other phase."""
    state = RankState(discover({"run": "test", "rank": 0}, {}), Workload(1))
    still = [0.0]
    monkeypatch.setattr(state.standstill._activity, "still_seconds", lambda now, since: still[0])
    with state.clock.phases["checkpoint"]:
        assert "still" not in state.frame()
        still[0] = 7.5
        assert state.frame()["still"] == 7.5
    assert "still" not in state.frame()
