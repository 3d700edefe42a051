"""The rules of prometheus/rules/, as they are shipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tachograph.files import shipped
from tools.pages.section import ROOT


def shipped_rules() -> Iterator[dict[str, Any]]:
    """Yield every rule, in the order of files and groups."""
    for path in sorted((ROOT / "prometheus/rules").glob("*.yml")):
        for group in shipped.read_yaml(path)["groups"]:
            yield from group["rules"]
