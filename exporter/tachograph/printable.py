"""Makes text from other sources safe to print on a terminal, or to show to anybody."""

from __future__ import annotations

import re

LONGEST_PLAIN = 160

_ADDRESS = re.compile(r"\b(?:0x)?[0-9a-f]{12,}\b")
"""Where a process or the kernel has its memory is for nobody who may not read the log itself."""

_UNSAFE = re.compile(r"\\x[0-9a-f]{2}|[^A-Za-z0-9 .,:;/()\[\]#=+!%'_-]")
"""Every character that may have a meaning in a chat or in HTML."""


def printable(text: str, instead: str = "?") -> str:
    """Return a text with control characters, line breaks and changes of writing direction replaced."""
    return "".join(letter if letter.isprintable() else instead for letter in text)


def plain(text: str) -> str:
    """Return a text as it may be shown to anybody: plain characters, no addresses, LONGEST_PLAIN at most."""
    shown = _UNSAFE.sub("?", _ADDRESS.sub("?", text[: 4 * LONGEST_PLAIN])).rstrip(" .")
    return shown if len(shown) <= LONGEST_PLAIN else shown[: LONGEST_PLAIN - 3] + "..."
