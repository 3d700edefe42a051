"""Programs that a build runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path


class BuildError(Exception):
    """A release cannot be built here, or is not reproducible; the text says why."""


def run(command: Iterable[str | Path], folder: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a program in a folder; raise BuildError with the end of what it printed."""
    outside = {**os.environ, "PYTHONPATH": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **(environment or {})}
    words = [*map(str, command)]
    done = subprocess.run(
        words, cwd=folder, env=outside, umask=0o022, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode:
        raise BuildError(f"{' '.join(words)} failed:\n{done.stdout[-2000:].rstrip()}")
