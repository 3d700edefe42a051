"""Everything that a document names exists: files, folders, links, make targets, commands."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from tachograph.__main__ import COMMANDS
from tachograph_lab.__main__ import COMMANDS as LAB_COMMANDS
from tests.every import every

ROOT = Path(__file__).parents[2]
FILES = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
IGNORED = (ROOT / ".gitignore").read_text(encoding="utf-8").replace("/\n", "\n").split()
TREE = {*FILES, *(str(folder) for file in FILES for folder in Path(file).parents)}
DOCUMENTS = sorted(set(filter(re.compile(r"(?!CHANGELOG).*\.md$").match, FILES)))  # a changelog also names what was
FOLDERS = {path for path in TREE if "/" not in path}
TREE.update(IGNORED)
SOURCES = (".py", ".md", ".yml", ".yaml", ".csv", ".c", ".tmpl", ".html")
BASES = ("", "exporter/tachograph/", "exporter/")
"""Where a path may begin besides the document's own folder."""

TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def _named(document: str, text: str) -> Iterator[str]:
    """Yield what is named in a document and does not exist."""
    inside = f"{Path(document).parent}/".removeprefix("./")
    for path in re.findall(r"`([\w.*<>/-]+/[\w.*<>/-]*)`", text):
        if path.split("/")[0] in FOLDERS or path.endswith(SOURCES):
            pattern = re.sub(r"<\w+>", "*", path).rstrip("/")
            if not any(_exists(base + pattern) for base in (*BASES, inside)):
                yield path
    for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        if not (ROOT / inside / link).exists():
            yield link
    code = re.sub(r"#.*", "", "\n".join(re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)))
    code += "\n" + "\n".join(re.findall(r"`([^`]+)`", text))
    yield from (
        f"make {target}"
        for target in re.findall(r"^(?:\$ )?make ([a-z-]+)", code, re.MULTILINE)
        if target not in TARGETS
    )
    for program, command in re.findall(r"\b(tachograph(?:-lab)?) ([a-z-]+)\b(?![/.])", code):
        if command not in (COMMANDS if program == "tachograph" else LAB_COMMANDS):
            yield f"{program} {command}"


def _exists(pattern: str) -> bool:
    return pattern in TREE or ("*" in pattern and any(fnmatch(path, pattern) for path in TREE))


@every("document", DOCUMENTS)
def test_what_a_document_names_exists(document: str) -> None:
    """Paths in backticks, links, make targets and commands are all there; `<subject>` and `*` stand for any name."""
    missing = list(_named(document, (ROOT / document).read_text(encoding="utf-8")))
    assert not missing, f"{document} names what does not exist: {', '.join(missing)}"


def test_what_does_not_exist_is_found() -> None:
    """The test itself: each kind of name that is wrong is found, and a right one is not."""
    text = "`docs/no.md` `docs/*.nothing` [a](no.md) `make nothing` `tachograph nothing` `tachograph-lab nothing`"
    wrong = ["docs/no.md", "docs/*.nothing", "no.md", "make nothing", "tachograph nothing", "tachograph-lab nothing"]
    assert list(_named("README.md", text)) == wrong
    right = (
        "`docs/` `prometheus/rules/<subject>.yml` [a](docs/web.md#x) `make test` `tachograph top` `node/exposition.py`"
    )
    assert list(_named("README.md", right)) == []
