"""When the lines of a block were printed that have no time: at that of the line before."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from tachograph.logs.line import LogLine
from tachograph.logs.progress import STEP, says_end, step_label

BEFORE = 4096
"""Bytes before a line without a time in which one is looked for."""
_MAY_BE_TIME = re.compile(rb"\d\d:\d\d|\d{10}")
_LINE = 400
"""Bytes of a line that may have its time."""


class LastStep(NamedTuple):
    """The last step that a stream reports. `finished`: the line says that the training is over."""

    time: float | None
    finished: bool


class LineTimes:
    """The times of one stream, block by block."""

    def __init__(self, parsed: Callable[[str], LogLine]) -> None:
        self._parsed = parsed
        self._end = b"\n"
        self._block = b""
        self._looked: tuple[int, float | None] = (0, None)

    @property
    def whole(self) -> bool:
        """Whether what was read ends with the end of a line."""
        return self._end.endswith(b"\n")

    def begin(self, block: bytes) -> None:
        """Turn to the next block."""
        self._block, self._looked = block, (0, None)

    def end(self) -> None:
        """Keep what is needed of the block for the next one."""
        self._end = self._block[-BEFORE:] or self._end
        self._block = b""

    def first(self) -> float | None:
        """Return the first time in the beginning of the block."""
        return self._time(self._block[:BEFORE], last=False)

    def last(self) -> float | None:
        """Return the last time of what was read."""
        return self._time(self._end)

    def last_step(self) -> LastStep | None:
        """Return the last step in the last lines of what was read, None if they have none."""
        places = [match.start() for match in STEP.finditer(self._end.lower())]
        for place in reversed(places):
            begin = self._end.rfind(b"\n", 0, place) + 1
            if label := step_label(line := self._end[begin : begin + _LINE].partition(b"\n")[0]):
                return LastStep(self._time(line), finished=says_end(label))
        return None

    def before(self, begin: int) -> float | None:
        """Return the last time in the lines before a place; no line is read for it twice."""
        if not begin:
            return self.last()
        looked, known = self._looked
        start = max(looked, begin - BEFORE)
        found = self._time(self._block[start:begin])
        if found is None and looked >= begin - BEFORE:
            found = known
        self._looked = begin, found
        return found

    def _time(self, lines: bytes, *, last: bool = True) -> float | None:
        if not _MAY_BE_TIME.search(lines):
            return None
        parts = lines.split(b"\n")
        for part in filter(_MAY_BE_TIME.search, reversed(parts) if last else parts):
            if (time := self._parsed(part.decode("utf-8", errors="replace")[:_LINE]).time) is not None:
                return time
        return None
