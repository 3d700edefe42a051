"""`python -m tools.words`: refuses words that make a native speaker stop, in all that a user reads.

Part of `make check`. Read are documents, texts of commands, metrics, dashboards, alerts and notifications; not code,
comments or docstrings.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]

PHRASES: Mapping[str, str] = {
    r"\bbut for\b": "except, except for",
    r"\banew\b": "again",
    r"\b(?:is|are|was|were) meant\b(?! to\b)": "is intended",
    r"\bfrom (?!then\b|now\b)\S+(?: s| min| h)? on(?=\s*(?:[,.;:)|]|$))": "since, from … upwards",
    r"\bfrom which on\b": "since",
    r"\bwhoever\b": "anyone who",
    r"[,;] else\b": "otherwise",
    r"\bhangs since\b": "has been hanging for",
    r"\b(?:lost|lose|loses) speed\b": "slowed down",
    r"\bdamage[sd]? packets\b": "corrupts packets",
    r"\bmakes? errors\b": "reports errors",
    r"\bbarely enough\b": "nearly full",
    r"\bconspicuous\b": "the worst, standing out",
    r"\b(?:is|are|was|were|not) told\b": "is reported, logged, sent",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bdear(?:er|est)?\b": "expensive",
    r"\bthrice\b": "three times",
    r"\b(?:to|can|cannot|may) be had\b": "available",
    r"\bof late\b": "recently",
    r"\bput right\b": "corrected",
    r"\. Else\b": "Otherwise",
    r"\bno help\b": "does not help",
    r"\bfor want of\b": "for lack of",
    r"(?<!you )\bsee to the\b": "check the",
    r"\bholds? for (?:critical|fatal|dead)\b": "considers",
    r"\bthat (?:is|was) none\b|\bthat it was none\b": "say what it was instead",
    r"\b(?:first|last|true) word\b": "name the thing: loss, message, verdict",
    r"\b(?:is|are|was|were) (?:then )?no (?:climb|fault|hang|node|number|part|pause|replicas?|wait)\b": "is not a",
    r"\bunder run\b": "with run",
    r"\bheld down\b": "throttled",
    r"\btaken out of use\b": "retired, decommissioned",
    r"\bthe least visible first\b": "worst visibility first",
    r"\b(?:stands?|waits?) (?:still )?since\b": "has stood still since, has waited since",
    r"\btak(?:e|es|en|ing) (?:it|the change) back\b|\btak(?:e|ing) back (?:the|a|what)\b": "revert",
    r"\bper second and rank\b": "per second per rank",
    r"\btimes its usual\b(?! \w)": "times the usual",
    r", as by an?\b": "for example by",
    r"\bwherein\b|\bwhereof\b|\bthereof\b|\bwherefrom\b": "in which, of which",
}
"""What is refused, in any case -> what to write instead."""

_REFUSED = {re.compile(phrase, re.IGNORECASE): instead for phrase, instead in PHRASES.items()}
_DOCUMENTS = re.compile(r"(?!CHANGELOG|tests/|grafana/preview/node_modules/).*\.md$")
_PROGRAMS = re.compile(r"(?:exporter/tachograph|grafana)/(?!preview).*\.py$")
_RULES = re.compile(r"prometheus/(?:src/.*|macros)\.yml$|alertmanager/.*\.tmpl$")


def found(path: str, text: str) -> Iterator[str]:
    """Yield each refused phrase as `file:line: "phrase": what to write instead`."""
    if _DOCUMENTS.match(path):
        lines = _prose(text)
    elif _PROGRAMS.match(path):
        lines = _strings(text)
    elif _RULES.match(path):
        lines = ((number, line) for number, line in _numbered(text) if not line.lstrip().startswith("#"))
    else:
        return
    for number, line in lines:
        for phrase, instead in _REFUSED.items():
            yield from (f'{path}:{number}: "{match[0]}": {instead}' for match in phrase.finditer(line))


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(text.splitlines(), 1)


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a document outside of blocks of code, without code in them."""
    code = False
    for number, line in _numbered(text):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            yield number, re.sub(r"`[^`]*`", "``", line)


def _strings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of a program, docstrings left out."""
    tree = ast.parse(text)
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def main() -> int:
    """Print what is refused in the files that git knows; return 1 if there is any."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    refused = [
        line
        for path in files
        if any(kind.match(path) for kind in (_DOCUMENTS, _PROGRAMS, _RULES)) and (ROOT / path).is_file()
        for line in found(path, (ROOT / path).read_text(encoding="utf-8"))
    ]
    print("\n".join(refused), end="\n" if refused else "")
    return bool(refused)


if __name__ == "__main__":
    sys.exit(main())
