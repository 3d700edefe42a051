"""How long a wait is remembered before it counts as what the last steps had."""

from __future__ import annotations

import pytest

from tachograph.node.ranks.conclusions.remembered_wait import HOLD_STEPS, RememberedWait


def test_nodes_that_differ_in_their_usual_step_forget_a_slow_one_at_the_same_step() -> None:
    """By the clock, one would still have it for a minute, and its ranks would seem late for as long."""
    here, there = RememberedWait(0), RememberedWait(0)
    for number in range(20):
        for node, usual in ((here, 84.0), (there, 86.0)):
            node.take(85.0 * number, 0.1 * number, usual)
        assert here.least == there.least


@pytest.mark.parametrize("step", [0.5, 85.0])
def test_a_wait_counts_when_it_has_lasted_for_the_last_steps(step: float) -> None:
    """At least twenty seconds of them."""
    wait = RememberedWait(0)
    wait.take(0, 1.0, step)
    steps = max(HOLD_STEPS, round(20 / step))
    for number in range(1, steps + 2):
        assert wait.least == 1.0
        wait.take(number * step, 5.0 + number, step)
    wait.take((steps + 2) * step, 9.0, step)
    assert wait.least > 5.0
