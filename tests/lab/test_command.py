"""`tachograph-lab`: its commands, its mistakes in one line, and the repository that it needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tachograph_lab.__main__ import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`tachograph-lab --help` names every command, and there is a module for each."""
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^  {command} ", out, re.MULTILINE) for command in COMMANDS)
    modules = {path.stem for path in (ROOT / "lab/tachograph_lab/commands").glob("*.py")}
    assert modules == {*COMMANDS, "__init__", "parser"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` of a command exits with status 0 and names the command."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: tachograph-lab {command} ")


@pytest.mark.parametrize("arguments", [["campaign", "--help"], ["--help"]])
def test_a_closed_output_ends_a_command_quietly(arguments: list[str]) -> None:
    """As in `tachograph-lab replay --help | head -n 1`."""
    command = [sys.executable, "-m", "tachograph_lab", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}) as done:
        assert done.stdout
        assert done.stderr
        done.stdout.close()
        assert done.stderr.read() == b""
    assert done.returncode == 141


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "tachograph-lab: no command given"),
        (["gremlins"], "tachograph-lab: unknown command 'gremlins'"),
        (["demo", "--only", "gremlins"], "tachograph-lab demo: --only: 'gremlins': expected one of"),
        (["demo", "--scrape", "0.5s"], "tachograph-lab demo: --scrape: '0.5s': expected whole seconds"),
        (["demo", "now"], "tachograph-lab demo: 'now' is one argument too many"),
        (["replay"], "tachograph-lab replay: give scenario files"),
        (["replay", "--all", "4"], "tachograph-lab replay: give scenario files"),
        (["replay", "4", "--jobs", "0"], "tachograph-lab replay: --jobs: '0': expected a whole number"),
        (["replay", "4", "--jobs", "two"], "tachograph-lab replay: --jobs: 'two': expected a whole number"),
        (["fleet"], "tachograph-lab fleet: the following arguments are required"),
        (["fleet", "4", "--for", "soon"], "tachograph-lab fleet: --for: 'soon': expected a duration"),
        (["campaign", "--ranks", "1"], "tachograph-lab campaign: --ranks: '1': the smallest fleet has 2"),
        (["campaign", "--count", "none"], "tachograph-lab campaign: --count: 'none': expected a whole"),
        (["healthy", "--jobs", "0"], "tachograph-lab healthy: --jobs: '0': expected a whole number"),
        (["healthy", "--ranks", "3"], "tachograph-lab healthy: --ranks: 3: expected one of"),
    ],
)
def test_a_wrong_command_line_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake on the command line is reported in one line that points to --help, with status 2."""
    try:
        status = main(words)
    except SystemExit as ended:
        status = int(ended.code or 0)
    (line,) = capsys.readouterr().err.splitlines()
    assert status == 2
    assert line.startswith(told)
    assert line.endswith("--help")


def test_in_a_foreign_project_the_lab_asks_for_the_repository(tmp_path: Path) -> None:
    """Installed in a project's virtual environment, it says in one line what is missing, and writes nothing there."""
    project = tmp_path / "theirs"
    packages = project / ".venv/lib/python3/site-packages"
    for package in ("exporter/tachograph", "lab/tachograph_lab"):
        shutil.copytree(ROOT / package, packages / Path(package).name, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "pyproject.toml").write_text('[project]\nname = "theirs"\nversion = "1"\n', encoding="utf-8")
    before = sorted(project.rglob("*"))
    environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("TACHOGRAPH_TOOLS", None)
    for command in ("demo", "replay 9", "fleet 4", "campaign --count 1", "healthy --hours 0.1"):
        done = subprocess.run(
            [sys.executable, "-m", "tachograph_lab", *command.split()],
            cwd=project, env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "tachograph-lab: the lab needs Tachograph's repository: clone it and run `make demo` there\n"
        )
    assert sorted(project.rglob("*")) == before
