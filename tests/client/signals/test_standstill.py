"""Where a rank stands still that makes no step, and that nobody looks at one that does."""

from __future__ import annotations

import math
import queue
import sys
import threading
from collections.abc import Iterator

import pytest

from tachograph.catalog.rank import PHASES
from tachograph.client.core.steps import StepRecord
from tachograph.client.signals import standstill
from tachograph.client.signals.standstill import EVERY_SECONDS, LONGEST_GAP_SECONDS, SWITCH, Standstill, whereabouts
from tachograph.text.code_line import CodeLine
from tachograph.text.code_line import whereabouts as where_in


class Watched:
    """A rank's standstill on a hand clock, with steps of 1 s; what it sees is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.looks = 0
        monkeypatch.setattr(standstill, "perf_counter", lambda: self.now)
        monkeypatch.setattr(standstill, "whereabouts", self._look)
        monkeypatch.setattr(standstill, "LONGEST_GAP_SECONDS", math.inf)  # it is not looked once a second here
        self.standstill = Standstill()
        self.still = 0.0
        monkeypatch.setattr(self.standstill._activity, "still_seconds", lambda now, since: self.still)

    def _look(self, thread: int) -> str:
        assert thread == threading.get_ident()
        self.looks += 1
        return f"look {self.looks}"

    def steps(self, count: int, *, saved: float = 0.0) -> None:
        for number in range(count):
            self.now += 1.0
            seconds = tuple({"forward": self.now, "checkpoint": saved}.get(name, 0.0) for name in PHASES)
            self.standstill.observe(StepRecord(number, self.now - 1.0, self.now, None, seconds, 0.0))
            assert self.standstill.where("forward", self.now) == ""

    def after(self, seconds: float, phase: str, since: float) -> str:
        self.now += seconds
        return self.standstill.where(phase, since)


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_a_rank_that_makes_steps_is_never_looked_at(rank: Watched) -> None:
    """Nor one whose step is late by less than ten seconds and three usual steps."""
    rank.steps(50)
    assert rank.after(12.9, "data", rank.now) == ""
    rank.steps(50)
    assert rank.looks == 0


def test_one_that_makes_none_is_looked_at_every_ten_seconds(rank: Watched) -> None:
    """Earlier than its run hangs; what was seen stands in between, unless the phase is another one."""
    rank.steps(10)
    since = rank.now
    assert rank.after(13.1, "data", since) == "look 1"
    assert rank.after(EVERY_SECONDS - 1, "data", since) == "look 1"
    assert rank.after(0.5, "forward", rank.now) == ""
    assert rank.after(0.5, "forward", rank.now) == "look 2"
    rank.steps(1)
    assert rank.after(1.0, "forward", rank.now) == ""
    assert rank.looks == 2


@pytest.mark.parametrize("phase", ["init", "checkpoint", "eval"])
def test_a_pause_is_long_after_a_minute_and_twice_the_longest(rank: Watched, phase: str) -> None:
    """And a step has all of its time again after it."""
    rank.steps(10)
    since = rank.now
    assert rank.after(60.0, phase, since) == ""
    assert rank.after(40.0, phase, since) == "look 1"
    since = rank.now
    assert rank.after(12.0, "forward", since) == ""
    since = rank.now
    assert rank.after(190.0, phase, since) == ""
    assert rank.after(20.0, phase, since) == "look 2"


def test_one_that_usually_takes_seconds_is_long_after_half_a_minute(rank: Watched) -> None:
    """As CheckpointSlow has it, whose text tells the line."""
    rank.steps(10)
    since = rank.now
    assert rank.after(2.0, "checkpoint", since) == ""
    rank.steps(1)
    since = rank.now
    assert rank.after(30.0, "checkpoint", since) == ""
    assert rank.after(0.5, "checkpoint", since) == "look 1"


def test_a_save_in_which_nothing_is_done_has_the_time_of_a_step(rank: Watched) -> None:
    """How long saves take is known from steps, too: one of less than a second is rarely seen."""
    rank.steps(10, saved=1.5)
    since, rank.still = rank.now, 10.1
    assert rank.after(12.9, "checkpoint", since) == ""
    assert rank.standstill.still == 10.1
    assert rank.after(0.2, "checkpoint", since) == "look 1"
    assert rank.standstill.stall == (since, False)
    rank.still = 0.0
    assert rank.after(1.0, "checkpoint", since) == "", "it goes on"
    assert rank.after(16.0, "checkpoint", since) == "look 2"
    assert rank.standstill.stall == (since, True)
    rank.still = 31.1
    assert rank.after(1.0, "data", rank.now) == ""
    assert rank.standstill.still == 0.0


def test_a_save_in_which_nothing_is_done_may_take_twice_the_longest(rank: Watched) -> None:
    """Where that is more; as any other."""
    rank.steps(10, saved=8.0)
    since, rank.still = rank.now, 15.0
    assert rank.after(15.9, "checkpoint", since) == ""
    assert rank.after(0.2, "checkpoint", since) == "look 1"


@pytest.mark.parametrize("asked", [0.0, 0.05])
def test_a_first_save_has_its_time_however_still(rank: Watched, asked: float) -> None:
    """Nobody knows how long it takes; nor where a loop only asked so far, in phase `checkpoint`, whether to save."""
    rank.steps(10, saved=asked)
    since, rank.still = rank.now, 50.0
    assert rank.after(59.0, "checkpoint", since) == ""
    assert rank.after(2.0, "checkpoint", since) == "look 1"
    assert rank.standstill.stall == (since, True)


def test_a_phase_around_nothing_is_no_save(rank: Watched) -> None:
    """As where each step asks, in the phase, whether it is time to save: the first that does is the first."""
    for number in range(10):
        rank.steps(1, saved=0.01 * number)
    since, rank.still = rank.now, 50.0
    assert rank.after(59.0, "checkpoint", since) == ""


def test_before_the_first_step_a_phase_may_take_a_minute(rank: Watched) -> None:
    """Whatever it is: a first step compiles."""
    since = rank.now
    assert rank.after(60.0, "forward", since) == ""
    assert rank.after(1.0, "forward", since) == "look 1"


@pytest.mark.parametrize(("phase", "limit"), [("forward", 13.0), ("init", 60.0)])
def test_time_in_which_the_process_did_not_run_does_not_count(
    rank: Watched, monkeypatch: pytest.MonkeyPatch, phase: str, limit: float
) -> None:
    """A process that was stopped or starved looks first of all when it wakes, before the rank could go on."""
    monkeypatch.setattr(standstill, "LONGEST_GAP_SECONDS", LONGEST_GAP_SECONDS)
    rank.steps(10)
    since = rank.now
    assert rank.after(600.0, phase, since) == ""
    seconds = LONGEST_GAP_SECONDS
    while rank.after(1.0, phase, since) == "":
        seconds += 1.0
    assert limit - 1.0 <= seconds <= limit
    assert rank.standstill.stall is not None
    stood = rank.standstill.stall
    assert rank.after(600.0, phase, since) == "look 2", "one that stands still does so however long nobody looks"
    assert rank.standstill.stall == stood


def test_a_variable_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """TACHOGRAPH_STACKS=0."""
    monkeypatch.setenv(SWITCH, "0")
    rank = Watched(monkeypatch)
    rank.steps(10)
    assert rank.after(100.0, "data", rank.now) == ""
    assert rank.looks == 0


@pytest.fixture
def stuck() -> Iterator[tuple[threading.Thread, int]]:
    """A thread that waits in a queue of the standard library, and the line of this file from which it does."""
    line = sys._getframe().f_lineno + 4
    items: queue.SimpleQueue[None] | queue.Queue[None] = queue.Queue()

    def load_shard() -> None:
        items.get()

    thread = threading.Thread(target=load_shard, daemon=True)
    thread.start()
    while "wait" not in whereabouts(thread.ident or 0):
        assert thread.is_alive()
    yield thread, line
    items.put(None)
    thread.join(60)


def test_the_users_line_comes_first_and_what_blocks_second(stuck: tuple[threading.Thread, int]) -> None:
    """Names of files and functions only."""
    thread, line = stuck
    seen = whereabouts(thread.ident or 0)
    assert seen.startswith(f"test_standstill.py:{line} load_shard, in threading.py:")
    assert seen.endswith(" wait")


def test_our_own_lines_are_not_shown() -> None:
    """A collective waits inside what is put around PyTorch's call; PyTorch's function is what blocks."""
    ours, torch = CodeLine(standstill.__file__, 150, "wait"), CodeLine("/x/site-packages/torch/d.py", 7, "all_reduce")
    users = CodeLine("/home/u/train.py", 22, "step")
    assert where_in([ours, torch, users]) == "train.py:22 step, in d.py:7 all_reduce"
    assert where_in([ours, users]) == "train.py:22 step"


def test_a_thread_that_is_gone_is_nowhere() -> None:
    """As where a recorder was made on a thread that has ended."""
    assert whereabouts(0) == ""
