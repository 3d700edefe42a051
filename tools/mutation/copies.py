"""Mutants side by side in one promtool: each is a copy of all rules that its change can reach, under names of its own.

A copy's recorded series and alerts end in `__m` and the mutant's number. What a copy reads and its change cannot reach,
it shares with all the others, which is what makes a trial cheap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Rule = dict[str, Any]
Book = Mapping[str, dict[str, Any]]
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
    """Return what a rule writes."""
    return str(rule["record"]) if "record" in rule else f"ALERTS:{rule['alert']}"


def words(text: str, quoted: bool = False) -> set[str]:
    """Return the names in an expression, or in a template, where what stands in quotes counts as well."""
    return set(WORD.findall(text if quoted else QUOTED.sub(" ", text)))


def asked(text: str, alerts: Iterable[str]) -> set[str]:
    """Return the alerts that an expression selects, of those there are."""
    return {alert for one in ALERTS.finditer(text) for alert in matching(one[2] or "", alerts)}


def matching(matchers: str, alerts: Iterable[str]) -> list[str]:
    """Return the alerts that a selector's braces let through."""
    tests = [(TESTS[one[1]], one[2]) for one in OF_ALERT.finditer(matchers)]
    return sorted(alert for alert in alerts if all(test(alert, word) for test, word in tests))


@dataclass
class Reach:
    """Who reads whom, over rule files; alerts among a test's own series are known, too."""

    book: Book
    alerts: set[str]
    reads: dict[str, set[str]] = field(default_factory=dict)
    found: dict[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rules = [rule for _, _, rule in places(self.book)]
        self.alerts = self.alerts | {rule["alert"] for rule in rules if "alert" in rule}
        recorded = {rule["record"] for rule in rules if "record" in rule}
        for rule in rules:
            found = words(rule["expr"]) | words(json.dumps([rule.get("labels"), rule.get("annotations")]), quoted=True)
            known = (found & recorded) | {f"ALERTS:{alert}" for alert in asked(rule["expr"], self.alerts)}
            self.reads.setdefault(name_of(rule), set()).update(known)

    def down(self, name: str) -> frozenset[str]:
        """Return a name and all that a change of it can reach."""
        if name not in self.found:
            found = {name}
            while more := {reader for reader, read in self.reads.items() if read & found} - found:
                found |= more
            self.found[name] = frozenset(found)
        return self.found[name]

    def up(self, names: Iterable[str]) -> set[str]:
        """Return the names and all that they rest on."""
        found = set(names)
        while more := {one for name in found for one in self.reads.get(name, ())} - found:
            found |= more
        return found


def places(book: Book) -> Iterator[tuple[str, str, Rule]]:
    """Yield each rule with its file and group."""
    for file, content in book.items():
        for group in content["groups"]:
            for rule in group["rules"]:
                yield file, group["name"], rule


def renamed(text: str, reached: frozenset[str], number: int | None, alerts: Iterable[str]) -> str:
    """Return an expression that reads a mutant's copies where there are any; None: that reads the originals alone."""

    def selector(match: re.Match[str]) -> str:
        names = [named(f"ALERTS:{alert}", reached, number)[7:] for alert in matching(match[2] or "", alerts)]
        others = OF_ALERT.sub("", match[2] or "").strip().strip(",")
        own = f'alertname=~"{"|".join(names) or "-"}"'
        return f"{match[1]}{{{', '.join(filter(None, [others, own]))}}}"

    parts = QUOTED.split(ALERTS.sub(selector, text))
    return "".join(part if odd % 2 else in_words(part, reached, number) for odd, part in enumerate(parts))


def in_words(text: str, reached: frozenset[str], number: int | None) -> str:
    """Return a text whose names of recorded series are a mutant's."""
    return WORD.sub(lambda match: named(match[0], reached, number), text)


def named(name: str, reached: frozenset[str], number: int | None) -> str:
    """Return the name that something has for a mutant."""
    return name if number is None or name not in reached else f"{name}__m{number}"


def copied(rule: Rule, reached: frozenset[str], number: int | None, alerts: Iterable[str]) -> Rule:
    """Return a rule for a mutant, and for everyone if None; texts read what the rule reads."""
    copy: Rule = dict(rule)
    copy["expr"] = renamed(rule["expr"], reached, number, alerts)
    if number is not None:
        key = "record" if "record" in rule else "alert"
        copy[key] = f"{rule[key]}__m{number}"
        for part in ("labels", "annotations"):
            if part in rule:
                copy[part] = {label: in_words(text, reached, number) for label, text in rule[part].items()}
    return copy
