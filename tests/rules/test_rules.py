"""The rules load and behave alike on both generations of Prometheus; what each keeps stands in the *_test.yml files."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = sorted(path.name for path in HERE.glob("*_test.yml"))
OLDEST, NEWEST = "bookworm", "sid"

Behaviour = Mapping[tuple[str, str], Future[tuple[int | None, str]]]


def promtool(programs: Mapping[str, Path], *arguments: str | Path) -> str:
    """Run promtool in the repository; fail with its words unless it succeeds."""
    done = subprocess.run(
        [programs["promtool"], *arguments], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_configuration_is_valid(programs: Mapping[str, Path]) -> None:
    """prometheus.yml loads, with every rule file and target file it names."""
    assert "rule files found" in promtool(programs, "check", "config", "prometheus/prometheus.yml")


def test_rules_are_valid_and_none_stands_twice(programs: Mapping[str, Path]) -> None:
    """Each rule parses; the linter's only complaint, a duplicate, is an error here."""
    files = sorted((ROOT / "prometheus/rules").glob("*.yml"))
    promtool(programs, "check", "rules", "--lint=all", "--lint-fatal", *files)


@pytest.mark.parametrize("suite", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", FILES)
def test_rules_behave(behaviour: Behaviour, name: str, suite: str) -> None:
    """Every scenario of the file holds."""
    status, words = behaviour[suite, name].result(timeout=100)
    if status is None:
        pytest.skip(words)
    assert status == 0, words
