"""A test file of tests/rules against a changed rule: whether promtool still finds that all holds.

Texts are left out on both sides, which spares the queries in them: what is asked is whether the right alerts fire. Only
tests that load the rule's file are run, the quickest first; those that are Python last, in a copy of the tree.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mutate_rules_text import Mutant

PYTHON: Mapping[str, tuple[str, ...]] = {
    "progress": ("test_large_runs", "test_skew"),
    "skew": ("test_skew",),
    "step_desync": ("test_skew",),
    "efficiency": ("test_mfu_noise",),
    "efficiency_trend": ("test_mfu_noise",),
    "learning": ("test_large_runs", "test_divergence"),
    "loss_trend": ("test_divergence",),
    "gpu_faults": ("test_large_runs",),
}
"""Rule file -> the modules that test it, too."""

SECONDS = 300.0
"""A mutant that makes promtool take longer is noticed, too."""


class Loader(yaml.SafeLoader):
    """Reads what promtool reads: to PyYAML alone, the samples `0x40` are a hexadecimal number."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if not tag.endswith(":int")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9]\d*)$"), list("-+0123456789"))


def read(path: Path) -> dict[str, Any]:
    """Return a YAML file's content."""
    return dict(yaml.load(path.read_text(encoding="utf-8"), Loader))


@dataclass
class Trial:
    """One test file, and the rule files it loads."""

    name: str
    tests: Mapping[str, Any]
    rules: Mapping[str, Mapping[str, Any]]
    promtool: Path
    folder: Path
    own: Mapping[str, Path] = field(default_factory=dict)

    def passes(self, mutant: Mutant | None) -> bool:
        """Return whether promtool finds no fault."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            files = []
            for file in self.rules:
                if mutant is None or file != mutant.file:
                    files.append(str(self.own[file]))
                else:
                    changed = Path(name) / f"{file}.yml"
                    changed.write_text(json.dumps(mutated(self.rules[file], mutant)), encoding="utf-8")
                    files.append(str(changed))
            test = Path(name) / "test.yml"
            test.write_text(json.dumps({**self.tests, "rule_files": files}), encoding="utf-8")
            try:
                done = subprocess.run(
                    [self.promtool, "test", "rules", test], capture_output=True, timeout=SECONDS, check=False
                )
            except subprocess.TimeoutExpired:
                return False
        return done.returncode == 0


@dataclass
class PythonTrial:
    """A test module that writes promtool's tests itself."""

    name: str
    root: Path
    folder: Path

    def passes(self, mutant: Mutant | None) -> bool:
        """Return whether pytest finds no fault, on the oldest Prometheus."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            copy = Path(name)
            for part in ("prometheus", "bench"):
                shutil.copytree(self.root / part, copy / part, ignore=shutil.ignore_patterns("out", "__pycache__"))
            (copy / "tests/rules").mkdir(parents=True)
            for file in ("pyproject.toml", "tests/conftest.py", f"tests/rules/{self.name}.py"):
                shutil.copy(self.root / file, copy / file)
            if mutant:
                path = copy / "prometheus/rules" / f"{mutant.file}.yml"
                path.write_text(json.dumps(mutated(yaml.safe_load(path.read_text()), mutant)), encoding="utf-8")
            command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", f"tests/rules/{self.name}.py"]
            try:
                done = subprocess.run(command, cwd=copy, capture_output=True, timeout=SECONDS, check=False)
            except subprocess.TimeoutExpired:
                return False
        return done.returncode == 0


def mutated(rules: Mapping[str, Any], mutant: Mutant) -> dict[str, Any]:
    """Return the rule file with the change made."""
    copy: dict[str, Any] = json.loads(json.dumps(rules))
    group = next(one for one in copy["groups"] if one["name"] == mutant.group)
    group["rules"][mutant.rule][mutant.key] = mutant.content
    return copy


def without_texts(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return rules or tests without annotations; two alerts that differ only in them stay two."""
    copy: dict[str, Any] = json.loads(json.dumps(content))
    for group in copy.get("groups", ()):
        for rule in group["rules"]:
            rule.pop("annotations", None)
    for test in copy.get("tests", ()):
        for case in test.get("alert_rule_test", ()):
            for alert in case.get("exp_alerts") or ():
                alert.pop("exp_annotations", None)
    return copy


def trials(
    tests: Path, rules: Path, promtool: Path, folder: Path, files: Iterable[str]
) -> dict[str, list[Trial | PythonTrial]]:
    """Return for each rule file the test files that load it, the quickest first."""
    loaded = {path.stem: without_texts(read(path)) for path in rules.glob("*.yml")}
    own = {}
    for file, content in loaded.items():
        own[file] = folder / f"{file}.yml"
        own[file].write_text(json.dumps(content), encoding="utf-8")
    found: dict[str, list[Trial | PythonTrial]] = {file: [] for file in files}
    for path in sorted(tests.glob("*_test.yml")):
        content = without_texts(read(path))
        names = [name for file in content["rule_files"] for name in matching(file, rules)]
        trial = Trial(path.stem, content, {name: loaded[name] for name in names}, promtool, folder, own)
        for file, each in found.items():
            if file in names:
                each.append(trial)
    seconds = {}
    for one in {one.name: one for each in found.values() for one in each}.values():
        began = time.monotonic()
        if not one.passes(None):
            sys.exit(f"{one.name} fails without any change")
        seconds[one.name] = time.monotonic() - began
    for each in found.values():
        each.sort(key=lambda one: seconds[one.name])
    for file, each in found.items():
        each += [PythonTrial(name, tests.parents[1], folder) for name in PYTHON.get(file, ())]
    return found


def matching(pattern: str, rules: Path) -> list[str]:
    """Return the rule files that a test file's entry means, without their folder."""
    return sorted(path.stem for path in rules.glob(Path(pattern).name))
