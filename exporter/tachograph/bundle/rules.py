"""The rules of Prometheus, made from their sources for the addresses, job names and limits of a site.

In a source, `$(name argument; argument)` stands for a text of macros.yml, a value of parameters.yml or a limit; nothing
else differs from a rule file.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tachograph.files import shipped
from tachograph.findings.limits import LIMITS, applied
from tachograph.text.humanize import suggestion

HEADER = "# Made by `make rules` from prometheus/src/{}: edit that.\n"
INTERVAL = re.compile(r"(?m)^    interval: (\d+)s$")
TITLE = re.compile(r" *- (?:alert|record): (\S+)")
VALUE = re.compile(r"""[^\s"'\\{}$]+""")
"""A valid parameter: it is used in labels, in PromQL and in templates."""


class MacroError(Exception):
    """A use of a macro that cannot be replaced; the text says why."""


class RuleSourceError(Exception):
    """Every fault of a rendering, each with its file and line."""


@dataclass(frozen=True)
class Macro:
    """A text with the names that each use of it fills in."""

    names: tuple[str, ...]
    text: str


def expand(text: str, macros: Mapping[str, Macro]) -> str:
    """Return the text with every use of a macro replaced; raise MacroError."""
    return "\n".join(_line(line, macros) for line in text.split("\n"))


def _line(line: str, macros: Mapping[str, Macro]) -> str:
    start = line.find("$(")
    if start < 0:
        return line
    end = _closing(line, start + 2)
    indent = " " * (len(line) - len(line.lstrip(" -")))
    text = _use(line[start + 2 : end], macros).replace("\n", "\n" + indent)
    return line[:start] + text + _line(line[end + 1 :], macros)


def _closing(line: str, start: int) -> int:
    """Return the place of the parenthesis that closes the one before `start`."""
    depth = 1
    for place in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[place], 0)
        if not depth:
            return place
    raise MacroError(f"`{line[start - 2 :].strip()}` is not closed on its line")


def _use(use: str, macros: Mapping[str, Macro]) -> str:
    name, _, rest = use.partition(" ")
    given = [expand(one.strip(), macros) for one in rest.split(";")] if rest else []
    macro = macros.get(name)
    if macro is None:
        raise MacroError(f"there is no macro or parameter `{name}`")
    if len(given) != len(macro.names):
        wanted = "; ".join(macro.names) or "no argument"
        raise MacroError(f"`{name}` takes {wanted}, and is given {'; '.join(given) or 'none'}")
    if "$(" not in macro.text:
        return macro.text
    known = {**macros}
    del known[name]  # a macro that used itself never ended
    known.update((one, Macro((), text)) for one, text in zip(macro.names, given, strict=True))
    return expand(macro.text, known)


def sources() -> list[Path]:
    """Return the sources, one for each subject."""
    return sorted(_folder().glob("src/*.yml"))


def _folder() -> Path:
    return shipped.folder() / "prometheus"


@cache
def _content(path: Path) -> Mapping[str, Any]:
    """Return a shipped file's content, which each of the sources needs."""
    return shipped.read_yaml(path)


@cache
def macros() -> Mapping[str, Macro]:
    """Return the macros by name."""
    found = {}
    for title, text in _content(_folder() / "macros.yml").items():
        name, *names = re.split(r"; | ", title)
        found[name] = Macro(tuple(names), text)
    return found


def parameters() -> dict[str, str]:
    """Return the parameters and the default limits as shipped, by name."""
    found: dict[str, str] = dict(_content(_folder() / "parameters.yml"))
    return found | limit_texts({name: limit.value for name, limit in applied({}, {}).items()})


def limit_texts(limits: Mapping[str, float]) -> dict[str, str]:
    """Return limits as parameters of the rules."""
    return {name: f"{value:.12g}" for name, value in limits.items()}


def read_limits(path: Path) -> dict[str, float]:
    """Return the limits that a file sets, by name; raise RuleSourceError with each of its faults, or OSError."""
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RuleSourceError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(given, dict):
        raise RuleSourceError(f"{path}: expected lines such as `hang_seconds: 30`")
    faults = []
    for name, value in given.items():
        if name not in LIMITS:
            faults.append(f"{path}: there is no limit `{name}`; {suggestion(str(name), LIMITS)}")
        elif fault := LIMITS[name].fault(value):
            faults.append(f"{path}: `{name}` {fault}")
    if faults:
        raise RuleSourceError("\n".join(faults))
    return given


def rendered(source: Path, values: Mapping[str, str]) -> str:
    """Return the rule file that a source makes with these parameters; raise RuleSourceError."""
    known = {**macros(), **{name: Macro((), value) for name, value in values.items()}}
    lines, faults = [], []
    for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), start=1):
        if title := TITLE.match(line):
            known["rule"] = Macro((), title[1])
        try:
            lines.append(_line(line, known))
        except MacroError as error:
            faults.append(f"{source}:{number}: {error}")
    if faults:
        raise RuleSourceError("\n".join(faults))
    return HEADER.format(source.name) + "\n".join(lines) + "\n"


def parameter(name: str, text: str) -> str:
    """Return a parameter as a flag gives it; raise ArgumentTypeError. One named `…_job` is the name of a scrape job."""
    return _job(text) if name.endswith("_job") else _value(text)


def _value(text: str) -> str:
    if not VALUE.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is empty, or has a space, a quote, a brace, a backslash or a dollar sign"
        )
    return text.rstrip("/")


def _job(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from error
    return _value(text)


def all_rendered(values: Mapping[str, str]) -> dict[str, str]:
    """Return every rule file by name, with these parameters in place of the shipped ones; raise RuleSourceError."""
    texts, faults = {}, []
    all_values = {**parameters(), **values}
    for source in sources():
        try:
            texts[source.name] = rendered(source, all_values)
        except RuleSourceError as found:
            faults.append(str(found))
    if faults:
        raise RuleSourceError("\n".join(faults))
    return texts


def at_scrapes(text: str, seconds: int) -> str:
    """Return a rule file whose groups are evaluated no more often than targets are scraped, every so many seconds."""
    return INTERVAL.sub(lambda found: f"    interval: {max(seconds, int(found[1]))}s", text)
