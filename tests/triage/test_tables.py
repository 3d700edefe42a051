"""The tables: every alert has a row, in the order of the inhibitions; every failure mode has commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tachograph.__main__ import COMMANDS
from tachograph.catalog.node import KERNEL_EVENT_KINDS
from tachograph.catalog.rank import CATEGORY_OF_REASON, FAILURE_CATEGORIES, FAILURE_REASONS
from tachograph.findings.kinds import CATEGORIES, KINDS, ORDER, severities
from tachograph.triage import refinements
from tachograph.triage.modes import MODES, WASTED, next_commands
from tachograph.triage.questions import QUESTIONS
from tests.every import every

ROOT = Path(__file__).resolve().parents[2]

OUT_OF_DATE = {"ExporterDown", "TelemetryLost"}
"""They silence tickets because the readings are old; they are not their cause."""


def test_rows_name_what_there_is() -> None:
    """A row's question, category and mode are known, and so are those of the branches below it."""
    questions = {question.name for question in QUESTIONS}
    assert {kind.question for kind in KINDS} <= questions
    assert {kind.category for kind in KINDS} <= set(CATEGORIES)
    assert {kind.mode for kind in KINDS} | refinements.BRANCHES.keys() | WASTED <= MODES.keys()
    for category, mode in refinements.KERNEL_KINDS.values():
        assert category in CATEGORIES
        assert mode in {"", *MODES}
    assert CATEGORY_OF_REASON.keys() == set(FAILURE_REASONS)
    assert set(CATEGORY_OF_REASON.values()) < set(FAILURE_CATEGORIES)
    assert refinements.KERNEL_KINDS.keys() <= set(KERNEL_EVENT_KINDS)


def _severities() -> dict[str, set[str]]:
    """Return the severities that each alert has in the rules."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "prometheus/rules").glob("*.yml"):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                if "alert" in rule:
                    found.setdefault(rule["alert"], set()).update(severities(rule["labels"]["severity"]))
    return found


def _inhibitions() -> set[tuple[str, str]]:
    """Return who silences whom, where both may have one severity: where not, the more severe is above anyway."""
    rules = yaml.safe_load((ROOT / "alertmanager/alertmanager.yml").read_text(encoding="utf-8"))["inhibit_rules"]
    known, found = _severities(), set()
    for rule in rules:
        sources, targets = (_matched(rule[side], known) for side in ("source_matchers", "target_matchers"))
        found |= {
            (source, target)
            for source, of_source in sources.items()
            for target, of_target in targets.items()
            if of_source & of_target
        }
    return found


def _matched(matchers: list[str], known: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the alerts that matchers allow, each with its severities that they allow."""
    patterns = {one.partition("=")[0]: one.partition('"')[2].rstrip('"') for one in matchers}
    allowed = patterns.get("severity", ".*")
    return {
        alert: {one for one in severities if re.fullmatch(allowed, one)}
        for alert, severities in known.items()
        if re.fullmatch(patterns["alertname"], alert)
    }


def test_the_order_is_that_of_the_inhibitions() -> None:
    """Whoever silences another alert stands above it."""
    wrong = {(source, target) for source, target in _inhibitions() if ORDER[source] > ORDER[target]}
    assert not {(source, target) for source, target in wrong if source not in OUT_OF_DATE}


@every("mode", MODES)
def test_commands_are_whole(mode: str) -> None:
    """Commands are filled with what is known, quoted; a gap is marked; our own are commands that there are."""
    known = {"run": "a b'c", "rank": "5", "node": "node-1", "gpu": "3", "pid": ""}
    for one in next_commands(mode, known):
        assert "{" not in one.command + one.why
        assert "<pid>" in one.command or "pid" not in one.command.split()
        for ours in re.findall(r"tachograph (\w+)", one.command):
            assert ours in COMMANDS
        if "a b" in one.command:
            assert """'a b'"'"'c'""" in one.command
