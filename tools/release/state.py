"""The state that a checkout must be in to be released."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SHOWN_PATHS = 5


@dataclass(frozen=True)
class Commit:
    """The commit that is released."""

    version: str
    sha: str
    time: int
    """Seconds since the epoch, as in SOURCE_DATE_EPOCH."""

    @property
    def tag(self) -> str:
        """The name of its tag."""
        return f"v{self.version}"


def head(root: Path) -> Commit:
    """Return the checked-out commit, with the version that its tree states."""
    sha, time = git(root, "log", "-1", "--format=%H %ct").split()
    text = (root / "exporter/tachograph/_version.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', text, re.M)
    assert version, "exporter/tachograph/_version.py states no version"
    return Commit(version[1], sha, int(time))


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


def git(root: Path, *arguments: str) -> str:
    """Return what git answers in a checkout; raise CalledProcessError."""
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.rstrip()
