"""Fixtures of the rule tests: promtool, run on the repository's rules with a fixed evaluation order."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.rules.node_series import GROUP, node_series
from tools.mutation.copies import Reach, RuleFiles, asked, name_of, places, words
from tools.mutation.trial import read

ROOT = Path(__file__).resolve().parents[2]

WRITTEN = {
    "run:checkpoint_step:max", "run:checkpoint_age_seconds:min", "run:unsaved:seconds",
    "run:shown_ranks:number", "run:missing_ranks:info",
    "run:steady_progress_timestamp_seconds:max", "run:trouble:timestamp", "node:kernel_said:timestamp",
}  # fmt: skip
"""What texts in many files read."""

Promtool = Callable[..., str]
RuleTests = Callable[..., None]
Behave = Callable[..., None]

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


@cache
def rules_of(path: Path) -> dict[str, Any]:
    """Return a rule file's content."""
    return read(path)


def asserted(scenario: Mapping[str, Any], reach: Reach) -> set[str]:
    """Return the recorded series and alerts that a scenario asserts anything about."""
    found = {f"ALERTS:{one['alertname']}" for one in scenario.get("alert_rule_test", ())}
    for query in (one["expr"] for one in scenario.get("promql_expr_test", ())):
        if "__name__" in query:
            return set(reach.reads)
        found |= words(query) | {f"ALERTS:{alert}" for alert in asked(query, reach.alerts)}
    return found


def read_by(rules: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the names in the expressions, labels and texts of rules."""
    found = set()
    for rule in rules:
        found |= words(rule["expr"]) | words(json.dumps([rule.get("labels"), rule.get("annotations")]), quoted=True)
    return found


def beside(rules: Iterable[Mapping[str, Any]], read: set[str]) -> Iterator[Mapping[str, Any]]:
    """Yield those of the recording rules that are read, or read by one that is, in their order."""
    found = list(rules)
    while more := read_by(rule for rule in found if rule["record"] in read) - read:
        read = read | more
    yield from (rule for rule in found if rule["record"] in read)


def written(files: RuleFiles) -> list[dict[str, Any]]:
    """Return the rules of runs.yml and ranks.yml that record what texts read, but for those that are loaded anyway."""
    left = [ROOT / f"prometheus/rules/{stem}.yml" for stem in ("runs", "ranks") if stem not in files]
    return [rule for path in left for rule in rules_of(path)["groups"][0]["rules"] if rule.get("record") in WRITTEN]


def without_texts(files: RuleFiles, scenario: Mapping[str, Any]) -> RuleFiles:
    """Return the rules, without the texts of alerts that the scenario expects nowhere: each takes up to 60 queries."""
    read = {one["alertname"] for one in scenario.get("alert_rule_test", ()) if one.get("exp_alerts")}

    def bare(rule: dict[str, Any]) -> dict[str, Any]:
        return rule if rule.get("alert") in read else {name: rule[name] for name in rule if name != "annotations"}

    return {
        stem: {"groups": [group | {"rules": list(map(bare, group["rules"]))} for group in content["groups"]]}
        for stem, content in files.items()
    }


def reached(files: RuleFiles, scenario: Mapping[str, Any]) -> tuple[RuleFiles, list[Mapping[str, Any]]]:
    """Return the rules that can change what a scenario asserts, and what these read of `node_series` and `written`."""
    given = " ".join(one["series"] for one in scenario.get("input_series", ()))
    files = without_texts(files, scenario)
    reach = Reach(files, set(re.findall(r'\balertname="(\w+)"', given)))
    needed = reach.up(asserted(scenario, reach))
    found = {
        stem: {
            "groups": [
                group | {"rules": [rule for rule in group["rules"] if name_of(rule) in needed]}
                for group in content["groups"]
            ]
        }
        for stem, content in files.items()
    }
    first = [*node_series(scenario), *written(files)]
    queries = [{"expr": one["expr"]} for one in scenario.get("promql_expr_test", ())]
    if not any("__name__" in one["expr"] for one in queries):
        first = list(beside(first, read_by([*(rule for _, _, rule in places(found)), *queries])))
    return found, first


def apart(test: Mapping[str, Any], files: RuleFiles, folder: Path, *, whole: bool) -> Iterator[Path]:
    """Write each scenario beside the rules that its assertions are about and all that these read; yield the files."""
    for number, scenario in enumerate(test["tests"]):
        if whole:
            own_files, first = files, [*node_series(scenario), *written(files)]
        else:
            own_files, first = reached(files, scenario)
        own = folder / f"scenario-{number}"
        own.mkdir()
        for stem, content in own_files.items():
            (own / f"{stem}.yml").write_text(json.dumps({"groups": content["groups"]}), encoding="utf-8")  # is YAML
        (own / f"{GROUP}.yml").write_text(json.dumps({"groups": [{"name": GROUP, "rules": first}]}), encoding="utf-8")
        names = [f"{stem}.yml" for stem in (GROUP, *files)]
        order = [
            GROUP,
            *(test.get("group_eval_order") or [one["name"] for file in files.values() for one in file["groups"]]),
        ]
        path = own / "test.yml"
        path.write_text(
            json.dumps({**test, "rule_files": names, "group_eval_order": order, "tests": [scenario]}), encoding="utf-8"
        )
        yield path


@pytest.fixture
def behave(promtool: Promtool, request: pytest.FixtureRequest, tmp_path: Path) -> Behave:
    """Run a file of rule tests.

    `make test` has each scenario evaluate only the rules that can change its outcome, in half the CPU time, and write
    only the texts that it expects; on the newer Prometheus, `make test-all` has it evaluate all rules that the file
    loads, with their texts, of which none may fail.
    """
    whole = request.node.callspec.params["programs"] != "bookworm"

    def run(path: Path, program: Path | None = None) -> None:
        test = read(path)
        loaded = {Path(file).stem: rules_of((path.parent / file).resolve()) for file in test["rule_files"]}
        promtool("test", "rules", *apart(test, loaded, tmp_path, whole=whole), program=program)

    return run


@pytest.fixture
def rule_tests(behave: Behave, tmp_path: Path) -> RuleTests:
    """Run generated rule tests over rule files; groups are evaluated in the order of the files."""

    def run(
        rules: Iterable[Path], *tests: Mapping[str, Any], interval: str = "5s", program: Path | None = None
    ) -> None:
        files = list(rules)
        groups = [group for path in files for group in rules_of(path)["groups"]]
        content = {
            "rule_files": [str(path) for path in files],
            "evaluation_interval": interval,
            "group_eval_order": [group["name"] for group in groups],  # promtool shuffles what is not in it
            "tests": tests,
        }
        path = tmp_path / "test.yml"
        path.write_text(json.dumps(content), encoding="utf-8")
        behave(path, program=program)

    return run
