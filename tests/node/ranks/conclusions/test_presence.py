"""Who is there, and when one of them last made a step."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.node.ranks.frames import Bye


@pytest.fixture
def three(node: Any) -> Any:
    """Three ranks, of which rank 0 has made its last step 5 s ago, rank 1 1 s ago and rank 2 none."""
    for rank, made in enumerate((5.0, 1.0, None)):
        node.says(rank, made=made)
    return node


def shown(node: Any) -> dict[tuple[str, ...], float]:
    return dict(node.told("ranks", "progress_timestamp_seconds"))


def test_ranks_by_state_and_the_last_step(three: Any) -> None:
    """As many series for three ranks as for one; what no rank is in is not there, but for running."""
    assert shown(three) == {("ranks", "running"): 3, ("progress_timestamp_seconds",): three.wall - 1}


def test_who_has_ended_makes_no_progress(three: Any) -> None:
    """Its successor may compile elsewhere; a frozen rank is still there."""
    made = three.wall - 5
    three.table.lost(1)
    assert shown(three) == {("ranks", "running"): 2, ("ranks", "dead"): 1, ("progress_timestamp_seconds",): made}
    three.turn(11)
    assert shown(three) == {
        ("ranks", "running"): 0, ("ranks", "frozen"): 2, ("ranks", "dead"): 1, ("progress_timestamp_seconds",): made,
    }  # fmt: skip
    three.table.bye(0, Bye(v=1, outcome="finished"))
    assert ("progress_timestamp_seconds",) not in shown(three)
