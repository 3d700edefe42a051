"""Who is late to the collectives, and when that is worth a word."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.node.api.answer import NodeAnswer
from tachograph.node.api.runs import RunAnswer
from tachograph.node.ranks.conclusions.lags import is_late, is_straggler, lags, usual_wait


def test_lag_is_measured_from_the_usual_wait() -> None:
    """The median; of two ranks the longer wait, of one none. What a lag is worth follows the step and the wait."""
    assert [usual_wait(waits) for waits in ([], [1.0], [1.0, 3.0], [1.0, 2.0, 9.0])] == [None, None, 3.0, 2.0]
    assert is_straggler(0.38, 0.02, 0.2)
    assert not is_straggler(0.38, 0.02, 0.5)
    assert not is_straggler(0.2, 0.0, 0.2)
    assert not is_straggler(0.3, 0.46, 0.2)
    assert lags({"a": 0.4, "b": 0.0, "c": 0.5}) == {"a": 0.0, "b": 0.4, "c": pytest.approx(-0.1)}
    assert lags({"a": 0.4}) == {}
    assert [is_late(*of) for of in ((0.07, 0.07), (0.06, 0.06), (0.005, 0.5), (0.0051, 0.5))] == [
        True, False, False, True
    ]  # fmt: skip


def judged(table: Any, hand: Any, waits: dict[int, float | None]) -> RunAnswer:
    """Return what is concluded about ranks with steps of 0.5 s that wait so long, 50 of 100 steps ago twice that."""
    for number, wait in waits.items():
        table.greet(number, rank=number, world_size=4)
        counted = {} if wait is None else {"collective_wait_seconds_total": {"all_reduce": 150 * wait}}
        table.tell(number, metrics={"steps_total": 100} | counted, progress_time=hand.clock.wall())
    for rank in table.ranks():
        if (wait := waits[rank.hello.rank]) is not None:  # as the exporter works them out of the frames
            rank.series.gauges |= {"recent_step_seconds": {"": 0.5}, "recent_wait_seconds": {"": wait}}
    (run,) = NodeAnswer("n", table, (), None, hand.clock).runs
    return run


def test_the_rank_that_waits_least_is_late(table: Any, hand: Any) -> None:
    """Of its latest steps, in seconds and as a share, and over all its steps; a wait of nothing is a wait."""
    run = judged(table, hand, {0: 0.2, 1: 0.0, 2: 0.2, 3: 0.16})
    assert [each.marks for each in run.ranks] == [(), ("straggler", "late"), (), ()]
    assert [each.lag_seconds for each in run.ranks] == pytest.approx([-0.02 + 0.0, 0.18, -0.02, 0.02])
    assert run.ranks[1].lag_ratio == pytest.approx(0.36)
    assert run.ranks[1].mean_lag_seconds == pytest.approx(0.27)
    assert (run.step_seconds, run.ranks[1].wait_ratio, run.ranks[0].wait_ratio) == (0.5, 0.0, 0.4)


def test_ranks_that_ended_or_say_nothing_of_waits_lag_behind_nobody(table: Any, hand: Any) -> None:
    """Neither are they counted among the others; the mean over all steps outlives a rank."""
    judged(table, hand, {0: 0.2, 1: 0.0, 2: None})
    table.lost(1)
    (run,) = NodeAnswer("n", table, (), None, hand.clock).runs
    assert [each.lag_seconds for each in run.ranks] == [None, None, None]
    assert [each.wait_seconds for each in run.ranks] == [0.2, None, None]
    assert [each.mean_lag_seconds for each in run.ranks] == [0.0, pytest.approx(0.3), None]
