"""Fixtures of the rule tests: promtool, run on the repository's rules with a fixed evaluation order."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

Promtool = Callable[..., str]
RuleTests = Callable[..., None]

THRIFTY = {"GOGC": "1000", "GOMAXPROCS": "1"}
"""Saves a third of promtool's CPU time: garbage is collected less often, which takes 300 MB of memory."""


@pytest.fixture
def promtool(programs: Mapping[str, Path]) -> Promtool:
    """Run promtool in the repository and return its output; fail with that output unless it succeeds."""

    def run(*arguments: str | Path, program: Path | None = None) -> str:
        done = subprocess.run(
            [program or programs["promtool"], *arguments],
            cwd=ROOT, env=os.environ | THRIFTY, capture_output=True, text=True, timeout=580, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
        return done.stdout

    return run


@pytest.fixture
def rule_tests(promtool: Promtool, tmp_path: Path) -> RuleTests:
    """Run generated rule tests over rule files; groups are evaluated in the order of the files."""

    def run(
        rules: Iterable[Path], *tests: Mapping[str, Any], interval: str = "5s", program: Path | None = None
    ) -> None:
        files = list(rules)
        groups = [each for path in files for each in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]
        content = {
            "rule_files": [str(path) for path in files],
            "evaluation_interval": interval,
            "group_eval_order": [group["name"] for group in groups],  # promtool shuffles what is not in it
            "tests": tests,
        }
        path = tmp_path / "test.yml"
        path.write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML
        promtool("test", "rules", path, program=program)

    return run
