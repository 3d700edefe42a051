"""What a runbook's shell lines run: programs, their subcommands and options, as far as words tell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

PLAIN = frozenset({"&&", "||", "|", ";", "(", ")", "&"})
"""What ends one command and begins the next."""

PREFIXES = frozenset({"sudo", "timeout"})
"""Programs that run the program which follows them; numbers and options between are theirs."""


def commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a line, without comments, assignments and redirections.

    Raises ValueError for a quotation that does not end.
    """
    reader = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    reader.whitespace_split = True
    words: list[str] = []
    redirected = False
    for token in (*reader, ";"):
        if token in PLAIN or set(token) <= {"(", ")", ";"}:
            if named := _named(words):
                yield named
            words, redirected = [], False
        elif set(token) <= {"<", ">", "&"}:
            redirected = True
            if words and words[-1].isdigit():
                words.pop()
        elif redirected:
            redirected = False
        else:
            words.append(token)


def _named(words: list[str]) -> list[str]:
    """Return a command from its program on."""
    while words and ("=" in words[0].partition("/")[0] or words[0] in PREFIXES):
        prefix = words[0] in PREFIXES
        words = words[1:]
        while prefix and words and (words[0].isdigit() or words[0].startswith("-")):
            words = words[1:]
    return words
