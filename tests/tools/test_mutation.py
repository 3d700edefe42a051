"""The mutation run of the rules: mutants side by side in one promtool, each seen by the tests as if it were alone."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

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
def trial(tmp_path: Path) -> ModuleType:
    for folder in ("prometheus/rules", "tests/rules/rules"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "prometheus/rules/rules.yml").write_text(RULES)
    (tmp_path / "tests/rules/rules/behaviour.yml").write_text(json.dumps(TESTS))
    return importlib.import_module("tools.mutation.trial")


def test_each_mutant_is_noticed_as_if_it_were_alone(
    trial: ModuleType, tmp_path: Path, programs: Mapping[str, Path]
) -> None:
    """A change is noticed in the rule, in what rests on it, in a query and in an alert's words; else it survives."""
    texts = importlib.import_module("tools.mutation.text")
    (plain,) = trial.scenarios([tmp_path / "tests/rules/rules/behaviour.yml"], tmp_path / "prometheus/rules")
    every = dict(enumerate(texts.mutants("rules", RULES)))

    def noticed(scenario: Any, mutants: Mapping[int, Any]) -> set[str]:
        heard = {number: one for number, one in mutants.items() if scenario.notices(scenario.reach.down(one.writes))}
        found = trial.Batch(scenario, heard, programs["promtool"], tmp_path).killed()
        return {f"{mutants[number].title}: {mutants[number].change.partition(' at ')[0]}" for number in found}

    everything = {f"{one.title}: {one.change.partition(' at ')[0]}" for one in every.values()}
    assert noticed(plain, every) == {
        "run:a:sum: > -> <=", "run:b:sum: > -> <=", "run:b:sum: 5 -> 10", "Late: > -> <=", "Late: 2 -> 4",
        "Late: for 1m -> 0s",
    }  # fmt: skip
    assert noticed(plain.with_texts(), every) - noticed(plain, every) == {"run:c:sum: 3 -> 6", "run:c:sum: 3 -> 1.5"}
    assert {"run:b:sum: 5 -> 2.5", "Told: 7 -> 14"} < everything
    unchanged = dict(enumerate(texts.unchanged(every.values())))
    assert len(unchanged) == 5
    assert not noticed(plain, unchanged) | noticed(plain.with_texts(), unchanged)
