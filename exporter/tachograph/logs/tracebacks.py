"""Python's tracebacks, which ranks that share a file may print line by line among each other's."""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 2_000
"""Lines after which a traceback is given up."""

_FRAME = re.compile(r'\s+File "(?P<file>[^"]{1,400})", line (?P<line>\d+)(?:, in (?P<name>.{1,80}))?')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|<frozen|<string>")

Who = tuple[str, "int | None"]


@dataclass
class _Traceback:
    lines: int = 0
    last: str = ""
    own: str = ""


class Tracebacks:
    """The tracebacks that have begun and not ended, one for each rank."""

    def __init__(self) -> None:
        self._open: dict[Who, _Traceback] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def __contains__(self, who: Who) -> bool:
        return who in self._open

    def begin(self, who: Who) -> None:
        """Begin one of a rank, in place of one that has not ended."""
        self._open[who] = _Traceback()

    def add(self, who: Who, text: str) -> str | None:
        """Return None for a line that belongs to the traceback, else its innermost call: this is the exception.

        The innermost call outside installed packages is preferred.
        """
        entry = self._open[who]
        entry.lines += 1
        if entry.lines > LONGEST:
            del self._open[who]
            return None
        if frame := _FRAME.match(text):
            where = f"{frame['file']}:{frame['line']}" + (f" in {frame['name']}" if frame["name"] else "")
            entry.last = where
            if not _LIBRARY.search(frame["file"]):
                entry.own = where
            return None
        if not text.strip() or text[0] in " \t":
            return None
        del self._open[who]
        return entry.own or entry.last
