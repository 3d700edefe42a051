"""Numbers that all ranks must share."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from tachograph.client.signals.invariants import NAME_LENGTH, NAME_LIMIT, SHORTEST_SECONDS, Invariants


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def told(invariants: Invariants) -> dict[str, tuple[float, int]]:
    """Return name -> (value, step)."""
    families: Any = dict(invariants.metrics())
    if not families:
        return {}
    assert families.keys() == {"invariant", "invariant_step"}
    return {name: (value, families["invariant_step"][name]) for name, value in families["invariant"].items()}


def test_values() -> None:
    """Integers of any size count modulo 2^53, numbers as they are; without a step it is a constant of the run."""
    invariants = Invariants(Clock())
    assert told(invariants) == {}
    for name, value in (("zero", 0), ("batch", 1024), ("huge", 2**64 + 5), ("negative", -1), ("float", -0.25)):
        assert invariants.set(name, value, None)
    assert told(invariants) == {
        "zero": (0, 0), "batch": (1024, 0), "huge": (5, 0), "negative": (2**53 - 1, 0), "float": (-0.25, 0),
    }  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1", True, [1], object(), 1j])
def test_what_cannot_be_compared_is_refused(value: object) -> None:
    """NaN equals nothing, not even the NaN of another rank."""
    invariants = Invariants(Clock())
    assert not invariants.set("name", value, 1)
    assert told(invariants) == {}


@pytest.mark.parametrize("step", [-1, 1.5, True, 2**60, "3"])
def test_steps_that_are_none_are_refused(step: Any) -> None:
    """A step is a count."""
    assert not Invariants(Clock()).set("name", 1, step)


@pytest.mark.parametrize("name", ["", "x" * (NAME_LENGTH + 1), 5, None])
def test_names_that_are_none_are_refused(name: Any) -> None:
    """A name fits a label."""
    assert not Invariants(Clock()).set(name, 1, 1)


def test_names_are_few() -> None:
    """The seventeenth name is refused; those there are live on."""
    invariants = Invariants(Clock())
    assert all(invariants.set(f"name {position}", position, 0) for position in range(NAME_LIMIT))
    assert not invariants.set("one more", 1, 0)
    assert invariants.set("name 0", 5, 0)
    assert told(invariants)["name 0"] == (5, 0)
    assert len(told(invariants)) == NAME_LIMIT


def test_what_is_set_seldom_is_told_at_once() -> None:
    """A checksum every half minute, a step that goes back after a rollback, a new value of a constant."""
    clock, invariants = Clock(), Invariants()
    invariants = Invariants(clock)
    for step, value in ((100, 1), (200, 2), (300, 3), (150, 4)):
        clock.now += 30
        assert invariants.set("checksum", value, step)
        assert told(invariants)["checksum"] == (value, step)
    assert invariants.set("checksum", 9, 150)
    assert told(invariants)["checksum"] == (9, 150)


def shown(pace: float, seconds: float, since: float = 0.0) -> list[tuple[float, int]]:
    """Return (time, step) of all that a rank tells that sets a value at every step."""
    clock = Clock()
    invariants = Invariants(clock)
    found: list[tuple[float, int]] = []
    for step in range(int(seconds * pace)):
        clock.now = since + step / pace
        invariants.set("step", step, step)
        if not found or told(invariants)["step"][1] != found[-1][1]:
            found.append((clock.now - since, step))
    return found


@pytest.mark.parametrize("pace", [0.01, 0.5, 3.0, 100.0, 1000.0])
def test_what_is_set_often_stays_long_enough_to_be_scraped(pace: float) -> None:
    """At any pace: a step stays for at least two scrapes, and not for more than two blocks."""
    told_at = [time for time, _ in shown(pace, max(300.0, 10 / pace)) if time > 60]
    gaps = [later - earlier for earlier, later in pairwise(told_at)]
    assert min(gaps) >= SHORTEST_SECONDS
    assert max(gaps) <= max(2 * SHORTEST_SECONDS, 1 / pace) + 2 / pace


def test_ranks_tell_the_same_steps() -> None:
    """Ranks in step that share no clock and differ by 2 % in what they measure have most of their steps in common."""
    first, second = (dict(map(reversed, shown(pace, 600))) for pace in (84.5, 86.2))  # type: ignore[arg-type]
    common = first.keys() & second.keys()
    assert len(common) >= len(first) // 2
    assert shown(7.0, 200) == shown(7.0, 200, since=0.0)
    assert [step for _, step in shown(7.0, 200)] == [step for _, step in shown(7.0, 200, since=1e6)]
