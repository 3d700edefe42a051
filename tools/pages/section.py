"""Sections of pages that people write, which are made: each stands between two comments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def with_sections(page: str, sections: Mapping[str, str]) -> str:
    """Return the text of a page with each named section replaced."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, section in sections.items():
        begin, end = f"<!-- {name}: made by `make docs` -->", f"<!-- /{name} -->"
        before, begins, rest = text.partition(begin)
        _, ends, after = rest.partition(end)
        if not (begins and ends):
            raise ValueError(f"{page} must hold one section from {begin} to {end}")
        text = f"{before}{begin}\n{section}\n{end}{after}"
    return text
