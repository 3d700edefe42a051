"""The cost of a frame in the sender thread, counted in calls of Python functions."""

from __future__ import annotations

import sys
from types import FrameType

from tachograph.client.hello.identity import discover
from tachograph.client.hello.workload import Workload
from tachograph.client.transport.rank_state import RankState

CALLS_LIMIT = 192
"""Half of what a frame cost at first."""


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
    sys.setprofile(count)
    try:
        state.frame()
    finally:
        sys.setprofile(None)
    assert calls <= CALLS_LIMIT
