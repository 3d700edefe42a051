"""The state that a checkout must be in to be released."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tools.commit import Commit, git

SHOWN_PATHS = 5


def faults(root: Path, commit: Commit) -> Iterator[str]:
    """Yield what forbids to release the commit, each with what to do."""
    changed = [line[3:] for line in git(root, "status", "--porcelain").splitlines()]
    if changed:
        more = f" and {len(changed) - SHOWN_PATHS} more" if len(changed) > SHOWN_PATHS else ""
        yield f"the working tree differs from the commit: commit or remove {', '.join(changed[:SHOWN_PATHS])}{more}"
    if git(root, "tag", "--list", commit.tag):
        yield f"the tag {commit.tag} exists: raise the version in exporter/tachograph/_version.py"
    sections = re.split(r"^## ", (root / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)[1:]
    entries = dict(section.partition("\n")[::2] for section in sections)
    heading = f"## [{commit.version}]"
    dated = re.compile(rf"\[{re.escape(commit.version)}\] - \d{{4}}-\d{{2}}-\d{{2}}")
    if not any(dated.fullmatch(title) and text.strip() for title, text in entries.items()):
        yield f'CHANGELOG.md has no entries under "{heading} - YYYY-MM-DD": move those of "Unreleased" there'
    elif entries.get("[Unreleased]", "").strip():
        yield f'CHANGELOG.md has entries under "Unreleased": move them to "{heading}"'
