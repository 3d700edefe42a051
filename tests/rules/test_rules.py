"""The rules load and behave alike on both generations of Prometheus.

<Alert>.yml has the tests of an alert, <subject>/*.yml those of a rule file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.every import every
from tools.mutation.trial import read

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
Promtool = Callable[..., str]
FILES = sorted([*HERE.glob("*.yml"), *HERE.glob("*/*.yml")])
NAMES = [path.relative_to(HERE).with_suffix("").as_posix() for path in FILES]
LONG = {
    "checkpoints/any_interval",
    "checkpoints/long_windows",
    "checkpoints/mixed_saves",
    "data/baseline",
    "data/failed_scrapes",
    "data/limits",
    "data/pauses",
    "data/slow_for_good",
    "data/storage_slow",
    "dcgm/first_xid_any_interval",
    "efficiency/baseline",
    "efficiency/dead_ranks",
    "efficiency/ended",
    "efficiency/failed_scrape",
    "efficiency/limits",
    "efficiency/other_histories",
    "efficiency/pauses",
    "efficiency/slow_for_good",
    "efficiency/stays_slow",
    "exporter/any_interval",
    "exporter/blind_beside_a_hang",
    "exporter/cut_off",
    "exporter/down_for_long",
    "exporter/limits",
    "exporter/rollout",
    "exporter/run_over",
    "gpu_faults/any_interval",
    "gpu_faults/left_and_taken_again",
    "gpu_faults/limits",
    "LossDiverging/slow_steps",
}
"""Long ones, which vary what others assert: left to `make test-all`."""
BOTH = pytest.mark.parametrize("programs", ["bookworm", "sid"], indirect=True)


@BOTH
def test_configuration_is_valid(promtool: Promtool) -> None:
    """prometheus.yml loads, with every rule file and target file it names."""
    assert "rule files found" in promtool("check", "config", "prometheus/prometheus.yml")


@BOTH
def test_rules_are_valid_and_none_stands_twice(promtool: Promtool) -> None:
    """Each rule parses; the linter's only complaint, a duplicate, is an error here."""
    files = sorted((ROOT / "prometheus/rules").glob("*.yml"))
    promtool("check", "rules", "--lint=all", "--lint-fatal", *files)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name, marks=pytest.mark.slow if name in LONG else ())
        for path, name in zip(FILES, NAMES, strict=True)
    ],
)
def test_rules_behave(behave: Callable[[Path], None], path: Path) -> None:
    """Every scenario of the file holds."""
    behave(path)


def test_each_alert_has_tests_by_its_name_or_its_rule_file_has() -> None:
    """In a file, or a folder where they are long: whoever changes a rule finds its tests in one guess."""
    found = {name.split("/")[0] for name in NAMES}
    for path in (ROOT / "prometheus/rules").glob("*.yml"):
        alerts = {rule["alert"] for group in read(path)["groups"] for rule in group["rules"] if "alert" in rule}
        assert path.stem in found or alerts <= found
        found -= {path.stem, *alerts}
    assert not found


@cache
def groups_of(path: Path) -> set[str]:
    """Return the names of a rule file's groups."""
    return {group["name"] for group in read(path)["groups"]}


@every("path", FILES)
def test_groups_are_evaluated_in_a_fixed_order(path: Path) -> None:
    """Promtool shuffles the groups that `group_eval_order` leaves out: a test that lists too few is sometimes red."""
    test = read(path)
    groups = {group for file in test["rule_files"] for group in groups_of((path.parent / file).resolve())}
    assert len(groups) == 1 or set(test.get("group_eval_order", ())) == groups
