"""Plots: axes at round values, gaps that stay gaps, marks for values that are not finite; times."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tachograph.report.markup import element, table
from tachograph.report.svg import WIDTH, PlotArea, Point, Scale, band, inside, line, runs, span
from tachograph.report.window import LONGEST, MOST_TICKS, TICKS, Window
from tachograph.text.moments import iso, moment

NOON = 1_767_268_800.0  # 2026-01-01T12:00:00Z
WINDOW = Window(NOON, NOON + 3600, 15)
AREA = PlotArea(WINDOW, left=60, top=10, height=100)
SCALE = Scale.over(AREA, [0.0, 10.0], zero=True)


def paths(markup: str) -> list[str]:
    return [path.get("d", "") for path in ET.fromstring(f"<g>{markup}</g>").iter("path")]


def test_gaps_stay_gaps() -> None:
    """A line is interrupted where samples are missing; an isolated sample is a dot."""
    points = [(NOON + at, 1.0) for at in (0, 15, 30, 120, 135, 300)]
    drawn = line(SCALE, points, 15, "s0")
    assert paths(drawn)[0].count("M") == 2
    assert drawn.count("<circle") == 1


def test_a_value_that_is_not_finite_is_a_cross() -> None:
    """NaN and infinities are marked at the edges of the area and interrupt the line."""
    points = [
        (NOON, 1.0),
        (NOON + 15, 2.0),
        (NOON + 30, math.nan),
        (NOON + 45, -math.inf),
        (NOON + 60, 3.0),
        (NOON + 75, 3.0),
    ]
    drawn = line(SCALE, points, 15, "s0")
    assert drawn.count('class="cross"') == 2
    assert paths(drawn)[0].count("M") == 2
    assert "nan at 2026-01-01T12:00:30Z" in drawn
    assert line(SCALE, [(NOON, math.nan)], 15, "s0").count("<path") == 1


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(allow_nan=True, allow_infinity=True)), max_size=30))
def test_any_samples_can_be_drawn(points: Sequence[Point]) -> None:
    """For any samples, each coordinate is a number within the picture and the markup is well-formed."""
    samples = sorted((NOON + time, value) for time, value in points)
    scale = Scale.over(AREA, [value for _, value in samples], zero=False)
    drawn = line(scale, samples, 15, "s0") + "".join(scale.axis(str)) + band(scale, samples, samples, 15, "band")
    ET.fromstring(f"<g>{drawn}</g>")
    for path in paths(drawn):
        assert "nan" not in path
        assert "inf" not in path
    for stretch in runs(samples, 15):
        for time, value in stretch:
            assert AREA.left <= AREA.x(time) <= WIDTH
            assert AREA.top <= scale.y(value) <= AREA.bottom


@pytest.mark.parametrize(
    ("values", "zero", "ticks"),
    [
        ([0.0, 1.0], True, (0, 0.5, 1)),
        ([3.1, 4.9], False, (3, 3.5, 4, 4.5, 5)),
        ([0.0, 0.0], True, (0, 0.5, 1)),
        ([], True, (0, 0.5, 1)),
        ([1.0, 1e6], False, (1, 100, 10_000, 1_000_000)),
        ([-4.0, 4.0], True, (-4, -2, 0, 2, 4)),
    ],
)
def test_values_are_labelled_at_round_ones(values: list[float], zero: bool, ticks: tuple[float, ...]) -> None:
    """Labels are 1, 2 or 5 times a power of ten apart; a range of a factor of 1000 has a logarithmic axis."""
    found = Scale.over(AREA, values, zero=zero).ticks
    assert found == pytest.approx(ticks)


def test_things_are_counted_in_whole_numbers() -> None:
    """A run of two ranks has no half of one on its axis, nor a label twice."""
    assert Scale.over(AREA, [0.0, 2.0], zero=True, whole=True).ticks == (0, 1, 2)
    assert Scale.over(AREA, [0.0, 1024.0], zero=True, whole=True).ticks == (0, 500, 1000, 1500)


def test_a_span_is_seen_and_says_what_it_is() -> None:
    """A second of an hour is still visible; a label is shown only if there is room for it; titles are escaped."""
    short = span(AREA, (NOON, NOON + 1), 0, 10, style="data", title='<b>"x"')
    assert float(re.search(r'width="([\d.]+)"', short)[1]) >= 1.5  # type: ignore[index]
    assert inside(AREA, (NOON, NOON + 1), 9, "data") == ""
    assert "&lt;b&gt;&quot;x&quot;" in short
    assert ">data</text>" in inside(AREA, (NOON, NOON + 1800), 9, "data")


def test_a_picture_is_accessible() -> None:
    """A picture has a role and a title for screen readers, round times on its axis, and the day once."""
    svg = AREA.picture("Loss <of> a run", [])
    tree = ET.fromstring(svg)
    assert tree.get("role") == "img"
    assert tree.findtext("title") == "Loss <of> a run"
    texts = [text.text for text in tree.iter("text")]
    assert texts == ["12:00", "2026-01-01", "12:10", "12:20", "12:30", "12:40", "12:50", "13:00"]


def test_markup_is_harmless() -> None:
    """Attributes and cells are escaped; characters that hide or reverse text are replaced."""
    assert element("p", class_='a"b', data_x="\u202ex\x00") == '<p class="a&quot;b" data-x="\ufffdx\ufffd"></p>'
    assert "&lt;i&gt;" in table("<i>", ["a"], [["1"]])


@settings(deadline=None, max_examples=60)
@example(start=196.9, seconds=60.0)
@given(st.floats(0, 4e9), st.floats(60, LONGEST))
def test_windows(start: float, seconds: float) -> None:
    """Any window has at most 240 steps, and labels at eight or nine round times at most, all within it."""
    window = Window.between(start, start + seconds)
    assert window.start <= start + 1e-3
    assert window.seconds / window.step <= 240.1
    ticks = window.ticks()
    assert len(ticks) <= MOST_TICKS + 1
    assert all(window.start <= tick <= window.end for tick in ticks)
    assert {round(b - a) for a, b in pairwise(ticks)} <= set(TICKS)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2h", NOON - 7200), ("1h30m", NOON - 5400), ("1d", NOON - 86400), ("now", NOON),
        ("2026-01-01T11:00:00Z", NOON - 3600), ("2026-01-01T12:00:00+01:00", NOON - 3600), ("2026-01-01", NOON - 43200),
    ],
)  # fmt: skip
def test_times_as_people_write_them(text: str, time: float) -> None:
    """Durations count back from now, ISO times are UTC by default."""
    assert moment(text, NOON) == time


@pytest.mark.parametrize("text", ["", "2", "yesterday", "-2h", "2026-13-01", "1h30"])
def test_what_is_not_a_time(text: str) -> None:
    """A number without a unit could be anything; the error shows how to write it."""
    with pytest.raises(ValueError, match="is not a time: write 2h"):
        moment(text, NOON)


def test_times_as_they_are_shown() -> None:
    """Times are ISO and UTC; a rank may report any number as one."""
    assert [iso(time) for time in (NOON, NOON + 0.6)] == ["2026-01-01T12:00:00Z", "2026-01-01T12:00:01Z"]
    assert [iso(time) for time in (math.nan, -math.inf, math.inf)] == ["-", "-", "-"]
