"""What precedes failures, on made-up pasts with known answers."""

from __future__ import annotations

import math
import random

import pytest

from tachograph.history.causes import HANDFUL, Precedence, periodicities, precedences
from tachograph.history.chance import at_least, gathered, rate_ratio, some_node
from tachograph.history.recorded import EVENTS, RunFailure, RunPast, merged

MINUTES = [60.0 * minute for minute in range(1, 10_001)]
END = MINUTES[-1]


def run(failures: list[float], **events: list[float]) -> RunPast:
    found = {kind: events.get(kind, []) for kind in EVENTS}
    return RunPast(list(MINUTES), [RunFailure(at, "RankDead") for at in sorted(failures)], [60.0], found)


def verdict(kind: str, *runs: RunPast, within: float = 600) -> Precedence:
    found = precedences({str(number): one for number, one in enumerate(runs)}, within)
    return next(one for one in found if one.event == kind)


def events(number: int, chance: random.Random) -> list[float]:
    return sorted(chance.uniform(0, END) for _ in range(number))


def test_what_precedes_is_found_and_what_does_not_is_not() -> None:
    """Of 100 made-up runs with three failures in four soon after a save all are found; evaluations hardly ever."""
    found = {"save": 0, "evaluation": 0}
    for seed in range(100):
        chance = random.Random(seed)
        saves, evaluations = events(100, chance), events(100, chance)
        failures = [at + chance.uniform(1, 599) for at in chance.sample(saves, 15)] + events(5, chance)
        past = run(failures, save=saves, evaluation=evaluations)
        for kind in found:
            found[kind] += verdict(kind, past).verdict == "precedes"
    assert found["save"] == 100
    assert found["evaluation"] <= 3


def test_the_interval_holds_the_truth() -> None:
    """At a true ratio of 3, in 95 of 100 cases at least; the estimate is about right."""
    held, estimates = 0, []
    for seed in range(100):
        chance = random.Random(seed)
        shares = [chance.uniform(0.05, 0.4) for _ in range(40)]
        count = sum(chance.random() < 3 * share / (3 * share + 1 - share) for share in shares)
        ratio, low, high = rate_ratio(shares, count, 0.95)
        held += low <= 3 <= high
        estimates.append(ratio)
    assert held >= 90
    assert sorted(estimates)[50] == pytest.approx(3, rel=0.2)


def test_an_interval_against_a_table() -> None:
    """Of equal shares it is Clopper and Pearson's: 8 of 10 at a half is 0.444 to 0.975 (95 %)."""
    ratio, low, high = rate_ratio([0.5] * 10, 8, 0.95)
    assert (ratio, low, high) == pytest.approx((4.0, 0.4439 / 0.5561, 0.9748 / 0.0252), rel=0.01)
    assert rate_ratio([0.5] * 10, 0, 0.95)[:2] == (0.0, 0.0)
    assert rate_ratio([0.5] * 10, 10, 0.95)[2] == math.inf


@pytest.mark.parametrize("failing", [0, 1, 4])
def test_few_failures_have_no_ratio(failing: int) -> None:
    """Whatever they come after."""
    saves = [1000.0 * number for number in range(1, 500)]
    found = verdict("save", run([at + 10 for at in saves[:failing]], save=saves))
    assert (found.verdict, found.ratio) == ("too few", None)


def test_few_events_have_no_ratio() -> None:
    """Though every failure comes after one."""
    chance = random.Random(1)
    changes = [100_000.0, 200_000.0]
    found = verdict("batch", run([100_010.0, 200_010.0, *events(20, chance)], batch=changes))
    assert (found.verdict, found.ratio, found.events) == ("too few", None, 2)
    assert found.after >= 2


def test_an_event_that_is_always_near_says_nothing() -> None:
    """Where all of the time is soon after one, whatever fails does so soon after one."""
    saves = [60.0 * minute for minute in range(10_000)]
    found = verdict("save", run(events(20, random.Random(2)), save=saves))
    assert (found.verdict, found.ratio) == ("always", None)


def test_soon_is_less_where_events_are_dense() -> None:
    """Half the usual time between them at most, so that there is something to compare with."""
    saves = [600.0 * number for number in range(1000)]
    assert verdict("save", run(events(20, random.Random(3)), save=saves), within=1200).within == 300


def test_a_run_that_fails_more_often_is_no_cause() -> None:
    """One run saves often and fails often, one does neither: within each, saves do not matter."""
    chance = random.Random(4)
    frail = run(events(60, chance), save=events(300, chance))
    robust = run(events(2, chance), save=events(3, chance))
    assert verdict("save", frail, robust).verdict == "no difference"


def test_failures_of_what_did_not_run_do_not_count() -> None:
    """An alert long after the run's last minute is of something else."""
    past = run([END + 5000 + number for number in range(0, 20_000, 1000)], save=events(100, random.Random(5)))
    assert verdict("save", past).failures == 0


def test_runs_that_fail_together_have_one_cause() -> None:
    """Eight runs that an outage ends at once are not regular by that, and have failed after one save, not eight."""
    assert not periodicities({str(number): run([400_000.0 + 12 * number]) for number in range(8)})
    saves = [3600.0 * number for number in range(1, 160)]
    outages = [50_000.0, 200_200.0, *(3600.0 * number + 300 for number in (50, 90, 120))]
    found = verdict("save", *(run([at + number for at in outages], save=saves) for number in range(8)))
    assert (found.verdict, found.failures, found.after) == ("too few", 5, 3)


def test_regular_uptimes_and_hours() -> None:
    """A failure six hours after each start; failures at three in the morning; neither in what is random."""
    starts = [30_000.0 * number + 60 for number in range(20)]
    past = RunPast(
        list(MINUTES), [RunFailure(at + 21_600 + 10 * place, "RunHung") for place, at in enumerate(starts)], starts
    )
    (uptime,) = [one for one in periodicities({"r": past}) if one.period == "uptime"]
    assert uptime.at == pytest.approx(21_700, abs=100)
    nights = [86_400.0 * day + 3 * 3600 + 200 * (day % 3) for day in range(1, 7)]
    found = {one.period: one for one in periodicities({"r": run(nights)})}
    assert found["day"].at == pytest.approx(3 * 3600 + 200, abs=120)
    assert sum(bool(periodicities({"r": run(events(20, random.Random(seed)))})) for seed in range(40)) <= 4
    assert not periodicities({"r": run(nights[: HANDFUL - 1])})


def crash_loops(chance: random.Random) -> RunPast:
    """Return a run that fails at random, and then a few times more, twenty minutes or so after each start."""
    failures = []
    for begun in events(7, chance):
        between = chance.uniform(300, 3000)
        failures += [begun + 1000 + place * between for place in range(chance.randint(3, 8))]
    return run([at for at in merged(failures, 900) if at < END])


def test_a_loop_of_crashes_is_no_regularity() -> None:
    """It has one cause: of 60 runs with such loops five are called regular at most."""
    assert sum(bool(periodicities({"r": crash_loops(random.Random(seed))})) for seed in range(60)) <= 5


def test_chances_of_nodes() -> None:
    """Against numbers that are known: of 10 throws of a coin 8 or more heads; any count of thousands."""
    assert at_least(8, 10, 0.5) == pytest.approx(56 / 1024)
    assert at_least(0, 10, 0.5) == pytest.approx(1)
    assert some_node(5, 20, 1000) < 1e-6
    assert some_node(3, 3000, 1000) == 1
    assert at_least(1500, 3000, 0.5) == pytest.approx(0.507, abs=0.001)
    assert some_node(4, 4, 1) == 1


def test_times_that_gather() -> None:
    """About a moment of the period, also across its end."""
    at, chance = gathered([3590, 7195, 10_805, 14_410, 18_000], 3600)
    assert min(at, 3600 - at) < 10
    assert chance < 0.01
    assert gathered([0, 900, 1800, 2700], 3600)[1] > 0.5


def test_what_follows_closely_is_one_event() -> None:
    """A storm of Xids is one hardware event."""
    assert merged([1000, 1100, 1250, 2000, 1.0]) == [1.0, 1000, 2000]
