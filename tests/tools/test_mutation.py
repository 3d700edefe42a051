"""Mutation testing of the rules: what is changed, and many mutants in one promtool run, each as if it were alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.mutation import mutants, trial

RULES = """
groups:
  - name: record
    rules:
      - {record: 'run:a:sum', expr: sum by (run) (a) > 0}
      - {record: 'run:b:sum', expr: sum by (run) (b) > 5}
  - name: alert
    rules:
      - alert: Late
        expr: run:a:sum > 2 and on (run) run:b:sum
        for: 1m
        annotations: {summary: '{{ with query "run:c:sum" }}{{ . | first | value }}{{ end }} late.'}
      - {alert: Told, expr: 'ALERTS{alertname=~"L.+",alertstate="firing"} unless on (run) quiet > 7'}
      - {record: 'run:c:sum', expr: sum by (run) (c) * 3}
"""
TESTS: Mapping[str, Any] = {
    "rule_files": ["rules.yml"],
    "evaluation_interval": "1m",
    "tests": [{
        "interval": "1m",
        "input_series": [
            {"series": 'a{run="r"}', "values": "0x4 3x10"},
            {"series": 'b{run="r"}', "values": "9x20"},
            {"series": 'c{run="r"}', "values": "1x20"},
        ],
        "alert_rule_test": [{
            "eval_time": "7m", "alertname": "Late",
            "exp_alerts": [{"exp_labels": {"run": "r"}, "exp_annotations": {"summary": "3 late."}}],
        }],
        "promql_expr_test": [
            {"eval_time": "5m", "expr": 'count(ALERTS{alertstate="firing"})', "exp_samples": []},
            {"eval_time": "9m", "expr": "count by (alertname) (ALERTS{alertname=~'.+'})", "exp_samples": [
                {"labels": '{alertname="Late"}', "value": 1}, {"labels": '{alertname="Told"}', "value": 1}]},
        ],
    }],
}  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("prometheus/rules", "tests/rules/rules"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "prometheus/rules/rules.yml").write_text(RULES)
    (tmp_path / "tests/rules/rules/behaviour.yml").write_text(json.dumps(TESTS))
    return tmp_path


def test_each_mutant_is_killed_as_if_it_were_alone(checkout: Path, programs: Mapping[str, Path]) -> None:
    """By the rule itself, by what depends on it, by a query and by an alert's annotations; else it survives."""
    (plain,) = trial.scenarios([checkout / "tests/rules/rules/behaviour.yml"], checkout / "prometheus/rules")
    every = dict(enumerate(mutants.mutants_of("rules", RULES)))

    def killed(scenario: trial.Scenario, tried: Mapping[int, mutants.Mutant]) -> set[str]:
        within = {number: one for number, one in tried.items() if scenario.notices(scenario.reach.down(one.writes))}
        found = trial.Batch(scenario, within, programs["promtool"], checkout).killed()
        return {f"{tried[number].title}: {tried[number].change.partition(' at ')[0]}" for number in found}

    everything = {f"{one.title}: {one.change.partition(' at ')[0]}" for one in every.values()}
    assert killed(plain, every) == {
        "run:a:sum: > -> <=", "run:b:sum: > -> <=", "run:b:sum: 5 -> 10", "Late: > -> <=", "Late: 2 -> 4",
        "Late: for 1m -> 0s",
    }  # fmt: skip
    assert killed(plain.with_texts(), every) - killed(plain, every) == {"run:c:sum: 3 -> 6", "run:c:sum: 3 -> 1.5"}
    assert {"run:b:sum: 5 -> 2.5", "Told: 7 -> 14"} < everything
    unchanged = dict(enumerate(mutants.unchanged(every.values())))
    assert len(unchanged) == 5
    assert not killed(plain, unchanged) | killed(plain.with_texts(), unchanged)


RULE = """
groups:
  - name: g
    rules:
      - alert: Late
        expr: |
          rate(a_total{x="1 > 2"}[1m]) > 0.2
          and on (run) (b == 1)
          unless on (run) c
        for: 0s
        keep_firing_for: 30s
"""


def test_mutants_of_a_rule() -> None:
    """Comparisons, limits, windows, durations and clauses change once each; labels and their values never."""
    found = list(mutants.mutants_of("file", RULE))
    assert len({(one.key, one.content) for one in found}) == len(found)
    contents = [" ".join(one.content.split()) for one in found]
    rate = 'rate(a_total{x="1 > 2"}[1m])'
    assert sorted(contents) == sorted([
        f"{rate} <= 0.2 and on (run) (b == 1) unless on (run) c",
        f"{rate} > 0.4 and on (run) (b == 1) unless on (run) c",
        f"{rate} > 0.1 and on (run) (b == 1) unless on (run) c",
        f"{rate} > 0.2 unless on (run) c",
        f"{rate} > 0.2 and on (run) (b != 1) unless on (run) c",
        f"{rate} > 0.2 and on (run) (b == 0) unless on (run) c",
        f"{rate} > 0.2 and on (run) (b == 2) unless on (run) c",
        f"{rate} > 0.2 and on (run) (b == 1)",
        'rate(a_total{x="1 > 2"}[2m]) > 0.2 and on (run) (b == 1) unless on (run) c',
        "0s", "60s",
    ])  # fmt: skip


def test_every_mutant_of_the_shipped_rules_is_named_once_and_parses_as_yaml() -> None:
    """Names find a mutant again: those that tools/mutation/mutants.yml explains exist."""
    names = {mutant.name for mutant in mutants.candidates([])}
    assert len(names) > 1000
    assert set(mutants.explained()) <= names
    assert all(
        yaml.safe_load(mutant.content) is not None for mutant in mutants.candidates(["skew"]) if mutant.key != "expr"
    )
