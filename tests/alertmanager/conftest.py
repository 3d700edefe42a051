"""What the Alertmanager tests share: the alerts that the rules can raise."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def severities(rules: list[dict[str, Any]]) -> dict[str, str]:
    """Every alert of the rules with its severity."""
    return {rule["alert"]: rule["labels"]["severity"] for rule in rules if "alert" in rule}
