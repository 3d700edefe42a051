"""How far an alert is from a metric, and how much there is to know: the budgets of the rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from tachograph.files.shipped import read_yaml
from tachograph.findings.kinds import severities

RULES = Path(__file__).resolve().parents[2] / "prometheus"
BUDGETS = {
    "recorded series": 152,
    "of these, that read their own last value": 10,
    "circles of series that read each other": 0,
    "rules between the median alert and a metric": 2,
    "rules between the furthest alert and a metric": 4,
    "pages with more than two recorded series between them and a metric": 0,
    "series behind the alert with most": 20,
    "lines of source": 3550,
    "characters of expressions": 122_500,
    "characters of texts": 98_500,
    "queries in texts": 230,
    "characters of the longest text": 3_000,
    "queries in the text with most": 12,
}
"""The most that there may be, with room for another alert."""

Graph = Mapping[str, frozenset[str]]
WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def reads(expression: str, names: frozenset[str]) -> frozenset[str]:
    """The recorded series that an expression reads."""
    return frozenset(WORD.findall(expression)) & names


def asked(text: str) -> int:
    """How many queries a text has."""
    return len(re.findall(r"\|\s*query|\bquery\s", text))


def reachable(graph: Graph) -> Graph:
    """All that each series rests on, itself only if it is in a circle."""
    reached = {name: set(below) for name, below in graph.items()}
    while True:
        grown = {name: below.union(*(reached[each] for each in below)) for name, below in reached.items()}
        if grown == reached:
            return {name: frozenset(below) for name, below in reached.items()}
        reached = grown


def depths(graph: Graph, below: Graph) -> dict[str, int]:
    """The longest way from each series down to a metric; a circle counts with all its members."""

    @cache
    def depth(name: str) -> int:
        circle = frozenset(each for each in below[name] if name in below[each]) | {name}
        return len(circle) + max((depth(each) for one in circle for each in graph[one] - circle), default=0)

    return {name: depth(name) for name in graph}


@pytest.fixture(scope="module")
def found() -> dict[str, float]:
    """What the rules come to, but for those of DCGM, which stand in for another exporter's names."""
    files = [path for path in (RULES / "rules").glob("*.yml") if "dcgm" not in path.name]
    rules = [rule for path in files for group in read_yaml(path)["groups"] for rule in group["rules"]]
    names = frozenset(rule["record"] for rule in rules if "record" in rule)
    read: dict[str, set[str]] = {name: set() for name in names}
    for rule in rules:
        if "record" in rule:
            read[rule["record"]] |= reads(rule["expr"], names)
    graph = {name: frozenset(below - {name}) for name, below in read.items()}
    below = reachable(graph)
    circles = {frozenset(each for each in below[name] if name in below[each]) for name in names if name in below[name]}
    deep, alerts = depths(graph, below), {rule["alert"]: set[str]() for rule in rules if "alert" in rule}
    for rule in rules:
        if "alert" in rule:
            alerts[rule["alert"]] |= reads(rule["expr"], names)
    pages = {
        rule["alert"] for rule in rules if "alert" in rule and "critical" in severities(rule["labels"]["severity"])
    }
    rests = {alert: 1 + max((deep[name] for name in given), default=0) for alert, given in alerts.items()}
    far = rests.values()
    texts = [" ".join(rule["annotations"].values()) for rule in rules if "alert" in rule]
    behind = [len(given.union(*(below[name] for name in given))) for given in alerts.values()]
    return {
        "recorded series": len(names),
        "of these, that read their own last value": sum(name in below for name, below in read.items()),
        "circles of series that read each other": len(circles),
        "rules between the median alert and a metric": median(far),
        "rules between the furthest alert and a metric": max(far),
        "pages with more than two recorded series between them and a metric": sum(rests[page] > 3 for page in pages),
        "series behind the alert with most": max(behind),
        "characters of expressions": sum(len(" ".join(rule["expr"].split())) for rule in rules),
        "characters of texts": sum(map(len, texts)),
        "queries in texts": sum(map(asked, texts)),
        "characters of the longest text": max(len(text) for text in texts),
        "queries in the text with most": max(map(asked, texts)),
        "lines of source": sum(len(path.read_text().splitlines()) for path in (RULES / "src").glob("*.yml")),
    }


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_rules_stay_simple(found: dict[str, float], budget: str) -> None:
    """No figure exceeds its budget."""
    assert found[budget] <= BUDGETS[budget]
