"""What the Alertmanager tests share: both generations of it, and the alerts that the rules can raise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tachograph.lab import binaries

ROOT = Path(__file__).resolve().parents[2]
OLDEST, NEWEST = "bookworm", "sid"
"""Alertmanager 0.25, which must be had, and 0.33, from a suite whose versions roll."""


@pytest.fixture(scope="session", params=[OLDEST, NEWEST])
def programs(request: pytest.FixtureRequest) -> Mapping[str, Path]:
    """The programs of one generation."""
    try:
        return binaries.ensure(request.param)
    except binaries.BinariesUnavailable as error:
        if request.param == OLDEST:
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def severities() -> dict[str, str]:
    """Every alert of the rules with its severity."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "prometheus/rules").glob("*.yml")):
        groups: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        found |= {rule["alert"]: rule["labels"]["severity"] for rule in rules if "alert" in rule}
    return found
