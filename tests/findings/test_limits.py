"""The table of limits: each is in its own range, and says what it is."""

from __future__ import annotations

import math

import pytest

from tachograph.diagnosis import LAG_RATIO, STALL_SECONDS
from tachograph.findings.limits import LIMIT_NAMES, LIMITS


def test_every_name_has_a_row_and_every_default_is_in_range() -> None:
    """A name that `recorder.threshold` takes has a row; no default is refused where somebody writes it down."""
    assert tuple(LIMITS) == LIMIT_NAMES
    for limit in LIMITS.values():
        assert limit.default is None or limit.admits(limit.default)
        assert 0 < limit.least < limit.greatest < math.inf
        assert limit.name.endswith("_seconds" if "seconds" in limit.unit else "_ratio")


def test_a_limit_is_no_closer_than_what_comes_before_it() -> None:
    """A hang is no sooner than a standstill on a screen, and a straggler's lag no smaller than noise."""
    assert LIMITS["hang_seconds"].least >= STALL_SECONDS
    assert LIMITS["straggler_ratio"].least >= LAG_RATIO


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("hang_seconds", 600, None),
        ("hang_seconds", 5, "must be a number of seconds from 10 to 86400, not 5"),
        ("hang_seconds", "10m", "must be a number of seconds from 10 to 86400, not '10m'"),
        ("hang_seconds", math.nan, "must be a number of seconds from 10 to 86400, not nan"),
        ("hang_seconds", True, "must be a number of seconds from 10 to 86400, not True"),
        ("straggler_ratio", 20, "must be a share (0.2 for 20 %) from 0.06 to 0.95, not 20"),
        ("checkpoint_age_seconds", 1e9, "must be a number of seconds from 60 to 2592000, not 1000000000.0"),
    ],
)
def test_what_cannot_be_is_refused_with_the_range(name: str, value: object, says: str | None) -> None:
    """The text has the unit and the range: whoever wrote 20 for 20 % sees what was meant."""
    assert LIMITS[name].fault(value) == says
