"""docs/README.md leads to every page."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_page_is_in_the_index() -> None:
    """A page that nothing leads to is not read."""
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = {(DOCS / link).resolve() for link in re.findall(r"\]\(([^)#\s]+\.md)", index)}
    missing = [str(page.relative_to(DOCS)) for page in sorted(DOCS.rglob("*.md")) if page not in linked]
    assert missing == ["README.md"], "docs/README.md needs a line for each of these"
