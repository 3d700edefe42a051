"""`python -m tools.site FOLDER`: the documents as MkDocs wants them, for `make docs-site`.

Every page keeps its place in the repository, so that links between pages hold; links to other files lead to GitHub. The
navigation is the index, docs/README.md. The changelog, which also names what was, stays on GitHub.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/tachograph/tachograph"
PAGES = re.compile(r"(?:README|CONTRIBUTING|SECURITY|docs/.*|runbooks/.*|prometheus/README)\.md$|docs/img/.*\.png$")
_LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?(?=\))")


def page(path: str, text: str, staged: Collection[str], root: Path = ROOT) -> str:
    """Return a page as Python-Markdown reads it: lists begin after an empty line, links lead to pages or to GitHub."""
    lines: list[str] = []
    code = False
    for line in text.splitlines():
        code ^= line.lstrip().startswith("```")
        starts_list = re.match(r"(?:[-*]|\d+\.) ", line)
        if starts_list and not code and lines and re.match(r"[^\s\-*\d|#<]", lines[-1]):
            lines.append("")
        lines.append(line if code else _LINK.sub(lambda link: _target(path, link, staged, root), line))
    return "\n".join(lines) + "\n"


def _target(path: str, link: re.Match[str], staged: Collection[str], root: Path) -> str:
    """Return where a link leads: unchanged to a page, to the README of a folder, or to the repository."""
    where = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[1]))
    if where in staged:
        return link[0]
    if f"{where}/README.md" in staged:
        return f"{link[1].rstrip('/')}/README.md{link[2] or ''}"
    kind = "tree" if (root / where).is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/main/{where}{link[2] or ''}"


def navigation(index: str) -> list[Any]:
    """Return the pages of docs/README.md under its headings, each once, with the runbooks where they are linked."""
    seen: set[str] = set()
    sections: list[Any] = [{"Tachograph": "README.md"}, {"Documentation": "docs/README.md"}]
    for section in index.split("\n## ")[1:]:
        heading, _, body = section.partition("\n")
        links = (posixpath.normpath(f"docs/{link}") for link in re.findall(r"\]\(([^)#\s]+\.md)", body))
        if pages := [link for link in links if not (link in seen or seen.add(link))]:  # type: ignore[func-returns-value]
            sections.append({heading: pages})
    return sections


def configuration(index: str, folder: Path) -> Mapping[str, Any]:
    """Return MkDocs' configuration; nothing is loaded from other servers."""
    return {
        "site_name": "Tachograph",
        "repo_url": REPOSITORY,
        "docs_dir": str(folder / "pages"),
        "site_dir": str(folder / "site"),
        "use_directory_urls": False,
        "theme": {"name": "material", "font": False, "features": ["navigation.sections", "toc.follow"]},
        "plugins": ["search"],
        "markdown_extensions": ["tables", "md_in_html", {"toc": {"permalink": True}}, "pymdownx.superfences"],
        "validation": {"omitted_files": "ignore", "absolute_links": "warn", "anchors": "warn"},
        "nav": navigation(index),
    }


def stage(folder: Path, root: Path = ROOT, files: Iterable[str] | None = None) -> None:
    """Write pages and mkdocs.yml to a folder, which is emptied first, from the files of a checkout or of an export."""
    shutil.rmtree(folder, ignore_errors=True)
    staged = {path for path in (_tracked() if files is None else files) if PAGES.match(path)}
    for path in sorted(staged):
        target = folder / "pages" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".md"):
            text = (root / path).read_text(encoding="utf-8")
            target.write_text(page(path, text, staged, root), encoding="utf-8")
        else:
            shutil.copyfile(root / path, target)
    index = (root / "docs/README.md").read_text(encoding="utf-8")
    (folder / "mkdocs.yml").write_text(json.dumps(configuration(index, folder.absolute()), indent=1), encoding="utf-8")


def _tracked() -> list[str]:
    return subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
