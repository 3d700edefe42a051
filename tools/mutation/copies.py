"""Many mutants in one promtool run: each is a copy, under its own names, of all rules that its change can reach.

A copy's recorded series and alerts end in `__m` and the mutant's number. Rules that the change cannot reach are shared
by all mutants, which is what makes a trial cheap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Rule = dict[str, Any]
RuleFiles = Mapping[str, dict[str, Any]]
"""Rule files by their name without .yml."""

WORD = re.compile(r"[A-Za-z_:][\w:]*")
QUOTED = re.compile(r'("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|#[^\n]*)')
ALERTS = re.compile(r"\b(ALERTS(?:_FOR_STATE)?)\b(?:\s*\{((?:[^}\"]|\"[^\"]*\")*)\})?")
OF_ALERT = re.compile(r'\balertname\s*(=~|!~|!=|=)\s*"([^"]*)"\s*,?')
NUMBER = re.compile(r"__m(\d+)\b")
TESTS: Mapping[str, Callable[[str, str], bool]] = {
    "=": lambda name, word: name == word,
    "!=": lambda name, word: name != word,
    "=~": lambda name, word: re.fullmatch(word, name) is not None,
    "!~": lambda name, word: re.fullmatch(word, name) is None,
}
"""An alert stands as `ALERTS:Name` among the names of recorded series."""


def name_of(rule: Rule) -> str:
    """Return the name of a rule's output."""
    return str(rule["record"]) if "record" in rule else f"ALERTS:{rule['alert']}"


def words(text: str, quoted: bool = False) -> set[str]:
    """Return the names in an expression, or in a template, where quoted text counts as well."""
    return set(WORD.findall(text if quoted else QUOTED.sub(" ", text)))


def asked(text: str, alerts: Iterable[str]) -> set[str]:
    """Return which of the alerts an expression selects."""
    return {alert for one in ALERTS.finditer(text) for alert in matching(one[2] or "", alerts)}


def matching(matchers: str, alerts: Iterable[str]) -> list[str]:
    """Return the alerts that a selector's matchers accept."""
    tests = [(TESTS[one[1]], one[2]) for one in OF_ALERT.finditer(matchers)]
    return sorted(alert for alert in alerts if all(test(alert, word) for test, word in tests))


@dataclass
class Reach:
    """The dependencies between rules; alerts among a test's input series count as well."""

    files: RuleFiles
    alerts: set[str]
    reads: dict[str, set[str]] = field(default_factory=dict)
    found: dict[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rules = [rule for _, _, rule in places(self.files)]
        self.alerts = self.alerts | {rule["alert"] for rule in rules if "alert" in rule}
        recorded = {rule["record"] for rule in rules if "record" in rule}
        for rule in rules:
            found = words(rule["expr"]) | words(json.dumps([rule.get("labels"), rule.get("annotations")]), quoted=True)
            known = (found & recorded) | {f"ALERTS:{alert}" for alert in asked(rule["expr"], self.alerts)}
            self.reads.setdefault(name_of(rule), set()).update(known)

    def down(self, name: str) -> frozenset[str]:
        """Return a name and all outputs that depend on it."""
        if name not in self.found:
            found = {name}
            while more := {reader for reader, read in self.reads.items() if read & found} - found:
                found |= more
            self.found[name] = frozenset(found)
        return self.found[name]

    def up(self, names: Iterable[str]) -> set[str]:
        """Return the names and all outputs that they depend on."""
        found = set(names)
        while more := {one for name in found for one in self.reads.get(name, ())} - found:
            found |= more
        return found


def places(files: RuleFiles) -> Iterator[tuple[str, str, Rule]]:
    """Yield each rule with its file and group."""
    for file, content in files.items():
        for group in content["groups"]:
            for rule in group["rules"]:
                yield file, group["name"], rule


def renamed(text: str, reached: frozenset[str], number: int | None, alerts: Iterable[str]) -> str:
    """Return an expression that reads a mutant's copies where they exist; None: one that reads only the originals."""

    def selector(match: re.Match[str]) -> str:
        names = [named(f"ALERTS:{alert}", reached, number)[7:] for alert in matching(match[2] or "", alerts)]
        others = OF_ALERT.sub("", match[2] or "").strip().strip(",")
        own = f'alertname=~"{"|".join(names) or "-"}"'
        return f"{match[1]}{{{', '.join(filter(None, [others, own]))}}}"

    parts = QUOTED.split(ALERTS.sub(selector, text))
    return "".join(part if odd % 2 else in_words(part, reached, number) for odd, part in enumerate(parts))


def in_words(text: str, reached: frozenset[str], number: int | None) -> str:
    """Return a text with a mutant's names of recorded series."""
    return WORD.sub(lambda match: named(match[0], reached, number), text)


def named(name: str, reached: frozenset[str], number: int | None) -> str:
    """Return the name of a mutant's copy, or the name itself where there is none."""
    return name if number is None or name not in reached else f"{name}__m{number}"


def copied(rule: Rule, reached: frozenset[str], number: int | None, alerts: Iterable[str]) -> Rule:
    """Return a mutant's copy of a rule, or the shared rule if None; its templates read what its expression reads."""
    copy: Rule = dict(rule)
    copy["expr"] = renamed(rule["expr"], reached, number, alerts)
    if number is not None:
        key = "record" if "record" in rule else "alert"
        copy[key] = f"{rule[key]}__m{number}"
        for part in ("labels", "annotations"):
            if part in rule:
                copy[part] = {label: in_words(text, reached, number) for label, text in rule[part].items()}
    return copy
