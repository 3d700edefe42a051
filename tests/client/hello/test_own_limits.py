"""The limits that a run sets for its own alerts."""

from __future__ import annotations

import math

import pytest

from tachograph.client.hello.workload import OwnLimits
from tachograph.findings.limits import LIMITS


def test_every_limit_can_be_set_within_its_range() -> None:
    """From the least to the greatest; of several calls the last one counts."""
    own = OwnLimits()
    assert own.metrics() == {}
    for name, limit in LIMITS.items():
        assert own.set(name, limit.least)
        assert own.set(name, limit.greatest)
        assert not own.set(name, limit.least * 0.99)
        assert not own.set(name, limit.greatest * 1.01)
    assert own.set("hang_seconds", 7200)
    greatest = {name: limit.greatest for name, limit in LIMITS.items()}
    assert own.metrics() == {"threshold": {**greatest, "hang_seconds": 7200}}


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, None, "1", object(), 1j])
def test_what_is_no_limit_is_refused(value: object) -> None:
    """A limit that nothing or everything exceeds would page for ever or never, so the default stays."""
    own = OwnLimits()
    assert not own.set("hang_seconds", value)
    assert own.metrics() == {}


def test_a_share_is_no_percentage() -> None:
    """20 for 20 % would silence the alert; a name outside the table is none that anybody reads."""
    own = OwnLimits()
    assert not own.set("straggler_ratio", 20)
    assert not own.set("straggler_ratio", 1)
    assert not own.set("patience", 5)
    assert own.metrics() == {}
