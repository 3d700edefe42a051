"""Merged families: what all ranks of a run counted on this node, through the rank table."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tachograph.catalog.rank import LOST_CAUSES, USUAL_PHASES
from tachograph.node.ranks.frames import Bye, Hello, Peer, State
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.run_totals import CounterDelta, RunTotals
from tachograph.node.ranks.shown_ranks import ShownRanks

PRODUCTIVE, LOST = "train_productive_seconds_total", "train_lost_seconds_total"


class Node:
    """A rank table to which ranks speak by their number; a rank's next process has another pid."""

    def __init__(self, hand: Any, gpus: Any, run: str = "r") -> None:
        self.run, self.pid = run, 100
        self.table = RankTable(Limits(), hand.clock, gpus)
        self.seq: dict[object, int] = {}

    def start(self, rank: int, peer: Peer | None = None) -> object:
        self.pid += 1
        link = object()
        self.table.hello(link, Hello(v=1, run=self.run, rank=rank), peer or Peer(1000, self.pid))
        return link

    def say(self, link: object, productive: object = None, seq: int | None = None, **lost: object) -> None:
        self.seq[link] = self.seq.get(link, 0) + 1 if seq is None else seq
        metrics: dict[str, Any] = {"lost_seconds_total": lost} if lost else {}
        if productive is not None:
            metrics["productive_seconds_total"] = productive
        self.table.state(link, State(v=1, seq=self.seq[link], time=1.0, metrics=metrics))

    def shown(self) -> dict[tuple[str, ...], float]:
        return {
            (s.metric.name[11:], *s.labels): getattr(s, "value", math.nan) for s in ShownRanks(self.table).samples()
        }


@pytest.fixture
def node(hand: Any, two_gpus: Any) -> Node:
    return Node(hand, two_gpus)


def test_ranks_are_added_up(node: Node, hand: Any) -> None:
    """One series per run, and per cause: the sum of what each rank counted; no series of a single rank."""
    first, second = node.start(0), node.start(1)
    node.say(first, 10.0, data=1.0)
    node.say(second, 20.0, data=0.5, hang=0)
    node.say(first, 12.0, data=1.5)
    shown = node.shown()
    assert shown[PRODUCTIVE, "r"] == 32.0
    assert shown[LOST, "r", "data"] == 2.0
    assert {key for key in shown if key[0] in (PRODUCTIVE, LOST)} == {
        (PRODUCTIVE, "r"), *((LOST, "r", cause) for cause in LOST_CAUSES),
    }  # fmt: skip
    assert {shown[LOST, "r", cause] for cause in LOST_CAUSES if cause != "data"} == {0.0}


def test_runs_are_kept_apart(node: Node, hand: Any) -> None:
    """Two runs on a node have two sums."""
    node.say(node.start(0), 1.0)
    node.run = "s"
    node.say(node.start(0), 2.0)
    shown = node.shown()
    assert (shown[PRODUCTIVE, "r"], shown[PRODUCTIVE, "s"]) == (1.0, 2.0)


def test_a_repeated_or_lost_frame_changes_nothing(node: Node, hand: Any) -> None:
    """State, not events: twice the same adds nothing, and the next frame makes up for one that never came."""
    link = node.start(0)
    node.say(link, 5.0)
    node.say(link, 5.0)
    node.say(link)
    node.say(link, 9.0)
    assert node.shown()[PRODUCTIVE, "r"] == 9.0


def test_a_rank_that_leaves_takes_nothing_away(node: Node, hand: Any) -> None:
    """Dead, forgotten and back again: its successor counts from nothing, and the sum only grows."""
    stays, leaves = node.start(0), node.start(1)
    node.say(stays, 100.0)
    node.say(leaves, 50.0, restart=0)
    assert node.shown()[PRODUCTIVE, "r"] == 150.0
    node.table.lost(leaves)
    assert node.shown()[PRODUCTIVE, "r"] == 150.0
    node.say(node.start(1), 3.0, restart=7.0)
    assert node.shown()[PRODUCTIVE, "r"] == 153.0
    assert node.shown()[LOST, "r", "restart"] == 7.0
    node.table.bye(stays, Bye(v=1, outcome="finished"))
    hand.turn(121.0, node.table.tick)
    assert node.shown()[PRODUCTIVE, "r"] == 153.0


def test_the_same_process_goes_on_after_a_reconnection(node: Node, hand: Any) -> None:
    """A connection that was lost is no new process: what was counted is not counted again."""
    peer = Peer(1000, 7)
    link = node.start(0, peer)
    node.say(link, 40.0)
    node.table.lost(link)
    node.say(node.start(0, peer), 41.0, seq=2)
    assert node.shown()[PRODUCTIVE, "r"] == 41.0


def test_another_process_behind_the_same_pid_starts_again(node: Node, hand: Any) -> None:
    """In containers a sequence that starts again is the only sign of a new process: its seconds come on top."""
    peer = Peer(1000, 0)
    link = node.start(0, peer)
    node.say(link, 30.0)
    node.say(link, 40.0, seq=50)
    node.table.lost(link)
    node.say(node.start(0, peer), 2.0, seq=1)
    assert node.shown()[PRODUCTIVE, "r"] == 42.0
    assert node.table.dropped["counter_decrease"] == 0


def test_what_an_exporter_before_this_one_counted_is_not_counted_again(node: Node, hand: Any) -> None:
    """A process far on when it is first heard, as after a restart without a state file: the sum begins at 0."""
    first, second = node.start(0), node.start(1)
    node.say(first, 1000.0, seq=400, data=3.0)
    assert node.shown()[PRODUCTIVE, "r"] == 0.0
    node.say(second, 2000.0, seq=800)
    node.say(first, 1007.0, seq=401, data=4.0)
    shown = node.shown()
    assert (shown[PRODUCTIVE, "r"], shown[LOST, "r", "data"]) == (7.0, 1.0)
    node.table.lost(second)
    node.say(node.start(1), 5.0, seq=2)  # the next process of a rank that is known: all of it is new
    assert node.shown()[PRODUCTIVE, "r"] == 12.0


def test_families_of_old_clients_are_absent(node: Node, hand: Any) -> None:
    """A client that knows nothing of goodput has none, which is not 0."""
    node.say(node.start(0))
    assert not [key for key in node.shown() if key[0] in (PRODUCTIVE, LOST)]


def test_hostile_numbers_cost_themselves(node: Node, hand: Any) -> None:
    """Values that fall, are not numbers or have unknown labels are dropped and counted; other ranks' sums are exact."""
    good, bad = node.start(0), node.start(1)
    node.say(good, 1.0, data=1.0)
    node.say(bad, 5.0, data=5.0)
    for value in (4.0, "NaN", "+Inf", -1, 10**400, True, None, [1], {"": 1}):
        node.say(bad, value, data=value, lunch=1.0)
        node.say(good, 1.0, data=1.0)
    node.say(bad, **{f"layers.{i}": 1.0 for i in range(1000)})
    shown = node.shown()
    assert (shown[PRODUCTIVE, "r"], shown[LOST, "r", "data"]) == (6.0, 6.0)
    assert {key[2] for key in shown if key[0] == LOST} == set(LOST_CAUSES)
    assert node.table.dropped["bad_label"] == 9 + 64  # of a family too wide, no more than twice the limit is looked at
    assert node.table.dropped["label_limit"] == 1000 - 64
    assert node.table.dropped["counter_decrease"] == 4
    assert node.table.dropped["wrong_type"] == 13  # None is not said for a plain number


def test_a_sum_stays_a_number() -> None:
    """Two ranks that each claim nearly all a double can hold do not make the sum infinite."""
    totals = RunTotals()
    for _ in range(3):
        totals.add(
            [
                CounterDelta("productive_seconds_total", "", 1e308),
                CounterDelta("lost_seconds_total", "data", 1.0),
            ]
        )
    values = {sample.labels: sample.value for sample in totals.samples("r")}
    assert values["r",] == 1e308
    assert values["r", "data"] == 3.0


def test_phases_start_at_zero() -> None:
    """A counter that is born at 1 has no increase: every phase is there with the first one."""
    totals = RunTotals()
    totals.add([CounterDelta("phase_excess_seconds_total", "backward", 2.0)])
    values = {sample.labels[1]: sample.value for sample in totals.samples("r")}
    assert values == {**dict.fromkeys(USUAL_PHASES, 0.0), "backward": 2.0}
