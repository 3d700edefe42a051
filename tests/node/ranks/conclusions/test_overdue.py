"""Whether a run is overdue on a node, and the evidence that is shown only then; its limit is 18 s."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.node.ranks.frames import Bye

EVIDENCE = (
    "overdue_ranks", "pause_limit_seconds", "hang_still_seconds", "hang_enqueued", "hang_suspect_seconds",
    "hang_suspect_enqueued", "overdue_line_ranks",
)  # fmt: skip

STACK = ". Its whole stack: py-spy dump --pid 4 on its node, before anyone kills the run."


@pytest.fixture
def hung(node: Any) -> Any:
    """Three ranks that wait, and one that is in its loader, one collective behind; the limit is almost over."""
    for rank in range(4):
        node.says(rank, "forward", made=0, steps_total=10, recent_step_seconds=1.0)
    waiting(node, 3)
    node.says(3, "data", made=0, collective_enqueued={"0": 19}, recent_step_seconds=1.0)
    node.turn(18, *range(4))
    return node


def waiting(node: Any, ranks: int) -> None:
    for rank in range(ranks):
        node.says(rank, "backward", made=0, steps_total=10, collective_enqueued={"0": 20}, recent_step_seconds=1.0)


def test_a_run_is_overdue_after_its_limit(hung: Any) -> None:
    """With evidence then, and none before: tachograph_run_overdue_seconds, tachograph_run_overdue_ranks."""
    assert hung.value("overdue_seconds") == 0
    assert not hung.told(*EVIDENCE)
    hung.turn(1, *range(4))
    assert hung.value("overdue_seconds") == 19
    assert hung.told(*EVIDENCE) == {
        ("overdue_ranks", "backward"): 3,
        ("overdue_ranks", "data"): 1,
        ("hang_still_seconds", "at step 10"): 0,
        ("hang_enqueued", "0", "furthest", "in collective 20"): 20,
        ("hang_enqueued", "0", "least", ""): 19,
        ("hang_enqueued", "0", "per_step", ""): 2,
        ("hang_suspect_seconds", "3", "", "", "data", "elsewhere", "4", "", f"in phase data{STACK}"): 19,
        ("hang_suspect_enqueued", "3", "", "", "0"): 19,
    }
    hung.says(0, "forward", made=0, recent_step_seconds=1.0)
    assert hung.value("overdue_seconds") == 0
    assert not hung.told(*EVIDENCE)


def test_the_longest_pause_is_remembered_for_six_hours(hung: Any) -> None:
    """The next one may last three times as long, beside three steps."""
    hung.turn(182, *range(4))
    waiting(hung, 4)
    hung.says(3, "other", 0, made=0, recent_step_seconds=1.0)
    hung.turn(19, *range(4))
    assert hung.told("pause_limit_seconds")["pause_limit_seconds", "some_pause"] == 603
    hung.hand.now += 6 * 3600
    hung.turn(1, *range(4))
    assert hung.told("pause_limit_seconds")["pause_limit_seconds", "some_pause"] == 303


def test_after_a_pause_the_run_has_its_limit_again(hung: Any) -> None:
    """It is overdue while a rank is between steps, and the rules know how many; then not for 18 s."""
    hung.says(3, "other", 10, collective_enqueued={"0": 19})
    hung.turn(10, *range(4))
    assert (hung.value("overdue_seconds"), hung.told("overdue_ranks")["overdue_ranks", "other"]) == (28, 1)
    hung.says(3, "forward", collective_enqueued={"0": 19})
    hung.table.tick()
    assert hung.value("overdue_seconds") == 0
    hung.turn(18, *range(4))
    assert hung.value("overdue_seconds") == 0
    hung.turn(1, *range(4))
    assert hung.value("overdue_seconds") == 47


@pytest.mark.parametrize("phase", ["generate", "checkpoint", "other"])
def test_a_pause_that_ends_before_the_limit_leaves_time_for_the_step(node: Any, phase: str) -> None:
    """Of 18 s it takes 17, and the step after it is none that hangs, whether its ranks wait for each other or not."""
    for rank in range(4):
        node.says(rank, phase, made=0, steps_total=10, recent_step_seconds=1.0)
    node.turn(17, *range(4))
    for rank in range(4):
        node.says(rank, "forward", recent_step_seconds=1.0)
    node.turn(3, *range(4))
    assert (node.value("overdue_seconds"), node.told(*EVIDENCE)) == (0, {})
    node.says(0, "backward", recent_step_seconds=1.0)
    node.turn(14, *range(4))
    assert (node.value("overdue_seconds"), node.told(*EVIDENCE)) == (0, {})
    node.turn(5, *range(4))
    assert node.value("overdue_seconds") == 39, "18 s after a rank began to wait"
    for rank in range(4):
        node.says(rank, "forward", made=0, steps_total=11, recent_step_seconds=1.0)
    node.turn(19, *range(4))
    assert node.value("overdue_seconds") == 19, "its next step has had no pause"


def test_in_the_middle_of_a_step_nobody_pauses(hung: Any) -> None:
    """It says so after five seconds."""
    hung.says(3, "other", 10, step_unmarked_seconds=10.0)
    hung.turn(1, *range(4))
    assert hung.told("overdue_ranks") == {("overdue_ranks", "backward"): 3, ("overdue_ranks", "unmarked"): 1}


def test_a_silent_rank_is_waited_for(hung: Any) -> None:
    """It holds Python's lock, or is frozen, which has an alert of its own."""
    hung.turn(11, 0, 1, 2)
    assert hung.value("overdue_seconds") == 0


def test_a_bystander_is_no_suspect(hung: Any) -> None:
    """It is not counted either."""
    hung.says(4, "eval", 1000)
    hung.turn(1, *range(5))
    assert sum(hung.told("overdue_ranks").values()) == 4
    assert {key[1] for key in hung.told("hang_suspect_seconds")} == {"3"}


def test_when_a_rank_last_entered_a_collective(hung: Any) -> None:
    """Of any group, since the run is overdue: tachograph_run_hang_still_seconds."""
    hung.turn(10, *range(4))
    assert hung.told("hang_still_seconds") == {("hang_still_seconds", "at step 10"): 9}
    hung.says(0, "backward", 5, collective_enqueued={"0": 21})
    hung.turn(5, *range(4))
    assert hung.told("hang_still_seconds") == {("hang_still_seconds", "at step 10"): 4}


def test_a_collective_is_named_by_its_kind_if_there_is_only_one(hung: Any) -> None:
    """Ranks count what they did by kind, and enter collectives by number: tachograph_run_hang_enqueued."""
    for made, kind in (("all_reduce", "in all_reduce 20"), ("all_gather", "in collective 20")):
        hung.says(0, "backward", made=19, collective_enqueued={"0": 20}, collective_seconds_total={made: 1.0})
        hung.turn(1, *range(4))
        assert {key[3] for key in hung.told("hang_enqueued") if key[2] == "furthest"} == {kind}


def test_whoever_is_behind_is_named_though_it_waits(node: Any) -> None:
    """One that left out a collective; tachograph_run_hang_enqueued, tachograph_run_hang_suspect_enqueued."""
    waiting(node, 3)
    node.says(3, "backward", made=0, collective_enqueued={"0": 19}, recent_step_seconds=1.0)
    node.turn(19, *range(4))
    assert list(node.told("hang_suspect_seconds")) == [
        ("hang_suspect_seconds", "3", "", "", "backward", "behind", "4", "", f"in phase backward{STACK}")
    ]


def test_where_all_are_alike_one_stands_for_all(node: Any) -> None:
    """Another node may be ahead of them: tachograph_run_hang_suspect_seconds."""
    waiting(node, 4)
    node.turn(19, *range(4))
    assert list(node.told("hang_suspect_seconds")) == [
        (
            "hang_suspect_seconds",
            "0",
            "",
            "",
            "backward",
            "example",
            "1",
            "",
            "in phase backward" + STACK.replace("4", "1"),
        )
    ]
    assert node.told("hang_suspect_enqueued") == {("hang_suspect_enqueued", "0", "", "", "0"): 20}


def test_a_suspect_has_its_process_and_its_line(hung: Any) -> None:
    """As it says it itself; what is no printable text of 160 bytes is left out, and counted."""
    line = "data.py:88 load_shard, in socket.py:706 readinto"
    for where, shown in ((line, line), ("a\nb", ""), (7, ""), ("x" * 161, "")):
        hung.says(3, "data", made=19, where=where, collective_enqueued={"0": 19}, recent_step_seconds=1.0)
        hung.turn(1, *range(4))
        words = f"in phase data, at {shown}{STACK}" if shown else f"in phase data{STACK}"
        assert {key[-3:] for key in hung.told("hang_suspect_seconds")} == {("4", shown, words)}


def test_the_line_at_which_most_stand_still_is_counted(hung: Any) -> None:
    """Once a node, without what it waits in: tachograph_run_overdue_line_ranks; none, if nobody says where it is."""
    lines = (
        "train.py:140 backward, in graph.py:1 run",
        "train.py:140 backward, in c.py:2 wait",
        "data.py:88 load",
        None,
    )
    for rank, where in enumerate(lines):
        hung.says(rank, "backward", made=18, where=where, recent_step_seconds=1.0)
    assert not hung.told("overdue_line_ranks")
    hung.turn(1, *range(4))
    assert hung.told("overdue_line_ranks") == {("overdue_line_ranks", "train.py:140 backward"): 2}
    for rank in range(4):
        hung.says(rank, "backward", made=19, recent_step_seconds=1.0)
    assert not hung.told("overdue_line_ranks")


def test_at_most_nine_are_named(node: Any) -> None:
    """One more than the rules would name."""
    for rank in range(12):
        node.says(rank, "forward", made=0, recent_step_seconds=1.0)
    node.turn(19, *range(12))
    assert len(node.told("hang_suspect_seconds")) == 9


def test_a_start_is_stalled_for_as_long_as_nobody_moves_on(node: Any) -> None:
    """With evidence after three minutes; 0 up to the run's own limit: tachograph_run_start_stalled_seconds."""
    node.says(0, "init", 200)
    node.says(1, "collective", 100, collective_enqueued={"0": 1})
    assert node.value("start_stalled_seconds") == 100
    assert not node.told(*EVIDENCE)
    node.turn(81, 0, 1)
    assert node.value("start_stalled_seconds") == 181
    assert node.told("overdue_ranks") == {("overdue_ranks", "init"): 1, ("overdue_ranks", "collective"): 1}
    assert [key[1] for key in node.told("hang_still_seconds")] == ["before its first step"]
    node.says(0, "init", 300, threshold={"hang_seconds": 600})
    assert node.value("start_stalled_seconds") == 0
    node.says(0, "forward", made=0)
    assert node.value("start_stalled_seconds") is None


def test_a_run_that_has_ended_is_not_overdue(node: Any) -> None:
    """Only when its ranks finished: tachograph_run_finished_timestamp_seconds."""
    node.says(0, "forward", made=0, step=12, recent_step_seconds=1.0)
    node.table.bye(0, Bye(v=1, outcome="finished"))
    ended = node.wall
    node.turn(60)
    assert node.value("overdue_seconds") is None
    assert node.told("finished_timestamp_seconds") == {("finished_timestamp_seconds", "0", "", "", "at step 12"): ended}
