"""The rules load and behave alike on both generations of Prometheus; what each keeps stands in the *_test.yml files."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = sorted(path.name for path in HERE.glob("*_test.yml"))


def promtool(programs: Mapping[str, Path], *arguments: str | Path) -> str:
    """Run promtool in the repository, behind what has deadlines; fail with its words unless it succeeds."""
    done = subprocess.run(
        ["nice", "-n", "5", programs["promtool"], *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_configuration_is_valid(programs: Mapping[str, Path]) -> None:
    """prometheus.yml loads, with every rule file and target file it names."""
    assert "rule files found" in promtool(programs, "check", "config", "prometheus/prometheus.yml")


def test_rules_are_valid_and_none_stands_twice(programs: Mapping[str, Path]) -> None:
    """Each rule parses; the linter's only complaint, a duplicate, is an error here."""
    files = sorted((ROOT / "prometheus/rules").glob("*.yml"))
    promtool(programs, "check", "rules", "--lint=all", "--lint-fatal", *files)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FILES)
def test_rules_behave(programs: Mapping[str, Path], name: str) -> None:
    """Every scenario of the file holds."""
    promtool(programs, "test", "rules", HERE / name)


@pytest.mark.parametrize("name", FILES)
def test_groups_are_evaluated_in_a_fixed_order(name: str) -> None:
    """Promtool shuffles the groups that `group_eval_order` leaves out: a test that lists too few is sometimes red."""
    test = yaml.safe_load((HERE / name).read_text(encoding="utf-8"))
    files = [yaml.safe_load((HERE / file).read_text(encoding="utf-8")) for file in test["rule_files"]]
    groups = {group["name"] for file in files for group in file["groups"]}
    assert len(groups) == 1 or set(test.get("group_eval_order", ())) == groups
