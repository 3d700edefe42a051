"""The rules load and behave alike on both generations of Prometheus; what each keeps stands in the *_test.yml files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
Promtool = Callable[..., str]
FILES = sorted(path.name for path in HERE.glob("*_test.yml"))


def test_configuration_is_valid(promtool: Promtool) -> None:
    """prometheus.yml loads, with every rule file and target file it names."""
    assert "rule files found" in promtool("check", "config", "prometheus/prometheus.yml")


def test_rules_are_valid_and_none_stands_twice(promtool: Promtool) -> None:
    """Each rule parses; the linter's only complaint, a duplicate, is an error here."""
    files = sorted((ROOT / "prometheus/rules").glob("*.yml"))
    promtool("check", "rules", "--lint=all", "--lint-fatal", *files)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FILES)
def test_rules_behave(promtool: Promtool, name: str) -> None:
    """Every scenario of the file holds."""
    promtool("test", "rules", HERE / name)


@pytest.mark.parametrize("name", FILES)
def test_groups_are_evaluated_in_a_fixed_order(name: str) -> None:
    """Promtool shuffles the groups that `group_eval_order` leaves out: a test that lists too few is sometimes red."""
    test = yaml.safe_load((HERE / name).read_text(encoding="utf-8"))
    files = [yaml.safe_load((HERE / file).read_text(encoding="utf-8")) for file in test["rule_files"]]
    groups = {group["name"] for file in files for group in file["groups"]}
    assert len(groups) == 1 or set(test.get("group_eval_order", ())) == groups
