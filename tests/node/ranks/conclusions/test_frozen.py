"""Who is shown as frozen, and from when on."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(("phase", "seconds"), [("data", 23), ("init", 60), ("checkpoint", 60), ("eval", 60)])
def test_who_is_silent_for_too_long_is_shown(node: Any, phase: str, seconds: int) -> None:
    """A minute in a start, a save or an evaluation: tachograph_run_frozen_seconds. With what it said last."""
    node.says(0, phase, where="data.py:88 load_shard")
    node.turn(seconds)
    assert not node.told("frozen_seconds")
    node.turn(1)
    words = f", last seen in phase {phase}; pid 1, at data.py:88 load_shard: what it calls there holds Python's lock, "
    shown = ("frozen_seconds", "0", "", "", phase, "1", "data.py:88 load_shard", "", f"{words}and does not return.")
    assert node.told("frozen_seconds") == {shown: seconds + 1}
    node.says(0, phase)
    assert not node.told("frozen_seconds")


def test_without_a_line_the_state_of_its_process_tells(node: Any) -> None:
    """A page says where to look it up, and what each means."""
    node.says(0, "data")
    node.turn(24)
    ((*_, words),) = node.told("frozen_seconds")
    assert words.startswith(
        ", last seen in phase data; pid 1: the process is stopped, swapped out, or stuck in the kernel"
    )
    assert "(ps -o pid,stat,wchan:32,cmd -p 1): T – continue it; D – " in words


def test_the_longest_eight_are_shown(node: Any) -> None:
    """More have a common cause."""
    for rank in range(10):
        node.says(rank, "data")
        node.turn(1)
    node.turn(26)
    assert {key[1] for key in node.told("frozen_seconds")} == {str(rank) for rank in range(8)}
