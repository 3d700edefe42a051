"""The limits that a run sets for its own alerts."""

from __future__ import annotations

import math

import pytest

from tachograph.catalog.rank import THRESHOLDS
from tachograph.client.hello.workload import AlertThresholds


def test_every_limit_of_the_catalog_can_be_set() -> None:
    """Seconds of any length, shares below 1; said again, the last word stands."""
    thresholds = AlertThresholds()
    assert thresholds.metrics() == {}
    for name in THRESHOLDS:
        assert thresholds.set(name, 0.5)
    assert thresholds.set("hang_seconds", 7200)
    assert thresholds.metrics() == {"threshold": {**dict.fromkeys(THRESHOLDS, 0.5), "hang_seconds": 7200}}


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, None, "1", object(), 1j])
def test_what_is_no_limit_is_refused(value: object) -> None:
    """A limit that nothing or everything exceeds would page for ever or never, so the default stays."""
    thresholds = AlertThresholds()
    assert not thresholds.set("hang_seconds", value)
    assert thresholds.metrics() == {}


def test_a_share_is_no_percentage() -> None:
    """20 for 20 % would silence the alert; a name outside the catalog is none that rules read."""
    thresholds = AlertThresholds()
    assert not thresholds.set("straggler_ratio", 20)
    assert not thresholds.set("straggler_ratio", 1)
    assert not thresholds.set("patience", 5)
    assert thresholds.metrics() == {}
