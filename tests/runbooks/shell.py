"""The programs, subcommands and options in a runbook's shell lines, as far as they can be recognized."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

PLACEHOLDER = re.compile(r"<([a-z][a-z-]*)>")
"""A placeholder that the reader replaces, like `<node>`. The runbooks' README declares each."""

PLAIN = frozenset({"&&", "||", "|", ";", "(", ")", "&"})
"""Separators of commands."""

PREFIXES = frozenset({"sudo", "timeout"})
"""Programs that run the program which follows them; numbers and options between are theirs."""


def filled(line: str) -> str:
    """Return a line with a word in place of each placeholder: `{node}`, which the shell takes as it is."""
    return PLACEHOLDER.sub(r"{\1}", line)


def commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a line, and of those it runs in turn, without assignments and redirections.

    Raises ValueError for a quotation that does not end.
    """
    reader = shlex.shlex(filled(line), posix=True, punctuation_chars="();<>|&")
    reader.whitespace_split = True
    words: list[str] = []
    redirected = False
    for token in (*reader, ";"):
        if token in PLAIN or set(token) <= {"(", ")", ";"}:
            yield from _nested(words)
            words, redirected = [], False
        elif set(token) <= {"<", ">", "&"}:
            redirected = True
            if words and words[-1].isdigit():
                words.pop()
        elif redirected:
            redirected = False
        else:
            words.append(token)


def _nested(words: list[str]) -> Iterator[list[str]]:
    """Yield a command, from its program on, and those that it carries: `ssh`, `kubectl … --`, `"$(…)"`."""
    words = _named(words)
    if not words:
        return
    begins = _carried(words)
    yield words[:begins]
    yield from _nested(words[begins:])
    for word in words[:begins]:
        for inner in re.findall(r"\$\((.+)\)", word):
            yield from commands(inner)


def _carried(words: list[str]) -> int:
    """Return at which word the command begins that this one carries; the number of words if it carries none."""
    if "--" in words:
        return words.index("--") + 1
    if "--pty" in words:
        return words.index("--pty") + 1
    return 2 if words[0] in ("ssh", "chroot") else len(words)


def _named(words: list[str]) -> list[str]:
    """Return a command from its program on."""
    while words and ("=" in words[0].partition("/")[0] or words[0] in PREFIXES):
        prefix = words[0] in PREFIXES
        words = words[1:]
        while prefix and words and (words[0].isdigit() or words[0].startswith("-")):
            words = words[1:]
    return words
