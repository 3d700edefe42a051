"""Where the training thread is while its rank makes no step: the line of the user's code, and what it waits in.

Read by the sender thread, from the interpreter's own table of frames: the training thread takes no part, and a rank
that makes its steps is never looked at. Names of files and functions, no values.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from time import perf_counter
from types import FrameType
from typing import NamedTuple

from tachograph.client.core.steps import StepRecord
from tachograph.client.signals.ordinary_steps import OrdinarySteps
from tachograph.wire import MAX_WHERE_BYTES, cut

STANDSTILL_SECONDS, STANDSTILL_STEPS = 10.0, 3
"""A step is overdue after so long and so many usual ones: earlier than a hang is."""

PAUSE_SECONDS, PAUSE_FACTOR = 60.0, 2.0
"""Start-up, a save or an evaluation is long after so long, and twice the longest one so far."""

EVERY_SECONDS = 10.0
"""How often a rank that stands still is looked at again."""

SWITCH = "TACHOGRAPH_STACKS"
"""The variable that turns this off, with 0."""

PAUSES = frozenset({"init", "checkpoint", "eval"})

_LIBRARIES = ("site-packages", "dist-packages")
_PYTHON = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120 - pathlib costs 3 ms and 0.7 MB to import
_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep  # noqa: PTH100, PTH120


class Place(NamedTuple):
    """A line of code on a stack."""

    path: str
    line: int
    function: str


class Stall(NamedTuple):
    """A rank stands still since that `time.perf_counter`: in a pause or its first step, or else after a step."""

    since: float
    is_pause: bool


class Standstill:
    """Knows how long steps and pauses usually take, and so when to look at the thread that it was made on.

    `stall` is what `where` found when it was last asked.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.stall: Stall | None = None
        self.is_off = os.environ.get(SWITCH, "").strip().lower() in ("0", "off", "false")
        self._ordinary = OrdinarySteps()
        self._usual = 0.0
        self._moved: float | None = None
        self._phase = "", 0.0
        self._longest = dict.fromkeys(PAUSES, 0.0)
        self._looked: float | None = None
        self._where = ""

    def observe(self, record: StepRecord) -> None:
        """Take a completed step."""
        self._moved = record.ended
        if (step := self._ordinary.cost(record)) is not None:
            self._usual += (step.seconds - self._usual) / (8 if self._usual else 1)

    def where(self, phase: str, since: float) -> str:
        """Return where the rank stands still, "" while it does not; it is in a phase since that `time.perf_counter`."""
        now = perf_counter()
        before, began = self._phase
        self._phase = phase, since
        if before in self._longest and began != since:
            self._longest[before] = max(self._longest[before], since - began)
        if phase in self._longest and self._moved is not None:
            self._moved = now  # a step may take its time again after a pause
        self.stall = self._stall(now, phase, since)
        if self.is_off or self.stall is None:
            self._looked, self._where = None, ""
        elif self._looked is None or now - self._looked >= EVERY_SECONDS:
            self._looked, self._where = now, whereabouts(self.thread)
        elif since > self._looked:
            self._where = ""  # what was seen belongs to another phase
        return self._where

    def look(self) -> str:
        """Return where the rank is now, whether it stands still or not."""
        return whereabouts(self.thread)

    def _stall(self, now: float, phase: str, since: float) -> Stall | None:
        if phase in self._longest:
            limit, began, is_pause = max(PAUSE_SECONDS, PAUSE_FACTOR * self._longest[phase]), since, True
        elif self._moved is None:
            limit, began, is_pause = PAUSE_SECONDS, since, True
        else:
            limit, began, is_pause = STANDSTILL_SECONDS + STANDSTILL_STEPS * self._usual, self._moved, False
        return Stall(began, is_pause) if now - began > limit else None


def whereabouts(thread: int) -> str:
    """Return the innermost line of the user's code on a thread, and the innermost of all if that is another.

    As `data.py:88 load_shard, in socket.py:706 readinto`; "" where the thread is gone.
    """
    return where_in(_places(sys._current_frames().get(thread)))


def where_in(places: Iterable[Place]) -> str:
    """Return the same of a stack, its innermost line first; what we have put around PyTorch's calls is not shown."""
    innermost: Place | None = None
    for place in places:
        if innermost is None and not place.path.startswith(_OWN):
            innermost = place
        if is_users(place.path):
            return cut(", in ".join(dict.fromkeys(map(_line, (place, innermost or place)))), MAX_WHERE_BYTES)
    return "" if innermost is None else cut(_line(innermost), MAX_WHERE_BYTES)


def is_users(path: str) -> bool:
    """Return whether a file is the user's own: neither Python's nor an installed package's nor ours."""
    return not (
        path.startswith((_PYTHON, _OWN, "<frozen ")) or any(f"{os.sep}{name}{os.sep}" in path for name in _LIBRARIES)
    )


def _places(frame: FrameType | None) -> Iterator[Place]:
    while frame is not None:
        code = frame.f_code
        yield Place(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back


def _line(place: Place) -> str:
    return f"{os.path.basename(place.path)}:{place.line} {place.function}"  # noqa: PTH119 - as above
