"""The commit that is checked out, and the version that its tree states."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools.programs import BuildError


@dataclass(frozen=True)
class Commit:
    """A commit to build from."""

    version: str
    sha: str
    time: int
    """Seconds since the epoch, as in SOURCE_DATE_EPOCH."""

    @property
    def tag(self) -> str:
        """The name of its tag."""
        return f"v{self.version}"


def head(root: Path) -> Commit:
    """Return the checked-out commit, with the version that its tree states; raise BuildError."""
    sha, time = git(root, "log", "-1", "--format=%H %ct").split()
    text = (root / "exporter/tachograph/_version.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', text, re.M)
    assert version, "exporter/tachograph/_version.py states no version"
    return Commit(version[1], sha, int(time))


def git(root: Path, *arguments: str) -> str:
    """Return what git answers in a checkout; raise BuildError with what it says."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, check=False, capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"git cannot be run: {error}") from error
    if done.returncode:
        raise BuildError(f"git {arguments[0]} failed in {root}: {done.stderr.strip()}")
    return done.stdout.rstrip()
