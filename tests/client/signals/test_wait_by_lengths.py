"""When lengths are taken for waits, and which steps and collectives a figure is made of."""

from __future__ import annotations

import pytest

from tachograph.client.signals.wait_by_lengths import BLIND, TRIAL_STEPS, Length, WaitByLengths

UNIX = 1_795_262_155.0


class Rank:
    """A rank that makes a step a second, with one collective of 0.1 s in it, and remembers the last 100."""

    def __init__(self) -> None:
        self.now = 0.0
        self.alone = True
        self.waits = WaitByLengths(lambda: self.alone, lambda: self.now, lambda: UNIX + self.now)
        self.collectives: list[Length] = []

    def steps(self, count: int, *lengths: float | None, ordinary: bool = True) -> None:
        """Make steps with these collectives in each, by default one of 0.1 s."""
        for _ in range(count):
            for seconds in lengths or (0.1,):
                self.collectives.append(Length(UNIX + self.now + 0.5, seconds))
            if ordinary:
                self.waits.step(self.now, self.now + 1)
            self.now += 1

    def read(self) -> float | None:
        """Look, and return the figure."""
        self.waits.read(self.collectives[-100:])
        return self.waits.wait()


@pytest.fixture
def rank() -> Rank:
    """A rank whose waits are known by lengths."""
    one = Rank()
    one.steps(1)
    one.read()
    one.steps(TRIAL_STEPS)
    assert one.waits.chosen
    one.read()
    return one


def test_the_choice_is_made_once() -> None:
    """Ten steps after the first reading, and for good: a wait that is measured later on one rank changes nothing."""
    rank = Rank()
    rank.steps(100)
    assert not rank.waits.chosen
    rank.read()
    rank.steps(TRIAL_STEPS - 1)
    assert not rank.waits.chosen
    rank.steps(1)
    assert rank.waits.chosen
    rank.alone = False
    rank.steps(1)
    assert rank.waits.chosen

    other = Rank()
    other.alone = False
    other.read()
    other.steps(TRIAL_STEPS)
    other.alone = True
    other.steps(TRIAL_STEPS)
    assert not other.waits.chosen


def test_the_lower_of_two_readings(rank: Rank) -> None:
    """No step is in both, and none before the second."""
    rank.steps(10, 0.3)
    assert rank.read() is None
    rank.steps(10, 0.1, 0.1)
    assert rank.read() == pytest.approx(0.2)
    rank.steps(10, 0.4)
    assert rank.read() == pytest.approx(0.2)
    rank.steps(10, 0.5)
    assert rank.read() == pytest.approx(0.4)


def test_only_what_is_recent_counts(rank: Rank) -> None:
    """The last 20 s of a reading, as of waits that are measured."""
    for _ in range(2):
        rank.steps(30, 0.9)
        rank.steps(20, 0.1)
        figure = rank.read()
    assert figure == pytest.approx(0.1)


def test_only_ordinary_steps_count(rank: Rank) -> None:
    """The collectives of an evaluation or of a step that compiles belong to none of them."""
    for _ in range(2):
        rank.steps(5)
        rank.steps(3, 0.9, ordinary=False)
        rank.steps(5)
        figure = rank.read()
    assert figure == pytest.approx(0.1)


def test_steps_without_a_collective_wait_for_nobody(rank: Rank) -> None:
    """They are part of the mean, if others have some."""
    for _ in range(2):
        for _ in range(10):
            rank.steps(1, 0.4)
            rank.now += 1
            rank.waits.step(rank.now - 1, rank.now)
        figure = rank.read()
    assert figure == pytest.approx(0.2)


def test_collectives_that_leave_no_trace_are_no_figure(rank: Rank) -> None:
    """Those of CUDA graphs: 0 would make a rank the one that waits least. What an evaluation has is not the steps'."""
    for _ in range(3):
        rank.steps(1, 0.4, ordinary=False)
        for _ in range(10):
            rank.now += 1
            rank.waits.step(rank.now - 1, rank.now)
        assert rank.read() is None
    rank.waits.read([])
    assert rank.waits.wait() is None


def test_a_collective_that_ends_later_is_in_a_later_reading(rank: Rank) -> None:
    """Its step waits for it; three steps have to be known."""
    rank.steps(10)
    rank.read()
    rank.steps(2)
    rank.steps(2, None)
    assert rank.read() is None
    rank.collectives[-2:] = [one._replace(seconds=0.7) for one in rank.collectives[-2:]]
    assert rank.read() == pytest.approx(0.1)
    rank.steps(10, 0.8)
    assert rank.read() == pytest.approx((0.1 * 2 + 0.7 * 2) / 4)


def test_what_was_forgotten_is_in_no_figure(rank: Rank) -> None:
    """Of a step whose first collectives fell out of the ring the last one is not taken for all."""
    for _ in range(2):
        rank.steps(30, *[0.01] * 15)
        figure = rank.read()
    assert figure == pytest.approx(0.15)
    for _ in range(3):
        rank.steps(10, *[0.01] * 60)
        rank.read()
    assert rank.waits._last is not None
    assert rank.waits._last[1] == pytest.approx(0.6)


def test_a_figure_stays_for_three_readings(rank: Rank) -> None:
    """Of collectives that get no length any more it is soon gone, and back with two readings in a row."""
    for _ in range(3):
        rank.steps(15)
        rank.read()
    rank.steps(45, None)
    assert rank.read() == pytest.approx(0.1)
    rank.steps(1, None)
    assert rank.read() is None
    rank.steps(15)
    assert rank.read() is None
    rank.steps(15)
    assert rank.read() == pytest.approx(0.1)


def test_a_clock_that_is_set_gives_no_wrong_figure(rank: Rank) -> None:
    """Collectives that seem to be of another hour belong to no step."""
    rank.steps(10)
    rank.read()
    rank.collectives = [one._replace(enqueued=one.enqueued + 3600) for one in rank.collectives]
    rank.steps(10)
    assert rank.read() is None


def test_a_ring_that_holds_less_than_a_step_is_said_once(rank: Rank, caplog: pytest.LogCaptureFixture) -> None:
    """Else nobody would know why no late rank is ever found."""
    for _ in range(2 * BLIND):
        rank.steps(1, *[0.001] * 101)
        rank.read()
    (said,) = [record.getMessage() for record in caplog.records if "TORCH_FR_BUFFER_SIZE" in record.getMessage()]
    assert "more collectives than the 100 that PyTorch remembers" in said
