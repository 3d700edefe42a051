"""The rules of two levels: what a cell records of its own nodes, what is judged above, and the series that go up.

A rule's level is read off the rule: a cell records what is of one node, or of all nodes of one Prometheus. Whatever
compares nodes of a run, and every alert, is above, so that each incident is judged once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from tachograph.catalog import index

OF_ONE_PROMETHEUS = "cluster:"
"""Recorded series that begin so are of all nodes that one Prometheus scrapes."""

_LABELS = r"\b(by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)"
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPED = re.compile(_LABELS.replace("|group_left|group_right", ""))
_UNGROUPED = re.compile(
    r"\b(?:sum|min|max|avg|count|group|stddev|stdvar|quantile|topk|bottomk|count_values|limitk|limit_ratio)\s*\("
)
_NOT_NAMES = re.compile(rf"{_QUOTED.pattern}|{_LABELS}|\{{[^}}]*\}}|\[[^\]]*\]")
_NAME = re.compile(r"(?<![\w:.])[a-zA-Z_:][\w:]*(?![\w:]|\s*\()")
_WORDS = frozenset({
    "Inf", "NaN", "and", "bool", "by", "group_left", "group_right", "ignoring", "inf",
    "nan", "offset", "on", "or", "unless", "without",
})  # fmt: skip
_QUERY = re.compile(rf"\b(?:printf|query)\s+({_QUOTED.pattern})")
_ALERTS = frozenset({"ALERTS", "ALERTS_FOR_STATE"})

_GROUP, _RULE, _AHEAD = (
    re.compile(rf"(?m)^{each}") for each in ("  - name: ", " {6}- (?:record|alert): ", " {0,6}#|\n")
)
"""In a rule file: where a group and a rule begin, and lines that belong to what follows them."""

Rule = Mapping[str, Any]


@dataclass(frozen=True)
class Levels:
    """Rule files by name for a cell and for the level above, and the series that a cell records and those it sends."""

    cell: Mapping[str, str]
    above: Mapping[str, str]
    below: frozenset[str]
    sent: tuple[str, ...]


def split(files: Mapping[str, str], dashboards: Iterable[str]) -> Levels:
    """Return the levels of rule files, with all that is read above, by these dashboards too."""
    every = [rule for text in files.values() for rule in _rules(text)]
    below = recorded_in_cells(every)
    above = [rule for rule in every if rule.get("record") not in below]
    judged = {rule["record"] for rule in above if "record" in rule}
    known = {name for rule in every for name in read_by(rule["expr"])} | below | judged | index.BY_NAME.keys()
    read = {name for rule in above for name in read_by(rule["expr"])}
    read |= {name for rule in above for text in _queries(rule) for name in read_by(text) & known}
    read |= {name for board in dashboards for text in _expressions(json.loads(board)) for name in read_by(text)}
    return Levels(
        _kept(files, lambda rule: rule.get("record") in below),
        _kept(files, lambda rule: rule.get("record") not in below),
        below,
        tuple(sorted(read - judged - _ALERTS)),
    )


def recorded_in_cells(rules: Iterable[Rule]) -> frozenset[str]:
    """Return the names of the recorded series that a cell has all it takes for."""
    records = [rule for rule in rules if "record" in rule]
    below = {rule["record"] for rule in records} - {rule["record"] for rule in records if not is_of_a_node(rule)}
    others = {rule["record"] for rule in records} - below | _ALERTS
    while more := {rule["record"] for rule in records if read_by(rule["expr"]) & others} & below:
        below -= more
        others |= more
    return frozenset(below)


def is_of_a_node(rule: Rule) -> bool:
    """Return whether an expression keeps nodes apart, or is of all nodes of one Prometheus and of no run."""
    expression = _QUOTED.sub('""', rule["expr"])
    grouped = [(word, re.findall(r"\w+", labels)) for word, labels in _GROUPED.findall(expression)]
    if rule["record"].startswith(OF_ONE_PROMETHEUS):
        return not any("run" in labels for _, labels in grouped)
    apart = all(("instance" in labels) == (word in ("by", "on")) for word, labels in grouped)
    return apart and not _UNGROUPED.search(expression)


def all_read(files: Mapping[str, str], dashboards: Iterable[str]) -> frozenset[str]:
    """Return the names of the series that rule files, texts of alerts included, and dashboards read."""
    every = [rule for text in files.values() for rule in _rules(text)]
    queries = [query for rule in every for query in (rule["expr"], *_queries(rule))]
    queries += [query for board in dashboards for query in _expressions(json.loads(board))]
    return frozenset(name for query in queries for name in read_by(query))


def read_by(expression: str) -> frozenset[str]:
    """Return the names of the series that a PromQL expression reads."""
    return frozenset(_NAME.findall(_NOT_NAMES.sub(" ", expression))) - _WORDS


def _rules(text: str) -> list[Rule]:
    """Return the rules of a file in their order."""
    content = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return [rule for group in content["groups"] for rule in group["rules"]]


def _queries(rule: Rule) -> Iterator[str]:
    """Yield the queries in the texts of an alert."""
    for text in [*rule.get("annotations", {}).values(), *rule.get("labels", {}).values()]:
        for quoted in _QUERY.findall(text):
            yield re.sub(r"\\(.)", r"\1", quoted[1:-1])


def _expressions(part: object) -> Iterator[str]:
    """Yield the queries of a dashboard."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "expr" and isinstance(value, str):
                yield value
            else:
                yield from _expressions(value)
    elif isinstance(part, list):
        for each in part:
            yield from _expressions(each)


def _kept(files: Mapping[str, str], wanted: Callable[[Rule], bool]) -> dict[str, str]:
    """Return the files with the wanted rules alone, word by word; those without any are left out."""
    kept = {name: [wanted(rule) for rule in _rules(text)] for name, text in files.items()}
    return {name: _with(text, iter(kept[name])) for name, text in files.items() if any(kept[name])}


def _with(text: str, kept: Iterator[bool]) -> str:
    """Return a rule file with the rules that are kept, and the groups that have any left."""
    found, *pieces = _pieces(text)
    title = ""
    for piece in pieces:
        if not _RULE.search(piece):
            title = piece
        elif next(kept):
            found += title + piece
            title = ""
    return found.rstrip("\n") + "\n"


def _pieces(text: str) -> Iterator[str]:
    """Yield what stands before a file's groups, then each group's head and each of its rules, with its comments."""
    piece = ahead = ""
    for line in text.splitlines(keepends=True):
        if _AHEAD.match(line):
            ahead += line
            continue
        if _GROUP.match(line) or _RULE.match(line):
            yield piece
            piece = ""
        piece, ahead = piece + ahead + line, ""
    yield piece
