"""A release or a package that is asked for where git knows no commit is refused in one line, with git's own words."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tools.debian import __main__ as debian
from tools.release import __main__ as release

Command = Callable[[Sequence[str]], int]


@pytest.mark.parametrize("command", [release.main, debian.main])
@pytest.mark.parametrize(
    ("place", "reason"),
    [("archive", "not a git repository"), ("empty", "does not have any commits"), ("no git", "No such file")],
)
def test_without_a_commit_there_is_a_reason(
    command: Command,
    place: str,
    reason: str,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In an archive that was unpacked, in a repository without commits, and without the program."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(f"{command.__module__}.root", lambda: tmp_path)
    if place == "empty":
        subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    elif place == "no git":
        monkeypatch.setenv("PATH", str(tmp_path))
    assert command([]) == 1
    said = capsys.readouterr().err
    name = command.__module__.split(".")[1].replace("debian", "deb")
    assert said.startswith(f"make {name}: git ")
    assert reason in said
    assert said.count("\n") == 1
