"""Invariants of the inhibition rules: no cycle, no page inhibited by a ticket, only labels that exist."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tachograph.findings.kinds import severities
from tachograph.text.duration import parse

ROOT = Path(__file__).resolve().parents[2]
HERO_PAGES = {
    "LossDiverging",
    "GradientNormVanished",
    "CheckpointDiskNearlyFull",
    "LearningRateStuck",
    "CheckpointFailed",
    "CheckpointStale",
    "MemoryLeak",
}


def load(path: Path) -> ModuleType:
    """Import a file that is not in a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


inhibitions = load(Path(__file__).with_name("inhibitions.py"))


def test_every_rule_concerns_somebody_and_asks_for_what_it_compares() -> None:
    """Labels missing on both sides count as equal: the target must require one of the compared labels."""
    for rule, one in zip(inhibitions.configured(), inhibitions.inhibitions(), strict=True):
        assert one.sources, rule
        assert one.targets, rule
        asked = {matcher.split("=~")[0] for matcher in rule["target_matchers"] if matcher.endswith('=~".+"')}
        assert asked & set(one.equal), f"{rule} would silence alerts without any of {one.equal}"


def test_a_ticket_never_silences_a_page() -> None:
    """A source that inhibits a page, also a hero run's ticket that pages, is a page itself."""
    for one in inhibitions.inhibitions():
        pages = any(severity == "critical" for _, severity in one.targets)
        assert not pages or {severity for _, severity in one.sources} == {"critical"}, one
        heroes = {name for name, severity in one.targets if severity == "warning"} & HERO_PAGES
        quiet = {name for name, severity in one.sources if severity != "critical"} - HERO_PAGES
        assert not heroes or not quiet, f"{quiet} may silence {heroes} of a hero run, which pages"


def test_the_tickets_that_page_for_a_hero_are_those_of_the_route() -> None:
    """Both lists are the same."""
    text = (ROOT / "alertmanager/alertmanager.yml").read_text(encoding="utf-8")
    assert sorted(HERO_PAGES) in [
        sorted(line.strip()[len('- alertname=~"') : -1].split("|")) for line in text.splitlines()
    ]


def test_no_circle_of_inhibitions() -> None:
    """Alerts that inhibit each other, directly or not, would never be sent."""
    graph: dict[Any, set[Any]] = {}
    for one in inhibitions.inhibitions():
        for source in one.sources:
            graph.setdefault(source, set()).update(one.targets)

    def reached(start: Any) -> set[Any]:
        found, ahead = set(), list(graph.get(start, ()))
        while ahead:
            if (alert := ahead.pop()) not in found:
                found.add(alert)
                ahead += graph.get(alert, ())
        return found

    assert not [alert for alert in graph if alert in reached(alert)]


def test_an_alert_of_another_run_silences_nothing(rules: list[dict[str, Any]]) -> None:
    """Ranks choose the run and the tier: a rule compares the run, or its source names none, or what it is of pages."""
    tiered = {
        (rule["alert"], severity)
        for rule in rules
        if "tier" in rule.get("labels", {})
        for severity in severities(rule["labels"]["severity"])
    }
    for rule, one in zip(inhibitions.configured(), inhibitions.inhibitions(), strict=True):
        told = {matcher for matcher in rule["source_matchers"] if matcher.startswith(("run=", "tier"))}
        guarded = told & {'run=""', 'tier!="dev"', 'tier=~"standard|hero"'}
        assert "run" in one.equal or guarded or not one.sources & tiered, rule
        run_of_ranks = {name for name, _ in one.targets if re.match("Rank|Run|Straggler|Loss|Checkpoint", name)}
        assert "run" in one.equal or 'run=""' in told or not run_of_ranks, rule


@pytest.fixture(scope="module")
def labels(rules: list[dict[str, Any]]) -> Mapping[tuple[str, str], frozenset[str]]:
    """The labels that each alert and severity can have, from its expression."""
    checker = load(ROOT / "tests/rules/test_contract.py").checker_of(rules)
    found: dict[tuple[str, str], frozenset[str]] = {}
    for rule in rules:
        for severity in severities(rule["labels"]["severity"]) if "alert" in rule else ():
            alert = (rule["alert"], severity)
            found[alert] = found.get(alert, frozenset()) | checker.check(rule["expr"])
    return found


def test_compared_labels_exist_on_both_sides(labels: Mapping[tuple[str, str], frozenset[str]]) -> None:
    """A label that an alert never has would always be equal, or would keep a rule from ever matching."""

    def lacking() -> Iterator[str]:
        for one in inhibitions.inhibitions():
            for side in (one.sources, one.targets):
                for alert in side:
                    if missing := set(one.equal) - labels[alert]:
                        yield f"{alert} has no {missing}: {sorted(one.sources)[0]} -> {sorted(one.targets)[0]}"

    assert not sorted(lacking())


def test_the_lists_of_the_documentation_are_what_is_configured() -> None:
    """docs/pages.md; `python tests/alertmanager/inhibitions.py` prints it."""
    assert inhibitions.lists() in (ROOT / "docs/pages.md").read_text(encoding="utf-8")


def test_what_silences_a_hang_outlasts_it(rules: list[dict[str, Any]]) -> None:
    """Or the hang would be paged when both are over."""
    kept = {
        (rule["alert"], severity): parse(rule.get("keep_firing_for", "0s"))
        for rule in rules
        if "alert" in rule
        for severity in severities(rule["labels"]["severity"])
    }
    hang = ("RunHung", "critical")
    causes = {source for one in inhibitions.inhibitions() if hang in one.targets for source in one.sources}
    assert len(causes) > 6
    assert {source for source in causes if kept[source] <= kept[hang]} == set()
