"""One scenario of the rule tests against many mutants at once, in one promtool that is given only what they need.

A scenario's assertions are repeated for each mutant's copies: an alert's under the copy's name; a query's as the
difference from the same query on the originals, which the scenario itself asserts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tachograph.text import duration
from tools.mutation.copies import (
    ALERTS,
    NUMBER,
    OF_ALERT,
    Reach,
    Rule,
    RuleFiles,
    asked,
    copied,
    name_of,
    renamed,
    words,
)
from tools.mutation.mutants import Mutant

ROOT = Path(__file__).parents[2]
SECONDS = 570.0
"""A promtool run that takes longer is split in halves; a single mutant that takes longer counts as killed."""

THRIFTY = {"GOGC": "400", "GOMAXPROCS": "1"}
"""Several single-threaded promtools in parallel get more done than one that uses all cores."""

MODULES = (
    "test_divergence", "test_gpu_idle_excuse", "test_large_runs", "test_mfu_noise", "test_skew",
)  # fmt: skip
"""Modules of tests/rules that generate tests for promtool."""


class Loader(yaml.CSafeLoader):
    """Reads YAML as promtool does: PyYAML alone takes the samples `0x40` for a hexadecimal number, and 5e9 for text."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if not tag.endswith(":int")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9]\d*)$"), list("-+0123456789"))
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


class TrialError(Exception):
    """Promtool failed for a reason other than a mutant; the message holds its output."""


def read(path: Path) -> dict[str, Any]:
    """Return a YAML file's content."""
    return dict(yaml.load(path.read_text(encoding="utf-8"), Loader))


@dataclass
class RuleTest:
    """One entry of a test file's `tests`, with the rule files that it loads; `texts`: annotations are compared, too."""

    name: str
    test: Mapping[str, Any]
    interval: str
    order: Sequence[str]
    files: RuleFiles
    texts: bool = False
    reach: Reach = field(init=False)
    all_texts: RuleFiles = field(init=False)
    read: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = {
            found[2]
            for one in self.test.get("input_series", ())
            if one["series"].startswith("ALERTS")
            for found in OF_ALERT.finditer(one["series"])
        }
        if not self.texts:
            self.all_texts, self.files = self.files, without_texts(self.files)
        self.reach = Reach(self.files, own)

    def with_texts(self) -> RuleTest:
        """Return the test with annotations compared."""
        return RuleTest(self.name, self.test, self.interval, self.order, self.all_texts, texts=True)

    @cached_property
    def key(self) -> str:
        """A key that changes with the scenario or a rule in it."""
        content = json.dumps([self.test, self.files, self.interval, self.order, self.texts], sort_keys=True)
        return f"{self.name} {hashlib.sha256(content.encode()).hexdigest()[:12]}"

    @cached_property
    def cost(self) -> float:
        """Roughly its work: evaluations times rules times series."""
        ends = [one["eval_time"] for kind in ("alert_rule_test", "promql_expr_test") for one in self.test.get(kind, ())]
        steps = max((duration.parse(str(end)) for end in ends), default=0) / duration.parse(str(self.interval))
        return steps * len(self.reach.reads) * (20 + len(self.test.get("input_series", ())))

    def notices(self, reached: Collection[str]) -> bool:
        """Return whether a change can reach anything that it asserts."""
        return any(True for _ in self.alert_tests(reached)) or any(True for _ in self.queries(reached))

    def alert_tests(self, reached: Collection[str]) -> Iterator[Mapping[str, Any]]:
        """Yield the assertions about alerts within reach."""
        for one in self.test.get("alert_rule_test", ()):
            if f"ALERTS:{one['alertname']}" in reached:
                yield one

    def queries(self, reached: Collection[str]) -> Iterator[Mapping[str, Any]]:
        """Yield the assertions about queries within reach."""
        for one in self.test.get("promql_expr_test", ()):
            if not self.reads(one["expr"]).isdisjoint(reached):
                yield one

    def reads(self, query: str) -> set[str]:
        """Return what a query reads."""
        if query not in self.read:
            alerts = {f"ALERTS:{alert}" for alert in asked(query, self.reach.alerts)}
            self.read[query] = words(query) | alerts
        return self.read[query]

    def names(self, query: str, reached: frozenset[str]) -> set[str]:
        """Return which outputs of rules a query reads."""
        alerts = {f"ALERTS:{alert}" for alert in asked(query, self.seen(query, reached))}
        return (words(query) & self.reach.reads.keys()) | alerts

    def seen(self, query: str, reached: frozenset[str]) -> set[str]:
        """Return the alerts that a query selects; where it names none, those that a change can reach."""
        selectors = [one[2] or "" for one in ALERTS.finditer(query)]
        if any(found[1] in ("=", "=~") for one in selectors for found in OF_ALERT.finditer(one)):
            return self.reach.alerts
        return {alert for alert in self.reach.alerts if f"ALERTS:{alert}" in reached}


def without_texts(files: RuleFiles) -> dict[str, dict[str, Any]]:
    """Return rules without annotations."""
    copy: dict[str, dict[str, Any]] = json.loads(json.dumps(files))
    for content in copy.values():
        for group in content["groups"]:
            for rule in group["rules"]:
                rule.pop("annotations", None)
    return copy


@dataclass
class Batch:
    """A scenario and the mutants that one promtool run tries."""

    scenario: RuleTest
    mutants: Mapping[int, Mutant]
    promtool: Path
    folder: Path

    def killed(self) -> dict[int, str]:
        """Return the mutants that the scenario kills, and how."""
        found: dict[int, str] = {}
        while left := {number: one for number, one in self.mutants.items() if number not in found}:
            try:
                killed, ended = self.attempt(left)
            except subprocess.TimeoutExpired:
                if len(left) == 1:
                    return {**found, **dict.fromkeys(left, "too slow")}
                halves = [dict(list(left.items())[half::2]) for half in (0, 1)]
                return found | {
                    number: how
                    for half in halves
                    for number, how in Batch(self.scenario, half, self.promtool, self.folder).killed().items()
                }
            found |= killed
            if not ended:
                break
        return found

    def attempt(self, mutants: Mapping[int, Mutant]) -> tuple[dict[int, str], bool]:
        """Run promtool; return the killed mutants, and whether a failing rule ended the scenario early."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            path = self.write(mutants, Path(name))
            done = subprocess.run(
                ["nice", "-n", "19", self.promtool, "test", "rules", path],
                capture_output=True, text=True, timeout=SECONDS, check=False, env={**os.environ, **THRIFTY},
            )  # fmt: skip
        printed = done.stdout + done.stderr
        found: dict[int, str] = {}
        ended = False
        for line in printed.splitlines():
            head = re.match(r"\s+(rule|alertname|expr): |.*could not parse expression", line)
            if head and (number := NUMBER.search(line)):
                ended = ended or head[1] in ("rule", None)
                found.setdefault(int(number[1]), head[1] or "parse")
            elif head:
                raise TrialError(f"{self.scenario.name}: {printed[-4000:]}")
        if done.returncode and not found:
            raise TrialError(f"{self.scenario.name}: {printed[-4000:]}")
        return found, ended

    def write(self, mutants: Mapping[int, Mutant], folder: Path) -> Path:
        """Write the rules and the scenario for promtool; return the path of the test."""
        scenario, reach = self.scenario, self.scenario.reach
        test: dict[str, Any] = {
            key: value for key, value in scenario.test.items() if key in ("interval", "external_url")
        }
        test["alert_rule_test"], test["promql_expr_test"] = [], []
        copies: dict[int, frozenset[str]] = {}
        shared: set[str] = set()
        for number, mutant in mutants.items():
            reached = reach.down(mutant.writes)
            alerts_tested = list(scenario.alert_tests(reached))
            queries = list(scenario.queries(reached))
            compared = set().union(*(scenario.names(one["expr"], reached) for one in queries))
            looked_at = compared | {f"ALERTS:{one['alertname']}" for one in alerts_tested}
            copies[number] = own = reached & reach.up(looked_at)
            shared |= compared | {name for copy in own for name in reach.reads[copy]} - own
            test["alert_rule_test"] += [self.alert_test(one, number) for one in alerts_tested]
            for one in queries:
                query = self.difference(one["expr"], own, number, scenario.seen(one["expr"], reached))
                test["promql_expr_test"].append({"eval_time": one["eval_time"], "expr": query})
        files, read = self.rules(mutants, copies, reach.up(shared), folder)
        for one in test["promql_expr_test"]:
            read |= words(one["expr"])
        test["input_series"] = list(self.series(copies, read))
        content = {
            "rule_files": files,
            "evaluation_interval": scenario.interval,
            "group_eval_order": list(scenario.order),
            "tests": [test],
        }
        path = folder / "test.yml"
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    def alert_test(self, one: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Return an alert's assertion for its copy."""
        copy = json.loads(json.dumps(one))
        copy["alertname"] += f"__m{number}"
        for alert in copy.get("exp_alerts") or ():
            if not self.scenario.texts:
                alert.pop("exp_annotations", None)
        return dict(copy)

    def difference(self, query: str, reached: frozenset[str], number: int, alerts: Collection[str]) -> str:
        """Return a query that is empty if the given one returns the same for copies and originals."""
        before = renamed(query, reached, None, alerts)
        after = renamed(query, reached, number, alerts)
        if "ALERTS" in query:
            after = f'label_replace({after}\n, "alertname", "$1", "alertname", "(.+)__m{number}")'
        before, after = f"({before}\n)", f"({after}\n)"
        return f"({after} unless {before}) or ({before} unless {after}) or ({after} != {before})"

    def rules(
        self,
        mutants: Mapping[int, Mutant],
        copies: Mapping[int, frozenset[str]],
        shared: Collection[str],
        folder: Path,
    ) -> tuple[list[str], set[str]]:
        """Write the shared rules and the copies; return the files and the names they read."""
        files = []
        read: set[str] = set()
        alerts = self.scenario.reach.alerts
        for file, content in self.scenario.files.items():
            groups = []
            for group in content["groups"]:
                rules: list[Rule] = []
                for index, rule in enumerate(group["rules"]):
                    if name_of(rule) in shared:
                        rules.append(copied(rule, frozenset(), None, alerts))
                    for number, mutant in mutants.items():
                        if name_of(rule) in copies[number]:
                            own = (mutant.file, mutant.group, mutant.rule) == (file, group["name"], index)
                            changed = {**rule, mutant.key: mutant.content} if own and mutant.content else rule
                            rules.append(copied(changed, copies[number], number, alerts))
                if rules:
                    groups.append({**group, "rules": rules})
                for rule in rules:
                    read |= words(rule["expr"])
                    read |= words(json.dumps([rule.get("labels"), rule.get("annotations")]), quoted=True)
            if groups:
                path = folder / f"{file}.yml"
                path.write_text(json.dumps({**content, "groups": groups}), encoding="utf-8")
                files.append(str(path))
        return files, read

    def series(self, copies: Mapping[int, frozenset[str]], read: Collection[str]) -> Iterator[Mapping[str, Any]]:
        """Yield the input series that are read, and again for each copy of the rule whose output they stand in for."""
        for one in self.scenario.test.get("input_series", ()):
            name = re.match(r"\s*([\w:]*)", one["series"])[1]  # type: ignore[index]
            alert = OF_ALERT.search(one["series"]) if name in ("ALERTS", "ALERTS_FOR_STATE") else None
            if name in read or not name or "__name__" in read:
                yield one
            for number, own in copies.items():
                if name in own:
                    yield {**one, "series": one["series"].replace(name, f"{name}__m{number}", 1)}
                elif alert and f"ALERTS:{alert[2]}" in own:
                    yield {**one, "series": one["series"].replace(f'"{alert[2]}"', f'"{alert[2]}__m{number}"', 1)}


def scenarios(paths: Iterable[Path], rules: Path) -> list[RuleTest]:
    """Return every scenario of the test files, the cheapest first."""
    every = {path.stem: read(path) for path in sorted(rules.glob("*.yml"))}
    found = []
    for path in paths:
        content = read(path)
        names = [name for file in content["rule_files"] for name in files(file, rules)]
        own = {name: every[name] for name in names}
        order = content.get("group_eval_order") or [group["name"] for one in own.values() for group in one["groups"]]
        for number, test in enumerate(content["tests"]):
            interval = content.get("evaluation_interval", "1m")
            found.append(RuleTest(f"{path.parent.name}/{path.stem} {number + 1}", test, interval, order, own))
    return sorted(found, key=lambda one: one.cost)


def files(pattern: str, rules: Path) -> list[str]:
    """Return the rule files that an entry of a test file matches, by stem."""
    return sorted(path.stem for path in rules.glob(Path(pattern).name))


def written(tests: Path, folder: Path) -> Iterable[Path]:
    """Return the promtool tests that Python generates, collected by running it with a promtool that only keeps them."""
    if not (modules := [str(path) for name in MODULES if (path := tests / f"{name}.py").exists()]):
        return []
    content = b"".join(Path(module).read_bytes() for module in modules)
    out = folder / f"written-{hashlib.sha256(content).hexdigest()[:12]}"
    if (out / "all").exists():
        return sorted(out.glob("*.yml"))
    out.mkdir(exist_ok=True)
    began = time.monotonic()
    done = subprocess.run(
        ["nice", "-n", "19", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         "-p", "tools.mutation.keep", "--keep-rule-tests", str(out), "-m", "not hardware", "-k", "bookworm", *modules],
        cwd=tests.parents[1], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    kept = sorted(out.glob("*.yml"))
    if not kept:
        raise TrialError(done.stdout[-3000:] + done.stderr[-3000:])
    (out / "all").touch()
    print(f"{len(kept)} tests generated by Python in {time.monotonic() - began:.0f} s", flush=True)
    return kept
