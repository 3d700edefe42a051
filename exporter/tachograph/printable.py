"""Text that others chose, on its way to a terminal."""

from __future__ import annotations


def printable(text: str, instead: str = "?") -> str:
    """Return a text without what steers a terminal: no control character, line break or change of direction."""
    return "".join(letter if letter.isprintable() else instead for letter in text)
