"""What the Alertmanager tests share: the alerts that the rules can raise."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def severities(rules: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Every alert of the rules with its severities: one that pages here may be a ticket there."""
    found: dict[str, set[str]] = {}
    for rule in rules:
        if "alert" in rule:
            found.setdefault(rule["alert"], set()).add(rule["labels"]["severity"])
    return found
