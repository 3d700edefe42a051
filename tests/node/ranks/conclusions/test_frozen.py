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
    shown = ("frozen_seconds", "0", "", "", phase, "1", "data.py:88 load_shard", "")
    assert node.told("frozen_seconds") == {shown: seconds + 1}
    node.says(0, phase)
    assert not node.told("frozen_seconds")


def test_the_longest_eight_are_shown(node: Any) -> None:
    """More have a common cause."""
    for rank in range(10):
        node.says(rank, "data")
        node.turn(1)
    node.turn(26)
    assert {key[1] for key in node.told("frozen_seconds")} == {str(rank) for rank in range(8)}
