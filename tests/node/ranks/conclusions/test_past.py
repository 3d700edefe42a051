"""A figure against its own past: level, usual, best, and since when it is worse."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from tachograph.node.ranks.conclusions.past import DAY, HOUR, Past, quantile

MINUTE = 60.0


def slower(level: float, usual: float) -> bool:
    return level < 0.85 * usual


class Run:
    """Notes a figure each `spacing` seconds."""

    def __init__(self, share: float = 0.5) -> None:
        self.now = 0.0
        self.past = Past(0.0, share)

    def goes(self, seconds: float, figure: float, spacing: float = 5.0) -> Past:
        end = self.now + seconds
        while self.now < end:
            self.past.note(self.now, figure, slower)
            self.now += spacing
        return self.past


def test_nothing_is_usual_in_the_first_ten_minutes() -> None:
    """Then it is the five minutes that ended five minutes ago."""
    run = Run()
    assert run.goes(10 * MINUTE - 1, 1.0).usual(run.now) is None
    assert run.goes(16, 1.0).usual(run.now) == 1.0


def test_the_level_is_the_median_of_two_minutes() -> None:
    """A stall of half a minute is not seen, one of 65 s is."""
    run = Run()
    run.goes(20 * MINUTE, 1.0)
    assert run.goes(55, 0.2).level == 1.0
    assert run.goes(10, 0.2).level == 0.2


def test_where_steps_are_slow_the_level_is_the_median_of_four() -> None:
    """One of 200 s says nothing, nor do two."""
    run = Run()
    run.goes(HOUR, 1.0, spacing=200)
    assert run.goes(400, 0.5, spacing=200).level == 1.0
    assert run.goes(200, 0.5, spacing=200).level == 0.5


@pytest.mark.parametrize(
    ("begins", "lost_per_day", "found"),
    [(0, 0.0, False), (0, 0.03, False), (0, 0.07, True), (24, 0.28, True)],
    ids=["healthy", "little", "slow", "fast"],
)
def test_noise_is_no_decline_and_a_decline_shows_through_noise(begins: int, lost_per_day: float, found: bool) -> None:
    """Of samples that scatter by 3 %: a twentieth below the best hour of the day, or not, in 32 hours."""
    noise = random.Random(lost_per_day)
    past, below = Past(0.0), False
    for minute in range(32 * 60):
        lost = lost_per_day * max(0, minute - 60 * begins) / 1440
        past.note(minute * MINUTE, 0.4 * (1 - lost) * noise.gauss(1, 0.03), slower)
        if past.best is not None:
            below = below or 1 - (past.usual(minute * MINUTE) or 0) / past.best > 0.0505
    assert below is found


def test_what_happens_now_is_kept_out_of_what_is_usual() -> None:
    """A figure that stays better is usual within the hour."""
    run = Run()
    run.goes(2 * HOUR, 1.5)
    assert run.goes(34 * MINUTE, 2.0).usual(run.now) == 1.5
    assert run.goes(2 * MINUTE, 2.0).usual(run.now) == 2.0


def test_what_was_usual_is_held_for_a_day_of_loss() -> None:
    """From the moment of the loss on; then the loss is what is usual, and how long it has lasted is still known."""
    run = Run()
    run.goes(2 * HOUR, 1.0)
    run.goes(12 * HOUR, 0.5)
    assert run.past.usual(run.now) == 1.0
    assert run.past.worse_seconds(run.now) == pytest.approx(12 * HOUR, abs=70)
    run.goes(13 * HOUR, 0.5)
    assert run.past.usual(run.now) == 0.5
    assert run.past.worse_seconds(run.now) == pytest.approx(25 * HOUR, abs=70)
    run.goes(24 * HOUR, 0.5)
    assert run.past.worse_seconds(run.now) == 0


def test_what_was_usual_is_held_for_an_hour_after_the_loss() -> None:
    """A second loss within it is measured by what was before the first; after it, the loss has never been."""
    run = Run()
    run.goes(2 * HOUR, 1.0)
    run.goes(2 * HOUR, 0.5)
    run.goes(30 * MINUTE, 1.0)
    assert (run.past.worse_seconds(run.now), run.past.usual(run.now)) == (0, 1.0)
    run.goes(5 * MINUTE, 0.5)
    assert run.past.worse_seconds(run.now) > 2 * HOUR
    run.goes(70 * MINUTE, 0.9)
    assert (run.past.worse_seconds(run.now), run.past.usual(run.now)) == (0, 0.9)


def test_a_slow_decline_is_followed() -> None:
    """Half a per cent a minute is no loss of 15 % against the hour before."""
    run = Run()
    run.goes(70 * MINUTE, 1.0)
    for minute in range(62):
        run.goes(MINUTE, 1 / (1 + 0.005 * minute))
        assert run.past.worse_seconds(run.now) == 0
    assert run.past.best == 1.0


def test_the_best_hour_is_one_of_the_last_day() -> None:
    """There is none in the first 65 minutes."""
    run = Run()
    run.goes(64 * MINUTE, 1.0)
    assert run.past.best is None
    run.goes(HOUR, 1.0)
    run.goes(DAY - 2 * HOUR, 0.9)
    assert run.past.best == 1.0
    run.goes(4 * HOUR, 0.9)
    assert run.past.best == 0.9


def test_a_pause_adds_nothing() -> None:
    """Two hours without a step change no level and nothing that is usual."""
    run = Run()
    run.goes(2 * HOUR, 1.0)
    run.now += 2 * HOUR
    assert (run.past.level, run.past.usual(run.now), run.past.worse_seconds(run.now)) == (1.0, 1.0, 0)
    run.goes(5, 0.4)
    assert (run.past.level, run.past.usual(run.now)) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("share", "figures", "found"),
    [(0.5, [1, 2, 3], 2), (0.5, [4], 4), (0.4, range(24), 9), (1.0, [1, 2], 2)],
    ids=["odd", "one", "0.4", "all"],
)
def test_a_quantile_is_one_of_the_figures(share: float, figures: Iterable[float], found: float) -> None:
    assert quantile(share, figures) == found
