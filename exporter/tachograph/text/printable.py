"""Makes text from other sources safe to print on a terminal."""

from __future__ import annotations


def printable(text: str, instead: str = "?") -> str:
    """Return a text with control characters, line breaks and changes of writing direction replaced."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else instead for letter in text)
