"""The command: what `tachograph` says, and where a user's mistake ends."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tachograph import __version__
from tachograph.__main__ import COMMANDS, main
from tachograph.node.config import SETTINGS

DOCS = Path(__file__).parents[2] / "docs"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`tachograph --version` names the version."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tachograph {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["explorer"], ["--verbose"], ["metrics", "extra"]])
def test_a_mistake_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong command is one line on stderr and status 2."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1


def test_help_names_every_command_and_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """The help is complete: each command, and each of the exporter's flags with its default."""
    main(["--help"])
    out = capsys.readouterr().out
    assert all(re.search(rf"^  {command} ", out, re.MULTILINE) for command in COMMANDS)
    with pytest.raises(SystemExit) as end:
        main(["exporter", "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    for setting in SETTINGS:
        assert f"--{setting.name}" in out
        assert setting.default in out


def test_starting_stays_light() -> None:
    """The exporter without a file carries no client and no YAML, nor what other processes or unseen pages need."""
    code = "import sys, tachograph.node.app, tachograph.node.gpu.source; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    outside = {"yaml", "pynvml", "torch", "numpy", "rich", "prometheus_client", "multiprocessing", "difflib"}
    reading = ("client", "blackbox.folder", "blackbox.plain_pickle", "blackbox.verdict")
    pages = ("node.api.answer", "node.status_page.page", "node.evidence.page")
    own = {f"tachograph.{name}" for name in (*reading, *pages)}
    assert not (outside | own) & set(done.stdout.split())
