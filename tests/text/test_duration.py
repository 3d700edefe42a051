"""Durations, as people and as Prometheus write them."""

from __future__ import annotations

import pytest

from tachograph.text import duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0), ("0s", 0), ("90s", 90), ("20m", 1200), ("1h30m", 5400), ("1d2h3m", 93_780), ("1w", 604_800),
        ("1y", 31_536_000), ("200ms", 0.2), ("1m200ms", 60.2), ("0.5s", 0.5), ("1.5h", 5400),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    """Numbers with units, the largest first; a number may have a fraction."""
    assert duration.parse(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "20", "m", "-5m", "3 m", "1h30", "30m1h", "5m5m", "1e3s", "inf", "nan", "\u0663s"]
)
def test_what_is_not_a_duration(text: str) -> None:
    """No sign, no space, no missing unit, no wrong order; the error shows how to write it."""
    with pytest.raises(ValueError, match="is not a duration: write 20m"):
        duration.parse(text)


def test_a_bare_number_is_seconds_where_that_is_allowed() -> None:
    """Elsewhere 20 could be anything."""
    assert duration.parse("20", bare=True) == 20
    assert duration.parse("0.5", bare=True) == 0.5
    with pytest.raises(ValueError, match="not a duration"):
        duration.parse("-20", bare=True)


@pytest.mark.parametrize("text", ["293y", "9" * 400 + "d", "9" * 400 + "ms"])
def test_a_duration_has_an_end(text: str) -> None:
    """Beyond what Prometheus can hold there is no time to add it to."""
    with pytest.raises(ValueError, match="longer than 292 years"):
        duration.parse(text)
