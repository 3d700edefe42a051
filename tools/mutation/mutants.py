"""The mutants of a rule file: one comparison, number, window, duration or clause changed at a time.

Expressions are changed as text, at tokens that are unambiguous in PromQL: strings, label matchers and comments are
left alone.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
EXPLAINED = Path(__file__).with_name("mutants.yml")
GENERATED = {"dcgm"}
"""Rule files that a program writes; they are tested through it."""

FLIPPED = {">": "<=", "<": ">=", ">=": "<", "<=": ">", "==": "!=", "!=": "=="}
TOKEN = re.compile(
    r"""(?P<skip>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\{[^}]*\}|\[[^\]]*\]|\#[^\n]*)
    |(?P<word>[A-Za-z_:][\w:]*)
    |(?P<number>(?<![\w.])\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?:ms|[smhdwy])?(?![\w.]))
    |(?P<compare>[<>]=?|[=!]=)
    |(?P<open>\()|(?P<close>\))""",
    re.VERBOSE,
)
SET_OPERATORS = {"and", "unless", "or"}
WINDOWED = re.compile(r"\[(\d+)([smhd])\]")


@dataclass(frozen=True)
class Mutant:
    """One change: in `file`, rule number `rule` of `group`, which records `writes`, gets `content` under `key`."""

    file: str
    group: str
    rule: int
    title: str
    writes: str
    key: str
    content: str
    change: str

    @property
    def name(self) -> str:
        """File, rule and change: unique among all mutants."""
        return f"{self.file}: {self.title}: {self.change}"


def mutants_of(file: str, text: str) -> Iterator[Mutant]:
    """Yield every mutant of a rule file."""
    for group in yaml.safe_load(text)["groups"]:
        titles: Counter[str] = Counter()
        named: Counter[tuple[str, str]] = Counter()
        for number, rule in enumerate(group["rules"]):
            title = rule.get("record") or rule["alert"]
            writes = title if "record" in rule else f"ALERTS:{title}"
            titles[title] += 1
            if titles[title] > 1:
                title += f" ({titles[title]})"
            for key, content, change in changes(rule):
                named[title, change] += 1
                again = f" ({named[title, change]})" if named[title, change] > 1 else ""
                yield Mutant(file, group["name"], number, title, writes, key, content, change + again)


def explained() -> dict[str, str]:
    """Return the reason for each equivalent mutant, one that changes nothing, by its name."""
    found = yaml.safe_load(EXPLAINED.read_text(encoding="utf-8"))
    return {f"{one['file']}: {one['rule']}: {one['change']}": one["reason"] for one in found}


def candidates(files: Sequence[str], rules: Path = ROOT / "prometheus" / "rules") -> Iterator[Mutant]:
    """Yield every mutant of the named rule files, of all if none is named."""
    for path in sorted(rules.glob("*.yml")):
        if path.stem not in GENERATED and (not files or path.stem in files):
            yield from mutants_of(path.stem, path.read_text(encoding="utf-8"))


def drawn(every: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return a random sample of mutants, stratified by rule file, with at least one of each."""
    chance = random.Random(seed)
    found = []
    for file in sorted({one.file for one in every}):
        own = [one for one in every if one.file == file]
        found += chance.sample(own, min(len(own), max(1, round(count * len(own) / len(every)))))
    return found


def unchanged(every: Iterable[Mutant]) -> Iterator[Mutant]:
    """Yield one for each rule, without a change: whatever kills it is a fault of this tool."""
    for one in {(one.file, one.group, one.rule): one for one in every}.values():
        yield replace(one, key="comment", content="", change="nothing")


def changes(rule: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield key, new content and description of each change of a rule."""
    seen = {rule["expr"]}
    for content, change in expressions(rule["expr"]):
        if content not in seen:
            seen.add(content)
            yield "expr", content, change
    for key in ("for", "keep_firing_for"):
        if (duration := rule.get(key)) and duration != "0s":
            yield key, "0s", f"{key} {duration} -> 0s"
            yield key, scaled(duration, 2), f"{key} {duration} -> {scaled(duration, 2)}"


def scaled(number: str, by: float) -> str:
    """Return a number or duration multiplied by a factor, durations in whole units."""
    figure, unit = re.fullmatch(r"([\d.eE+-]+?)([a-z]*)", number).groups()  # type: ignore[union-attr]
    if unit and by < 1:
        return f"{max(1, int(float(figure) * by))}{unit}"
    return f"{float(figure) * by:g}{unit}"


def expressions(text: str) -> Iterator[tuple[str, str]]:
    """Yield each changed expression with the description of the change."""
    tokens = [match for match in TOKEN.finditer(text) if match.lastgroup != "skip"]
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else None
        if token["compare"]:
            flipped = FLIPPED[token[0]]
            yield swap(text, token, flipped), f"{token[0]} -> {flipped} at {place(text, token)}"
        elif token["number"]:
            for other in shifted(token["number"], before):
                yield swap(text, token, other), f"{token[0]} -> {other} at {place(text, token)}"
        elif token["word"] in SET_OPERATORS:
            yield from dropped(text, tokens, index)
    for window in WINDOWED.finditer(text):
        other = f"[{scaled(window[1] + window[2], 2)}]"
        yield swap(text, window, other), f"{window[0]} -> {other} at {place(text, window)}"


def shifted(number: str, before: re.Match[str] | None) -> Iterator[str]:
    """Yield twice and half of a number; a limit of 0 or 1 moves by 1."""
    compared = before is not None and bool(before["compare"] or before["word"] == "bool")
    if number == "0":
        if compared:
            yield "1"
    elif number == "1" and compared:
        yield from ("0", "2")
    else:
        yield from (scaled(number, 2), scaled(number, 0.5))


def dropped(text: str, tokens: list[re.Match[str]], index: int) -> Iterator[tuple[str, str]]:
    """Yield the expression without a set operator and its right side, up to the next one on the same level."""
    depth = 0
    end = len(text)
    for token in tokens[index + 1 :]:
        if token["open"]:
            depth += 1
        elif token["close"]:
            depth -= 1
        if depth < 0 or (depth == 0 and token["word"] in SET_OPERATORS):
            end = token.start()
            break
    clause = " ".join(text[tokens[index].start() : end].split())
    yield text[: tokens[index].start()] + text[end:], f"without `{clause}`"


def swap(text: str, match: re.Match[str], other: str) -> str:
    """Return the text with the match replaced."""
    return text[: match.start()] + other + text[match.end() :]


def place(text: str, match: re.Match[str]) -> str:
    """Return the text around a match, so that a person finds it."""
    return "`" + " ".join(text[max(0, match.start() - 40) : match.end() + 12].split()) + "`"
