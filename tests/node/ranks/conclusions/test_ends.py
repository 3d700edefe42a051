"""Which rank of a node ended first, and what the run came to there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tachograph.node.ranks.frames import Bye, Hello, Peer, State

Shown = dict[tuple[str, ...], float]
GPUS = {0: ("0", "GPU-0000"), 1: ("1", "GPU-1111")}


class Node:
    """A node with ranks of run r; `attempt` starts all of them, each connection is (attempt, rank)."""

    def __init__(self, table: Any, hand: Any) -> None:
        self.table, self.hand = table, hand
        self.connected: dict[int, tuple[int, int]] = {}

    def start(self, *ranks: int, attempt: int = 0, **more: Any) -> None:
        """Connect ranks, in an attempt."""
        for rank in ranks:
            link = self.connected[rank] = (attempt, rank)
            hello = Hello(v=1, run="r", rank=rank, world_size=12, attempt=attempt, pid=10 * attempt + rank + 1, **more)
            self.table.hello(link, hello, Peer(1000, 100 * attempt + rank + 1))

    def step(self, step: int, **more: Any) -> None:
        """Have all who are connected complete a step."""
        for number, link in self.connected.items():
            del number
            wall = self.hand.clock.wall()
            self.table.state(link, State(v=1, seq=step + 1, time=wall, step=step, progress_time=wall, **more))

    def die(self, *ranks: int) -> None:
        """Lose the connections of ranks."""
        for rank in ranks:
            self.table.lost(self.connected.pop(rank))

    def fail(self, rank: int, category: str = "exception") -> None:
        """Have a rank say why it failed."""
        self.table.bye(self.connected.pop(rank), Bye(v=1, outcome="failed", category=category, message="m"))

    def finish(self, *ranks: int) -> None:
        """Have ranks say that they finished."""
        for rank in ranks:
            self.table.bye(self.connected.pop(rank), Bye(v=1, outcome="finished"))

    def wait(self, seconds: float) -> None:
        """Let time pass, a second at a time; who is connected is heard."""
        for _ in range(int(seconds)):
            for link in self.connected.values():
                self.table.heard(link)
            self.hand.turn(1.0, self.table.tick)
        if rest := seconds % 1:
            self.hand.turn(rest, self.table.tick)

    def shown(self, family: str) -> Shown:
        """Return the values of a family tachograph_run_…, by its labels but for the run."""
        return {
            tuple(sample.labels[1:]): float(sample.value)
            for sample in self.table.samples()
            if sample.metric.name == f"tachograph_run_{family}"
        }

    def first(self) -> list[tuple[str, str, str]]:
        """Return the first ends: kind, reason and rank."""
        return [(kind, reason, rank) for kind, reason, rank, *_ in self.shown("first_end_seconds")]


@pytest.fixture
def node(table: Any, hand: Any) -> Node:
    """Ranks 0 to 3, which have made a step."""
    found = Node(table, hand)
    found.start(0, 1, 2, 3)
    found.step(1)
    return found


def test_a_healthy_run_shows_nothing(node: Node) -> None:
    """Not even a zero: what is not there costs nothing. For a quarter of an hour, since when ends are its own."""
    node.wait(5)
    assert node.shown("ended_attempt_seconds") == {(): 5}
    node.wait(895)
    for family in ("first_end_seconds", "ended_together", "ended_seconds", "ended_attempt_seconds", "frozen_seconds"):
        assert not node.shown(family)
    assert not node.shown("fruitless_attempts")


def test_the_first_end_of_each_kind(node: Node) -> None:
    """With its age, its reason, and how many came with it."""
    node.wait(10)
    node.die(2)
    node.wait(0.25)
    node.die(1)
    node.wait(2)
    node.fail(3, "collective")
    node.wait(1)
    node.fail(0, "terminated")
    shown = node.shown("first_end_seconds")
    assert {(kind, reason, rank): age for (kind, reason, rank, _, _), age in shown.items()} == {
        ("died", "died", "2"): pytest.approx(3.25),
        ("communication", "collective", "3"): 1.0,
        ("told", "terminated", "0"): 0,
    }  # fmt: skip
    assert node.shown("ended_together") == {("died",): 2, ("communication",): 1, ("told",): 1}


def test_a_page_finds_all_that_it_says_of_an_end(node: Node) -> None:
    """Why, at which step, where, and the last words; also after the next process of the rank has connected."""
    node.start(1, attempt=1, coordinates={"tp": 1, "pp": 0})
    node.step(1234567)
    node.die(1)
    node.wait(2)
    node.fail(2, "oom")
    node.fail(3, "terminated")
    shown = {
        ("1", "died", "1,234,567", "pp 0, tp 1", "", ""): 2,
        ("2", "oom", "1,234,567", "", "out_of_memory", "m"): 0,
    }  # fmt: skip
    assert node.shown("last_words_age_seconds") == shown
    node.start(1, attempt=2)
    assert node.shown("last_words_age_seconds") == shown


def test_who_is_gone_is_listed_by_how_it_ended(node: Node) -> None:
    """As long as it is not back; not who finished. At most eight ranks are named."""
    node.start(*range(4, 12))
    node.fail(3, "terminated")
    node.wait(2)
    node.die(2)
    node.finish(1)
    assert node.shown("gone_seconds") == {("Rank 3", "was asked to end"): 2, ("Rank 2", "ended (died)"): 0}
    node.start(3, attempt=1)
    node.fail(0, "terminated")
    node.wait(1)
    node.fail(4, "interrupted")
    node.die(*range(5, 12))
    assert node.shown("gone_seconds") == {
        ("Rank 0", "was asked to end"): 1,
        ("Rank 4", "was asked to end"): 0,
        ("Ranks 2, 5, 6, 7, 8, 9, 10, 11", "ended (died)"): 1,
    }  # fmt: skip
    node.start(0, attempt=1)
    node.step(3)
    node.fail(0)
    node.die(3)
    gone = node.shown("gone_seconds")
    assert ("Ranks 2, 3, 5, 6, 7, 8, 9, 10 and 1 more", "ended (died)") in gone
    assert ("Rank 0", "ended (exception)") in gone


def test_the_end_is_shown_while_the_others_hang(node: Node) -> None:
    """However long: the exporter forgets the rank after a quarter of an hour, not who ended first."""
    node.die(2)
    node.wait(1100)
    assert node.first() == [("died", "died", "2")]


def test_an_end_that_the_run_outlives_is_forgotten(node: Node) -> None:
    """After a minute of steps, and for good: who ends then was not the second."""
    node.die(2)
    for step in range(2, 61):
        node.wait(1)
        node.step(step)
    assert node.first() == [("died", "died", "2")]
    node.wait(3)
    node.step(99)
    node.wait(1)
    assert not node.first()
    node.fail(1)
    assert node.first() == [("failed", "exception", "1")]


def test_who_came_back_is_shown_for_a_while(node: Node) -> None:
    """A launcher restarts ranks before a scrape has seen their end."""
    node.die(0, 1, 2, 3)
    node.wait(5)
    node.start(0, 1, 2, 3, attempt=1)
    node.wait(70)
    assert node.first() == [("died", "died", "0")]
    node.wait(1)
    assert not node.first()


def test_an_end_between_two_looks_is_seen(node: Node) -> None:
    """The rank is back before anybody looked: its new process tells of the earlier one."""
    node.wait(1)
    node.die(2)
    node.start(2, attempt=1)
    node.wait(1)
    assert node.first() == [("died", "died", "2")]


def test_the_newest_attempt_counts(node: Node) -> None:
    """Once somebody ends in it: what ended before is another story."""
    node.die(2)
    node.wait(1)
    node.fail(0, "collective")
    node.wait(5)
    node.start(0, 2, attempt=1)
    node.wait(10)
    assert [kind for kind, *_ in node.first()] == ["died", "communication"]
    node.fail(0, "oom")
    node.wait(1)
    assert node.first() == [("failed", "oom", "0")]
    assert node.shown("ended_attempt_seconds") == {(): 16}


def test_an_end_is_over_once_the_newest_attempt_makes_a_step(node: Node) -> None:
    """Not before: if it never does, who ended is still to be reported. What ends then is another story."""
    node.die(2)
    node.wait(1)
    for rank in (0, 1, 3):
        node.fail(rank, "collective")
    node.wait(4)
    node.start(0, 1, 2, 3, attempt=1)
    node.wait(20)
    assert [kind for kind, *_ in node.first()] == ["died", "communication"]
    node.step(2, metrics={"phase_seconds_total": {"init": 19.0, "forward": 1.0}})
    node.wait(1)
    assert not node.first()
    assert node.shown("ended_attempt_seconds") == {(): 21}
    node.fail(3, "oom")
    node.wait(1)
    assert node.first() == [("failed", "oom", "3")]


def test_steps_of_ranks_that_never_ended_end_nothing(node: Node) -> None:
    """One has died, and the others train on: they are of the same attempt."""
    node.die(2)
    for step in range(2, 30):
        node.wait(1)
        node.step(step)
    assert node.first() == [("died", "died", "2")]


def test_a_rank_that_started_late_begins_no_attempt(node: Node) -> None:
    """It is the first process of its number, and ends because of who ended before it came."""
    node.die(2)
    node.wait(3)
    node.start(4)
    node.wait(30)
    node.fail(4, "collective")
    assert [kind for kind, *_ in node.first()] == ["died", "communication"]


def test_who_comes_back_in_the_same_process_has_not_ended(node: Node) -> None:
    """It lost its connection only."""
    node.die(2)
    node.wait(1)
    node.start(2)
    node.wait(1)
    assert not node.first()


@pytest.mark.parametrize("jump", [-5000.0, 5000.0])
def test_a_clock_that_is_set_moves_no_end(node: Node, jump: float) -> None:
    """Ages are by the monotonic clock, also of ends that were forgotten."""
    node.die(2)
    node.wait(5)
    node.hand.epoch += jump
    assert list(node.shown("first_end_seconds").values()) == [5]


def test_the_run_was_told_to_end(node: Node) -> None:
    """Since when, once nobody is left; what fails a second later failed because of that."""
    node.fail(0, "terminated")
    node.wait(2)
    node.fail(1, "exception")
    node.die(2)
    assert not node.shown("ended_seconds")
    node.fail(3, "terminated")
    node.wait(1)
    assert node.shown("ended_seconds") == {("terminated",): 3}


def test_who_fails_first_was_not_told(node: Node) -> None:
    """Launchers tell the others to end: the run has failed."""
    node.die(0)
    node.wait(2)
    for rank in (1, 2, 3):
        node.fail(rank, "terminated")
    assert not node.shown("ended_seconds")


def test_the_run_finished(node: Node) -> None:
    """Half a minute later, for the exit code may be an error; and how far it came."""
    node.step(40, metrics={"total_steps": 50})
    node.finish(0, 1, 2)
    node.wait(31)
    assert node.shown("ended_seconds") == {("finished",): 31}
    assert not node.shown("steps_short")
    node.finish(3)
    node.wait(20)
    assert not node.shown("steps_short")
    node.wait(11)
    assert node.shown("steps_short") == {(): 10}  # tachograph_run_steps_short


def test_fruitless_attempts_are_counted(node: Node) -> None:
    """Those in a row that failed without a step beyond the best; the first had made steps."""
    node.step(100)
    node.fail(0, "oom")
    counts = []
    for attempt in range(1, 5):
        node.wait(5)
        node.start(0, attempt=attempt)
        node.wait(20)
        node.table.state(node.connected[0], State(v=1, seq=1, time=0.0, step=100 if attempt < 4 else 101))
        node.wait(1)
        node.fail(0, "oom")
        node.wait(1)
        counts.append(node.shown("fruitless_attempts").get((), 0))
    assert counts == [1, 2, 3, 0]


def test_slow_attempts_are_no_loop(node: Node) -> None:
    """A quarter of an hour between two failures begins a new row; so long one is shown."""
    for attempt in (1, 2, 3):
        node.fail(0, "oom")
        node.wait(905)
        assert not node.shown("fruitless_attempts")
        node.start(0, attempt=attempt)
        node.wait(5)


def test_being_told_is_no_failure(node: Node) -> None:
    """A run that is preempted again and again is in no loop."""
    for attempt in range(1, 5):
        node.fail(0, "terminated")
        node.wait(5)
        node.start(0, attempt=attempt)
        node.wait(5)
    assert not node.shown("fruitless_attempts")


@pytest.mark.parametrize(("phase", "limit"), [("forward", 23), ("checkpoint", 60), ("eval", 60), ("init", 60)])
def test_a_frozen_rank_is_named(node: Node, phase: str, limit: int) -> None:
    """Twenty-five seconds after its last word, a minute in phases that hold Python's lock."""
    node.table.state(node.connected[1], State(v=1, seq=9, time=0.0, step=1, phase=phase))
    del node.connected[1]
    node.wait(limit)
    assert not node.shown("frozen_seconds")
    node.wait(1)
    assert [(labels[0], labels[3], value) for labels, value in node.shown("frozen_seconds").items()] == [
        ("1", phase, limit + 1)
    ]


def test_eight_frozen_ranks_are_named(table_of: Callable[..., Any], two_gpus: Any, hand: Any) -> None:
    """The number of series does not grow with the ranks."""
    node = Node(table_of(two_gpus), hand)
    node.start(*range(12))
    node.connected.clear()
    node.wait(40)
    assert len(node.shown("frozen_seconds")) == 8


def test_a_placement_stays_with_the_end(node: Node) -> None:
    """Where the GPU is known."""
    node.table.hello((9, 9), Hello(v=1, run="r", rank=9, world_size=12, pid=99, uuid="GPU-elsewhere"), Peer(1000, 999))
    node.table.lost((9, 9))
    (labels,) = node.shown("first_end_seconds")
    assert labels == ("died", "died", "9", "", "GPU-elsewhere")
