"""The runbooks as text, and their parts: sections, fenced blocks, tables, prose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNBOOKS = ROOT / "runbooks"
INDEX = RUNBOOKS / "README.md"
PAGES: Mapping[str, str] = {
    path.stem: path.read_text(encoding="utf-8") for path in sorted(RUNBOOKS.glob("*.md")) if path != INDEX
}
"""Alert -> the text of its runbook."""


def text_of(name: str) -> str:
    """Return a runbook's text, or the index' for `README`."""
    return PAGES.get(name) or INDEX.read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """Return a page's text by its headings of the second level, in order."""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def fenced(text: str, kind: str) -> list[str]:
    """Return the fenced blocks of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def blocks(text: str, kind: str) -> Iterator[str]:
    """Yield the lines of all fenced blocks of a kind that hold more than a comment."""
    for block in fenced(text, kind):
        yield from (line for line in block.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def prose(text: str) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def rows(text: str) -> list[list[str]]:
    """Return the cells of the first table of a text, its head included."""
    lines = re.findall(r"^\|(.+)\|$", text, re.MULTILINE)
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines]
    return [row for row in cells if not all(set(cell) <= {"-"} and cell for cell in row)]
