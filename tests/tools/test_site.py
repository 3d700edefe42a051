"""The site of documents: links lead to pages, all others to GitHub, and the index is its navigation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tools import site


def test_links_of_all_kinds() -> None:
    """To a page, to a folder with a README, to a file and to a folder of the repository, to the web, to a heading."""
    staged = {"docs/web.md", "docs/top.md", "runbooks/README.md", "docs/img/run.png"}
    text = (
        "[a](top.md#keys) [b](../runbooks/) [c](../deploy/exporter.yml) [d](../lab) [e](https://x.example) [f](#here) "
        "![g](img/run.png)"
    )
    assert site.page("docs/web.md", text, staged) == (
        "[a](top.md#keys) [b](../runbooks/README.md) "
        "[c](https://github.com/tachograph/tachograph/blob/main/deploy/exporter.yml) "
        "[d](https://github.com/tachograph/tachograph/tree/main/lab) [e](https://x.example) [f](#here) "
        "![g](img/run.png)\n"
    )


def test_a_list_begins_after_an_empty_line() -> None:
    """Python-Markdown would take it for a part of the paragraph; code is left alone."""
    text = "Three rules:\n1. Take.\n2. Give.\n\n```\nwords\n- no list [x](y.z)\n```\n"
    assert site.page("docs/a.md", text, ()) == text.replace("rules:\n", "rules:\n\n")


def test_every_link_leads_to_a_page_or_to_github(tmp_path: Path) -> None:
    """Of all documents; and every page of the navigation is there, once."""
    site.stage(tmp_path)
    pages = list((tmp_path / "pages").rglob("*.md"))
    assert len(pages) > 100
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text):
            assert (page.parent / link).is_file(), f"{page}: {link}"
    navigation = json.loads((tmp_path / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = [
        path for one in navigation for paths in one.values() for path in ([paths] if paths == str(paths) else paths)
    ]
    assert len(named) == len(set(named)) > 30
    assert [path for path in named if not (tmp_path / "pages" / path).is_file()] == []


@pytest.mark.parametrize("page", ["README.md", "docs/reference.md"])
def test_what_it_makes_of_a_page_is_the_page(page: str) -> None:
    """Words and code stay."""
    text = (site.ROOT / page).read_text(encoding="utf-8")
    assert re.sub(r"\]\([^)]*\)", "]", site.page(page, text, ())).split() == re.sub(r"\]\([^)]*\)", "]", text).split()
