"""Texts for people, broken at blanks so that they fit the terminal, or a file."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator

from tachograph.text.printable import printable

ELSEWHERE = 100
"""Columns of a text that does not go to a terminal; $COLUMNS overrides both."""


def columns() -> int:
    """Return how wide a text on standard output may be."""
    return shutil.get_terminal_size((ELSEWHERE, 24)).columns


def fitted(*lines: str, hang: int = 2) -> str:
    """Return lines for standard output, printable and wrapped."""
    return "\n".join(wrapped(map(printable, lines), columns(), hang))


def wrapped(lines: Iterable[str], width: int, hang: int = 2) -> Iterator[str]:
    """Yield lines that are no longer than `width`, but for words that are: paths, addresses.

    What follows a break is indented by `hang` more than its line. What is to be pasted, a command, is not for here.
    """
    for line in lines:
        if len(line) <= width:
            yield line
            continue
        inner = len(line) - len(line.lstrip()) + hang
        yield from textwrap.wrap(
            line,
            max(width, inner + 20),
            subsequent_indent=" " * inner,
            replace_whitespace=False,
            break_long_words=False,
            break_on_hyphens=False,
        )
