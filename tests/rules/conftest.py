"""What the rule tests share: the rules as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def rules() -> list[dict[str, Any]]:
    """Every rule of every file, in order."""
    found: list[dict[str, Any]] = []
    for path in sorted((ROOT / "prometheus/rules").glob("*.yml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            found += [rule | {"group": group["name"], "file": path.name} for rule in group["rules"]]
    return found
