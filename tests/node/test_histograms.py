"""Step times: exponential buckets of ranks become one histogram of the run, exactly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachograph.catalog.train import TRAIN_STEP_SECONDS
from tachograph.node.histograms import BOUNDS, Buckets, RunHistogram, from_classic, parse
from tachograph.wire import (
    FINE_INDEX_RANGE,
    FINE_SCHEMA,
    HISTOGRAM_INDEX_RANGE,
    HISTOGRAM_SCHEMA,
    MAX_FINE_BUCKETS,
    bucket_index,
    reduced,
)


def frame(values: list[float]) -> dict[str, object]:
    return {"schema": 3, "sum": sum(values), "count": len(values), "buckets": counted(values, HISTOGRAM_SCHEMA)}


def fine_frame(values: list[float]) -> dict[str, object]:
    return frame(values) | {"fine": counted(values, FINE_SCHEMA)}


def counted(values: list[float], schema: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        key = str(bucket_index(value, schema))
        counts[key] = counts.get(key, 0) + 1
    return counts


@pytest.mark.parametrize("said", [frame, fine_frame])
@settings(deadline=None)
@given(values=st.lists(st.floats(min_value=1e-4, max_value=1e4), max_size=50))
def test_merging_is_exact(values: list[float], said: Callable[[list[float]], object]) -> None:
    """Each exposed bucket holds just the observations up to its bound: reducing to schema 1 loses no count.

    A value within 1e-9 of a bound may fall on either side, as the client's own logarithm decides.
    """
    histogram = RunHistogram()
    histogram.add(parse(said(values)), Buckets())
    sample = histogram.sample(TRAIN_STEP_SECONDS, ("r",))
    for bound, count in zip(BOUNDS, sample.cumulative, strict=False):
        assert sum(v <= bound * (1 - 1e-8) for v in values) <= count <= sum(v <= bound * (1 + 1e-8) for v in values)
    assert sample.cumulative[-1] == len(values)
    assert sample.sum == pytest.approx(sum(values))


@pytest.mark.parametrize("power", range(-14, 15))
def test_a_bound_is_inclusive(power: int) -> None:
    """A step of exactly a bucket's upper bound counts in that bucket (`le`)."""
    histogram = RunHistogram()
    histogram.add(parse(frame([2.0 ** (power / 2)])), Buckets())
    cumulative = histogram.sample(TRAIN_STEP_SECONDS, ("r",)).cumulative
    assert cumulative.index(1) == power + 14


def test_ranks_add_and_a_leaving_rank_takes_nothing_away() -> None:
    """The run's histogram grows by what each rank observed since its last state, and never falls."""
    histogram = RunHistogram()
    first, second = parse(frame([0.5, 0.5])), parse(frame([0.5, 0.5, 8.0]))
    histogram.add(first, Buckets())
    histogram.add(second, first)
    histogram.add(second, second)  # a repeated frame adds nothing
    histogram.add(parse(frame([0.5])), Buckets())  # another rank
    assert histogram.sample(TRAIN_STEP_SECONDS, ("r",)).cumulative[-1] == 4
    assert histogram.sample(TRAIN_STEP_SECONDS, ("r",)).sum == 10.0 - 0.5


def test_fine_buckets_are_exact() -> None:
    """The native histogram has the buckets that a rank sent; beyond 3.9 ms and 512 s they are the outermost."""
    histogram = RunHistogram()
    steps = [0.3, 0.3001, 0.31, 2.0, 0.001, 2000.0]
    histogram.add(parse(fine_frame(steps)), Buckets())
    low, high = FINE_INDEX_RANGE
    assert histogram.counts == {-55: 2, -54: 1, 32: 1, low: 1, high: 1}
    assert reduced(histogram.counts) == {-13: 3, 8: 1, low // 4: 1, high // 4: 1}


def test_a_rank_without_fine_buckets_adds_to_the_same_histogram() -> None:
    """Its steps are in the middle of its own buckets: up to 7 % off, and in the right classic bucket."""
    histogram = RunHistogram()
    histogram.add(parse(frame([0.3, 0.3, 1e-6, 1e6])), Buckets())
    low, high = FINE_INDEX_RANGE
    assert histogram.counts == {-54: 2, low: 1, high: 1}
    histogram.add(parse(fine_frame([0.3])), Buckets())
    assert (histogram.classic()[11], BOUNDS[10] < 0.3 < BOUNDS[11]) == (3, True)


def test_a_rank_that_begins_to_send_fine_buckets() -> None:
    """As after an upgrade of the exporter alone: what it observed before is neither counted again nor missed."""
    histogram = RunHistogram()
    before = parse(frame([0.3, 0.3, 8.0]))
    now = parse(fine_frame([0.3, 0.3, 8.0, 0.3]))
    assert not now.fell_from(before)
    assert parse(fine_frame([0.3, 8.0])).fell_from(before)
    histogram.add(before, Buckets())
    histogram.add(now, before)
    assert (histogram.counts, histogram.sum) == ({-54: 3, 94: 1}, pytest.approx(8.9))
    back = parse(frame([0.3, 0.3, 8.0, 0.3, 0.3]))
    assert not back.fell_from(now)
    histogram.add(back, now)
    assert histogram.counts == {-54: 4, 94: 1}


@settings(deadline=None)
@given(st.dictionaries(st.integers(*FINE_INDEX_RANGE), st.integers(1, 9)), st.integers(0, 2**53))
def test_what_an_earlier_release_kept_is_shown_again(counts: dict[int, int], many: int) -> None:
    """Its classic counts are all it knew; they come back in the same classic buckets."""
    before = RunHistogram(counts | {0: many})
    after = RunHistogram(from_classic(before.classic()))
    assert after.classic() == before.classic()


@settings(deadline=None)
@given(start=st.floats(0, 1e6), sums=st.lists(st.floats(0, 1e6), min_size=1))
def test_the_sum_never_falls_by_rounding(start: float, sums: list[float]) -> None:
    """Not by the last digit either: Prometheus takes any fall for a reset, and counts the whole sum once more."""
    run = RunHistogram(sum=start)
    for total in sums:
        shown = run.sum
        run.add(Buckets({}, total), Buckets({}, total))
        assert run.sum == shown
        run.add(Buckets({}, total), Buckets({}, 0.0))
        assert run.sum >= shown


def test_a_histogram_that_fell_is_seen() -> None:
    """A lower count in any bucket, or a lower sum, is no later state of the same process."""
    before = parse(frame([0.5, 1.0]))
    assert parse(frame([0.5])).fell_from(before)
    assert parse({"schema": 3, "sum": 1.0, "buckets": frame([0.5, 1.0])["buckets"]}).fell_from(before)
    assert not parse(frame([0.5, 1.0, 1.0])).fell_from(before)
    assert not before.fell_from(Buckets())


LOW, HIGH = HISTOGRAM_INDEX_RANGE


@pytest.mark.parametrize(
    "value",
    [
        7,
        {},
        {"schema": 2, "sum": 1, "buckets": {"0": 1}},
        {"schema": 3, "sum": -1, "buckets": {"0": 1}},
        {"schema": 3, "sum": "NaN", "buckets": {"0": 1}},
        {"schema": 3, "sum": 10**400, "buckets": {"0": 1}},
        {"schema": 3, "buckets": {"0": 1}},
        {"schema": 3, "sum": 1, "buckets": [1]},
        {"schema": 3, "sum": 1, "buckets": {"0": -1}},
        {"schema": 3, "sum": 1, "buckets": {"0": 1.5}},
        {"schema": 3, "sum": 1, "buckets": {"0": True}},
        {"schema": 3, "sum": 1, "buckets": {"zero": 1}},
        {"schema": 3, "sum": 1, "buckets": {str(HIGH + 1): 1}},
        {"schema": 3, "sum": 1, "buckets": {str(LOW - 1): 1}},
        {"schema": 3, "sum": 1, "buckets": {"0": 1}, "fine": [1]},
        {"schema": 3, "sum": 1, "buckets": {"0": 1}, "fine": 7},
        {"schema": 3, "sum": 1, "buckets": {"0": 1}, "fine": {"0": -1}},
        {"schema": 3, "sum": 1, "buckets": {"0": 1}, "fine": {"0": 2.5}},
        {"schema": 3, "sum": 1, "buckets": {"0": 1}, "fine": {"0": "NaN"}},
        {"schema": 3, "sum": 1, "buckets": {"0": 1}, "fine": {"0": 2**53 + 1}},
        {"schema": 3, "sum": 1, "buckets": {"0": 1}, "fine": {"0.5": 1}},
        {"schema": 3, "sum": 1, "buckets": {"0": 1}, "fine": {str(FINE_INDEX_RANGE[1] + 1): 1}},
        {"schema": 3, "sum": 1, "buckets": {"0": 1}, "fine": {str(FINE_INDEX_RANGE[0] - 1): 1}},
        {"schema": 3, "sum": 1, "buckets": {"0": 1}, "fine": {str(n): 1 for n in range(MAX_FINE_BUCKETS + 1)}},
        {"schema": 3, "sum": "+Inf", "buckets": {"0": 1}, "fine": {"0": 1}},
    ],
)
def test_what_is_no_histogram_is_refused(value: object) -> None:
    """Anything but schema 3, a finite sum and whole counts of known buckets is a ValueError."""
    with pytest.raises(ValueError, match=r"expected|invalid literal"):
        parse(value)


def test_the_outermost_buckets_are_taken() -> None:
    """The clamped ends of the client's range fall into the first bucket and into +Inf."""
    histogram = RunHistogram()
    histogram.add(parse({"schema": 3, "sum": 1, "buckets": {str(LOW): 1, str(HIGH): 1}}), Buckets())
    cumulative = histogram.sample(TRAIN_STEP_SECONDS, ("r",)).cumulative
    assert cumulative[0] == 1
    assert cumulative[-2:] == (1, 2)
