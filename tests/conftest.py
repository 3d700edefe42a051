"""What tests of several parts share: the programs of both generations of Prometheus and Alertmanager."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tachograph.lab import binaries

OLDEST, NEWEST = "bookworm", "sid"
"""Prometheus 2.42 and Alertmanager 0.25, which must be had; 3.5 and 0.33, from a suite whose versions roll."""


@pytest.fixture(scope="session", params=[OLDEST, NEWEST])
def programs(request: pytest.FixtureRequest) -> Mapping[str, Path]:
    """The programs of one generation."""
    try:
        return binaries.ensure(request.param)
    except binaries.BinariesUnavailable as error:
        if request.param == OLDEST:
            pytest.fail(str(error))
        pytest.skip(str(error))
