"""Numbers as people read them: zero, absent, negative and not finite in each form."""

from __future__ import annotations

import math
from pathlib import Path

from tachograph.text import humanize

ROOT = Path(__file__).resolve().parents[2]
NONE, NAN, INF = None, math.nan, math.inf


def test_counts_and_shares() -> None:
    """Thousands are separated, a plural agrees with its count, large numbers have three digits."""
    assert [humanize.count(x) for x in (NONE, 0.0, 48_201.0, NAN)] == ["-", "0", "48,201", "NaN"]
    assert [humanize.plural(x, "rank") for x in (0, 1, 2, 1024)] == ["0 ranks", "1 rank", "2 ranks", "1,024 ranks"]
    assert [humanize.short(x) for x in (NONE, 0.0, 99.5, 950.0, 12_345.0, 999_900.0, 3_940_000.0, 1.2e10, INF)] == [
        "-", "0", "99.5", "950", "12.3k", "1.00M", "3.94M", "12.0G", "Inf",
    ]  # fmt: skip
    assert [humanize.percent(x) for x in (NONE, 0.0, 0.415, NAN)] == ["-", "0%", "42%", "NaN"]
    assert humanize.percent(0.4152, 1) == "41.5%"
    assert [humanize.significant(x) for x in (NONE, 0.0, 2.3, 12_345.6, -INF)] == ["-", "0.000", "2.300",
                                                                                  "1.235e+04", "-Inf"]  # fmt: skip
    assert humanize.significant(2.3, zeros=False) == "2.3"


def test_lengths_of_time() -> None:
    """A duration keeps three digits, an age has one unit, a span two; none of them shows a negative zero."""
    assert [humanize.duration(x) for x in (NONE, 0.0, -0.0001, 0.000326, 0.0123, 8.128, 64.25, 640.0, NAN)] == [
        "-", "0 ms", "0 ms", "0.33 ms", "12 ms", "8.13 s", "64.2 s", "640 s", "NaN",
    ]  # fmt: skip
    assert [humanize.age(x) for x in (NONE, -1.0, 9.94, 9.96, 119.4, 120.0, 7300.0, 9e5, INF)] == [
        "-", "0.0 s", "9.9 s", "10 s", "119 s", "2 min", "2.0 h", "10 d", "Inf",
    ]  # fmt: skip
    assert [humanize.span(x) for x in (NONE, 0.0, 4.25, 59.7, 61.0, 3700.0, 5400.0, 86_400.0, 90_061.0, NAN)] == [
        "-", "0 s", "4.2 s", "1 min", "1 min 1 s", "1 h 1 min", "1 h 30 min", "1 d", "1 d 1 h", "NaN",
    ]  # fmt: skip


def test_hours() -> None:
    """GPU-hours of a large run have thousands."""
    assert [humanize.hours(x) for x in (NONE, 0.0, 4_336_200.0, NAN)] == ["-", "0.0", "1,204.5", "NaN"]


def test_coordinates() -> None:
    """A rank's place in its run's parallelism reads as in the text of an alert."""
    assert humanize.coordinates({}) == "-"
    described = (ROOT / "tests/rules/InvariantBroken.yml").read_text(encoding="utf-8")
    assert f"Rank 11 (n1, GPU 3; {humanize.coordinates({'tp': 3, 'pp': 1, 'dp': 0})}) of run r" in described


def test_units_and_times() -> None:
    """Bytes, degrees and watts have one form; a time that is no date is absent."""
    assert [humanize.gibibytes(x) for x in (NONE, 0.0, 72.5 * 2**30, INF)] == ["-", "0.0", "72.5", "Inf"]
    assert [humanize.celsius(84.4), humanize.watts(655.2), humanize.watts(NONE)] == ["84 °C", "655 W", "-"]
    assert [humanize.utc(x) for x in (0.0, 86_399.9, -1.0, 1e30, NAN)] == ["00:00:00", "23:59:59", "-", "-", "-"]
    assert humanize.utc(0.0, "%Y-%m-%d") == "1970-01-01"
