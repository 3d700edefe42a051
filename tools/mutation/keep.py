"""A pytest plugin that keeps what tests pass to `promtool test rules` in a folder instead of running promtool."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the folder."""
    parser.addoption("--keep-rule-tests", type=Path, help="folder for what promtool would be given")


def pytest_configure(config: pytest.Config) -> None:
    """Replace promtool."""
    folder: Path | None = config.getoption("--keep-rule-tests")
    if folder is None:
        return
    run = subprocess.run

    def keep(command: Any, *arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        if isinstance(command, list) and command[1:3] == ["test", "rules"]:
            test = os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].split("[")[0]
            for path in command[3:]:
                shutil.copy(path, folder / f"{test}-{len(list(folder.iterdir()))}.yml")
            return subprocess.CompletedProcess(command, 0, "", "")
        return run(command, *arguments, **options)

    subprocess.run = keep  # type: ignore[assignment]
