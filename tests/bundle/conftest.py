"""The command as a user runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tachograph.bundle import command

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a bundle with these arguments; return its folder."""

    def run(*arguments: str) -> Path:
        out = tmp_path / "out"
        assert command.main(["--out", str(out), *arguments]) == 0
        return out

    return run
