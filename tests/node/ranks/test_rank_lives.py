"""The lives of a rank: one process after the other, how many there were, and what is known of the one before."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tachograph.node.ranks.frames import Bye, Peer, State


def states(table: Any) -> dict[str, float]:
    """The state series of rank 0."""
    return {key[3]: value for key, value in table.shown().items() if key[:3] == ("rank_state", "r", "0")}


def test_states_the_rank_was_never_in_are_not_shown(table: Any, hand: Any) -> None:
    """A healthy rank has one series; one that was frozen or dead shows 0 for it afterwards, also in its next life."""
    table.greet(link := object())
    assert states(table) == {"running": 1}
    hand.turn(11.0, table.tick)
    assert states(table) == {"running": 0, "frozen": 1}
    table.tell(link)
    assert states(table) == {"running": 1, "frozen": 0}
    table.lost(link)
    table.tick()
    assert states(table) == {"running": 0, "frozen": 0, "dead": 1}
    table.greet(object(), table.OTHER)
    assert states(table) == {"running": 1, "frozen": 0, "dead": 0}


def restarts(table: Any, rank: str = "0") -> float:
    return table.shown()["train_restarts_total", "r", rank]


def test_restarts_are_counted_by_process_and_attempt(table: Any, hand: Any) -> None:
    """0 from the hello on; each further process counts one, and an attempt number that knows more counts as it says."""
    table.greet(link := object())
    assert restarts(table) == 0
    table.lost(link)
    table.greet(link := object())  # the same process is no restart
    table.tell(link)
    assert restarts(table) == 0
    table.lost(link)
    table.greet(link := object(), table.OTHER)
    assert restarts(table) == 1
    table.bye(link, Bye(v=1, outcome="failed"))
    table.greet(link := object(), table.ME, attempt=5)
    assert restarts(table) == 5
    table.lost(link)
    table.greet(object(), table.OTHER, attempt=1)
    assert restarts(table) == 6, "the attempt of a launcher that counts anew does not make it fall"


def test_restarts_of_containers_are_counted_by_sequence(table: Any) -> None:
    """Where all pids are alike, a sequence that starts again is the other process."""
    table.greet(link := object(), Peer(1000, 0), pid=7)
    table.tell(link, 50)
    table.lost(link)
    table.greet(link := object(), Peer(1000, 0), pid=7)
    table.tell(link, 1)
    assert restarts(table) == 1


def test_restarts_are_remembered_as_long_as_the_run(table: Any, table_of: Any, two_gpus: Any, hand: Any) -> None:
    """A forgotten rank that returns continues its counters while others of its run exist; else the run is new."""
    table.greet(object(), rank=1)
    for peer in (table.ME, table.OTHER):
        table.greet(link := object(), peer)
        table.lost(link)
    hand.turn(901.0, table.tick)
    assert [rank.key[1] for rank in table.ranks()] == ["1"]
    table.greet(link := object(), table.ME)
    assert restarts(table) == 2
    assert restarts(table, "1") == 0
    alone = table_of(two_gpus)
    alone.greet(link := object())
    alone.lost(link)
    hand.turn(901.0, alone.tick)
    alone.greet(object(), table.OTHER)
    assert restarts(alone) == 0


def test_forgotten_ranks_are_remembered_up_to_a_number(table: Any, hand: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that makes up ranks without end costs a bounded memory."""
    monkeypatch.setattr("tachograph.node.ranks.run.MAX_FORGOTTEN", 3)
    table.greet(object(), rank=99)
    for rank in range(10):
        table.greet(link := object(), rank=rank)
        table.lost(link)
    hand.turn(901.0, table.tick)
    for rank in range(10):
        table.greet(object(), rank=rank)
    assert sum(restarts(table, str(rank)) for rank in range(10)) == 3


def test_hello_tells_when_the_earlier_process_ended(table: Any, hand: Any) -> None:
    """Absent for the first process and for a second hello of a living one; else when that rank was last heard of."""
    link = object()
    assert table.greet(link).ended is None
    table.tell(link)
    hand.turn(5.0)
    table.tell(link, 2)
    assert table.greet(link).ended is None
    other = object()
    assert table.greet(other).ended is None
    hand.turn(7.0)
    table.lost(other)
    hand.turn(60.0)
    hand.epoch += 3600.0
    welcome = table.greet(object(), table.OTHER)
    assert welcome.ended == hand.epoch - 3600.0 + 12.0, "the end of its connection, not its last frame"
    assert welcome.ended_seconds == 60.0, "whatever the clock of the day was set to"
    assert table.greet(object(), table.ME, attempt=1).ended == hand.epoch + 72.0, "one that lived until it was replaced"


def told(table: Any, rank: int = 0, **over: Any) -> tuple[int | None, float | None]:
    """The answer to a new process of a rank names the end of the previous one."""
    welcome = table.greet(object(), table.OTHER, rank=rank, **over)
    return welcome.last_step, welcome.ended


def lived(table: Any, hand: Any, step: int, rank: int = 0) -> tuple[object, float]:
    """Have a process of a rank reach a step; return its link and when it was last heard."""
    table.greet(link := object(), rank=rank)
    table.heard(link)
    table.state(link, State(v=1, seq=1, time=100.0, step=step))
    return link, hand.clock.wall()


def test_a_job_that_comes_back_after_hours_is_known(table: Any, hand: Any) -> None:
    """A requeue takes longer than a dead rank stays visible: its step and its end are still remembered."""
    link, heard = lived(table, hand, 480)
    table.lost(link)
    for _ in range(10):
        hand.turn(360.0, table.tick)
    assert not states(table)
    assert told(table) == (480, heard)
    assert told(table, rank=1) == (None, None)


def test_a_training_that_finished_is_not_gone_on_with(table: Any, hand: Any) -> None:
    """A fresh script under the name of a finished run repeats nothing; a later attempt does."""
    for rank, attempt, expected in ((0, 0, None), (1, 1, 480)):
        link, _ = lived(table, hand, 480, rank)
        table.bye(link, Bye(v=1, outcome="finished"))
        assert told(table, rank, attempt=attempt)[0] == expected


def test_another_users_past_is_not_told(table: Any, hand: Any) -> None:
    """A run's name may be used by another user once it is forgotten; nothing of the old run is shown."""
    link, _ = lived(table, hand, 480)
    table.lost(link)
    for _ in range(10):
        hand.turn(360.0, table.tick)
    assert table.greet(object(), Peer(1001, 4243)).last_step is None


def test_remembering_has_an_end(table: Any, hand: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names without end cost no memory: the oldest is forgotten for good."""
    monkeypatch.setattr("tachograph.node.ranks.earlier_processes.MAX_FORGOTTEN", 3)
    for rank in range(5):
        link, _ = lived(table, hand, rank, rank)
        table.lost(link)
    for _ in range(10):
        hand.turn(360.0, table.tick)
    assert [told(table, rank)[0] for rank in range(5)] == [None, None, 2, 3, 4]


RAISED = {"category": "collective", "message": "RuntimeError: NCCL error", "time": 99.5}


def test_an_exception_that_holds_a_rank_up_is_its_failure(table: Any, hand: Any) -> None:
    """After 20 s, though its process lives, since the moment at which it was raised; no more once the rank goes on."""
    table.greet(link := object())
    table.tell(link, seq=1, time=99.0, progress_time=99.0)
    hand.turn(1.0)
    table.tell(link, seq=2, time=100.0, progress_time=99.0, raised=RAISED)
    raised_at = hand.clock.wall() - 0.5
    hand.turn(19.0)
    table.tell(link, seq=3, time=119.0, progress_time=99.0, raised={**RAISED, "time": 99.6})
    assert table.states() == ["running"]
    hand.turn(1.0)
    assert table.states() == ["failed"]
    assert table.shown()["rank_up", "r", "0"] == 0
    assert table.shown()["rank_ended_timestamp_seconds", "r", "0", "collective"] == raised_at
    table.tell(link, seq=4, time=120.0, progress_time=119.5)
    assert table.states() == ["running"]
    assert ("rank_ended_timestamp_seconds", "r", "0", "collective") not in table.shown()


def test_an_exception_may_be_raised_at_a_whole_second(table: Any, hand: Any) -> None:
    """As a client of any language may write its time."""
    table.greet(link := object())
    table.tell(link, seq=1, time=100.0, raised={**RAISED, "time": 99})
    hand.turn(20.0)
    assert table.states() == ["failed"]


@pytest.mark.parametrize("end", ["bye", "lost"])
def test_its_end_is_when_it_raised(table: Any, hand: Any, end: str) -> None:
    """However long it hung after that, so that it comes before whoever failed because of it; counted as one failure."""
    table.greet(link := object())
    table.tell(link, seq=1, time=100.0, progress_time=99.0, raised=RAISED)
    raised_at = hand.clock.wall() - 0.5
    hand.turn(300.0)
    if end == "bye":
        table.tell(link, seq=2, time=400.0, progress_time=99.0)
        table.bye(link, Bye(v=1, outcome="failed", category="collective", message="timeout"))
    else:
        table.lost(link)
    assert table.states() == ["failed"]
    assert table.shown()["rank_ended_timestamp_seconds", "r", "0", "collective"] == raised_at
    assert table.shown()["train_failures_total", "r", "0", "network"] == 1


@pytest.mark.parametrize(
    "given",
    [
        7, [], {}, {**RAISED, "category": None},
        *({**RAISED, "time": time} for time in ("now", 10**400, -(10**400), 1e308, -1.0, math.nan)),
    ],
)  # fmt: skip
def test_what_is_no_exception_costs_itself(table: Any, hand: Any, given: Any) -> None:
    """The frame counts, and the rank runs."""
    table.greet(link := object())
    table.tell(link, step=5, raised=given)
    hand.turn(60.0)
    table.tell(link, seq=2, step=6, raised=given)
    assert table.states() == ["running"]
    assert table.dropped["wrong_type"] == 2


def test_a_second_training_of_one_process_is_counted_beside_the_first(table: Any) -> None:
    """Its recorder says hello as the same process, after a bye: nothing of either is lost, and nothing is redone."""
    for life in range(2):
        link = object()
        assert table.greet(link).last_step is None
        for seq, steps in enumerate((0, 20), 1):
            counted = {"steps_total": steps, "productive_seconds_total": steps * 0.5}
            table.tell(link, seq, step=steps, metrics=counted)
        assert table.shown()["train_steps_total", "r", "0"] == 20
        assert table.shown()["train_productive_seconds_total", "r"] == 10 * (life + 1)
        assert restarts(table) == life
        table.bye(link, Bye(v=1, outcome="finished"))
    assert table.dropped["counter_decrease"] == 0
