"""The rules of prometheus/rules/, as they are shipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from tools.pages.section import ROOT


def shipped_rules() -> Iterator[dict[str, Any]]:
    """Yield every rule, in the order of files and groups."""
    for path in sorted((ROOT / "prometheus/rules").glob("*.yml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            yield from group["rules"]
