"""How long a step usually takes, how long the run may go without one, and when it last paused."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.node.ranks.frames import Bye


def test_the_usual_step_is_the_median_of_what_the_ranks_say(node: Any) -> None:
    """None, if none says so; kept while they are frozen, and gone with them."""
    for rank, step in enumerate((1.0, 2.0, 4.0)):
        node.says(rank)
        assert (node.value("step_seconds") is None) == (rank == 0)
        node.says(rank, recent_step_seconds=step)
    assert node.value("step_seconds") == 2
    node.turn(11)
    assert node.value("step_seconds") == 2
    for rank in range(3):
        node.table.bye(rank, Bye(v=1, outcome="finished"))
    assert node.value("step_seconds") is None


def test_a_sites_limit_holds_for_runs_without_one_of_their_own(node: Any) -> None:
    """Also while the usual step is not known, and for a run that pauses: nothing is overdue before."""
    node.table.site_limits = {"hang_seconds": 600.0}
    node.says(0, "eval", made=0)
    assert node.value("hang_limit_seconds") == 600
    node.says(0, "eval", 305, made=305, recent_step_seconds=2.0)
    node.says(1, "backward", 305, made=305, recent_step_seconds=2.0)
    assert (node.value("hang_limit_seconds"), node.value("overdue_seconds")) == (606, 0)
    node.says(1, "backward", 306, made=306, recent_step_seconds=2.0, threshold={"hang_seconds": 60})
    assert (node.value("hang_limit_seconds"), node.value("overdue_seconds")) == (66, 305)


def test_the_limit_is_seconds_and_three_steps(node: Any) -> None:
    """15 s, or what a rank set for its run, the most tolerant of several; none before the first step."""
    node.says(0, recent_step_seconds=2.0)
    assert node.value("hang_limit_seconds") is None
    node.says(0, made=1, recent_step_seconds=2.0)
    assert (node.value("hang_limit_seconds"), node.value("progress_age_seconds")) == (21, 1)
    node.says(1, threshold={"hang_seconds": 60})
    node.says(2, threshold={"hang_seconds": 40})
    assert node.value("hang_limit_seconds") == 66


def test_the_limit_is_four_minutes_while_the_usual_step_is_not_known(node: Any) -> None:
    """Or the run's own, if that is longer."""
    node.says(0, made=0)
    assert node.value("hang_limit_seconds") == 240
    node.says(0, made=0, threshold={"hang_seconds": 600})
    assert node.value("hang_limit_seconds") == 600


@pytest.mark.parametrize("phase", ["init", "checkpoint", "eval"])
def test_a_rank_that_starts_saves_or_evaluates_excuses_the_run(node: Any, phase: str) -> None:
    """From its third second on, and until it goes on; other phases excuse nothing."""
    node.says(0, "forward", made=0, recent_step_seconds=1.0)
    node.says(1, "forward", 100, made=0)
    node.turn(3, 0, 1)
    assert node.value("excused_seconds") is None
    node.says(1, phase, 2)
    assert node.value("excused_seconds") is None
    node.turn(30, 0, 1)
    assert (node.value("excused_seconds"), node.value("paused_seconds")) == (0, 0)
    node.says(1, "forward", made=0)
    node.turn(10, 0, 1)
    assert (node.value("excused_seconds"), node.value("paused_seconds")) == (10, 10)


def test_a_bystander_excuses_nothing(node: Any) -> None:
    """It was where it is for a minute and the limit when the run made its last step: 78 s, where a step takes 1 s."""
    node.says(0, "forward", made=0, recent_step_seconds=1.0)
    node.says(1, "eval", 79, made=200)
    assert node.value("excused_seconds") is None
    node.says(1, "eval", 77, made=200)
    assert node.value("excused_seconds") == 0


def test_a_bystander_on_a_node_without_steps(node: Any) -> None:
    """Half an hour of an evaluation excuses nothing there; a start may take longer."""
    node.says(0, "eval", 1799)
    assert node.value("excused_seconds") == 0
    node.turn(10, 0)
    assert node.value("excused_seconds") == 9
    node.says(0, "init", 4000)
    assert node.value("excused_seconds") == 0


def test_a_run_pauses_when_it_waits_15_s_longer_than_usual(node: Any) -> None:
    """Or has not made a step yet; nothing is said once its ranks have ended: tachograph_run_paused_seconds."""
    node.says(0, "forward")
    assert node.value("paused_seconds") == 0
    node.says(0, "forward", made=0, recent_step_seconds=2.0)
    node.turn(17, 0)
    assert node.value("paused_seconds") == 17
    node.turn(1, 0)
    assert node.value("paused_seconds") == 0
    node.says(0, "forward", made=0, recent_step_seconds=2.0)
    node.turn(5, 0)
    assert node.value("paused_seconds") == 5
    node.table.bye(0, Bye(v=1, outcome="finished"))
    node.turn(60)
    assert node.value("paused_seconds") is None
