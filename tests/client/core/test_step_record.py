"""The ring between the training thread and the observers of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tachograph.catalog.rank import PHASES, STEP_TAGS
from tachograph.client.core.counters import Counter
from tachograph.client.core.steps import RING_LIMIT, StepRecord
from tachograph.client.hello.identity import discover
from tachograph.client.hello.workload import Workload
from tachograph.client.transport import guarded
from tachograph.client.transport.guarded import Guarded
from tachograph.client.transport.rank_state import RankState


@pytest.fixture
def report() -> RankState:
    """A rank that speaks to nobody."""
    return RankState(discover({"run": "test", "rank": 0}, {}), Workload(1))


class Observer:
    """Keeps what it hears; fails where `fails` says so."""

    def __init__(self, fails: Callable[[StepRecord], bool] = lambda record: False) -> None:
        self.heard: list[StepRecord] = []
        self.calls = 0
        self._fails = fails

    def observe(self, record: StepRecord) -> None:
        self.calls += 1
        if self._fails(record):
            raise ValueError("odd step")
        self.heard.append(record)


def steps(report: RankState, count: int) -> None:
    for _ in range(count):
        with report.step, report.clock.phases["forward"]:
            pass


def test_observers_hear_of_every_step_once_and_in_order(report: RankState) -> None:
    """However the frames fall, no step is heard twice or left out, and seconds never fall."""
    observer = Observer()
    report.observers.add(observer)
    for count in (0, 3, 1, 0, 7):
        steps(report, count)
        report.frame()
    assert [record.number for record in observer.heard] == list(range(11))
    for before, after in zip(observer.heard, observer.heard[1:], strict=False):
        assert before.ended <= after.began <= after.ended
        assert all(then <= now for then, now in zip(before.seconds, after.seconds, strict=True))
    assert len(observer.heard[0].seconds) == len(PHASES)


def test_the_last_record_and_the_clock_agree(report: RankState) -> None:
    """What a record says of every phase is what the frame says, but for the time since."""
    observer = Observer()
    report.observers.add(observer)
    steps(report, 5)
    told = report.frame()["metrics"]["phase_seconds_total"]  # type: ignore[index]
    for name, seconds in zip(PHASES, observer.heard[-1].seconds, strict=True):
        assert told.get(name, 0.0) >= seconds
    assert told["forward"] == observer.heard[-1].seconds[PHASES.index("forward")]


def test_a_ring_that_nobody_empties_costs_records_not_memory(report: RankState) -> None:
    """Steps beyond it are counted as dropped, and still as steps."""
    steps(report, RING_LIMIT + 3)
    state = report.frame()
    assert (state["dropped"], state["metrics"]["steps_total"]) == (3, RING_LIMIT + 3)  # type: ignore[index]
    assert report.frame()["metrics"]["tagged_steps_total"] == {"warm-up": 1}  # type: ignore[index]


def test_an_observer_that_fails_is_dropped_after_five_in_a_row(report: RankState) -> None:
    """Each failure is counted; the others, and the frame, go on; one that recovers in between stays."""
    broken, shaky, sound = Observer(lambda record: True), Observer(lambda record: record.number % 5 != 0), Observer()
    for observer in (broken, shaky, sound):
        report.observers.add(observer)
    steps(report, 20)
    state: dict[str, Any] = report.frame()
    assert (broken.calls, shaky.calls, len(sound.heard)) == (guarded.FAILURES, 20, 20)
    assert state["dropped"] == guarded.FAILURES + 16
    assert state["histograms"]["step_seconds"]["count"] == 19


def test_a_part_counts_its_own_failures() -> None:
    """Four failures, a success, four failures: it stays; a fifth in a row ends it. Each part counts for itself."""
    dropped = Counter()
    plan = iter([True] * 4 + [False] + [True] * 6)
    parts: Guarded[str] = Guarded(dropped, "a", "b")
    called = []

    def use(part: str) -> None:
        called.append(part)
        if part == "a" and next(plan):
            raise OSError

    for _ in range(11):
        parts.each(use)
    assert (called.count("a"), called.count("b"), dropped.count) == (10, 11, 9)


def test_tags_of_the_recorder_are_words_of_the_catalog() -> None:
    """What tags by itself uses no other word."""
    from tachograph.client.core.steps import FIRST_TAG

    assert {FIRST_TAG, "eval", "checkpoint", "gc"} <= set(STEP_TAGS)
