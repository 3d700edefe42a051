"""What the Alertmanager tests share: the alerts that the rules can raise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def severities() -> dict[str, str]:
    """Every alert of the rules with its severity."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "prometheus/rules").glob("*.yml")):
        groups: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        found |= {rule["alert"]: rule["labels"]["severity"] for rule in rules if "alert" in rule}
    return found
