"""Where the training thread is while its rank makes no step: the line of the user's code, and what it waits in.

Read by the sender thread, from the interpreter's own table of frames: the training thread takes no part, and a rank
that makes its steps is never looked at. Names of files and functions, no values.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from time import perf_counter
from typing import NamedTuple

from tachograph.catalog.rank import PAUSES, PHASES, SHORTEST_SAVE_SECONDS
from tachograph.client.core.steps import StepRecord
from tachograph.client.signals.ordinary_steps import OrdinarySteps
from tachograph.client.signals.process_activity import ProcessActivity
from tachograph.text import code_line
from tachograph.wire import MAX_WHERE_BYTES, cut

STANDSTILL_SECONDS, STANDSTILL_STEPS = 10.0, 3
"""A step is overdue after so long and so many usual ones: earlier than a hang is."""

PAUSE_SECONDS, KNOWN_PAUSE_SECONDS, PAUSE_FACTOR = 60.0, 30.0, 2.0
"""Start-up, a save or another pause is long after so long, the first and later ones, and twice the longest so far.

A save in which the process has done nothing for ten seconds has the time of a step, or twice the longest, unless it is
the first."""

EVERY_SECONDS = 10.0
"""How often a rank that stands still is looked at again."""

LONGEST_GAP_SECONDS = 3.0
"""It is looked once a second. Where more time has passed, the process itself did not run: it was stopped, its machine
suspended or overloaded. Then a rank that is as quick as ever would seem to have stood still, so more does not count."""

SWITCH = "TACHOGRAPH_STACKS"
"""The variable that turns this off, with 0."""

_SAVE = PHASES.index("checkpoint")


class Stall(NamedTuple):
    """A rank stands still since that `time.perf_counter`: in a pause or its first step, or else after a step.

    A save in which nothing is done is not a pause.
    """

    since: float
    is_pause: bool


class Standstill:
    """Knows how long steps and pauses usually take, and so when to look at the thread that it was made on.

    `stall` and `still` are what `where` found when it was last asked: `still` are the seconds for which the process has
    done nothing in the save that is under way.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.stall: Stall | None = None
        self.still = 0.0
        self.is_off = os.environ.get(SWITCH, "").strip().lower() in ("0", "off", "false")
        self._ordinary = OrdinarySteps()
        self._usual = 0.0
        self._moved: float | None = None
        self._phase = "", 0.0
        self._longest = dict.fromkeys(PAUSES, 0.0)
        self._saved = 0.0
        self._activity = ProcessActivity()
        self._asked = perf_counter()
        self._lost = 0.0
        """Seconds of the present phase in which the process did not run."""
        self._looked: float | None = None
        self._where = ""

    def observe(self, record: StepRecord) -> None:
        """Take a completed step."""
        self._moved = record.ended
        saved, self._saved = record.seconds[_SAVE] - self._saved, record.seconds[_SAVE]
        if saved >= SHORTEST_SAVE_SECONDS:  # looked at once a second, a short one is not seen
            self._longest["checkpoint"] = max(self._longest["checkpoint"], saved)
        if (step := self._ordinary.cost(record)) is not None:
            self._usual += (step.seconds - self._usual) / (8 if self._usual else 1)

    def where(self, phase: str, since: float) -> str:
        """Return where the rank stands still, "" while it does not; it is in a phase since that `time.perf_counter`."""
        now = perf_counter()
        before, began = self._phase
        self._phase = phase, since
        self._leave_out(now, is_new=began != since)
        if before in self._longest and began != since:
            self._longest[before] = max(self._longest[before], since - began)
        if phase in self._longest and self._moved is not None:
            self._moved = now  # a step may take its time again after a pause
        self.still = self._activity.still_seconds(now, since) if phase == "checkpoint" else 0.0
        self.stall = self._stall(now, phase, since)
        if self.is_off or self.stall is None:
            self._looked, self._where = None, ""
        elif self._looked is None or now - self._looked >= EVERY_SECONDS:
            self._looked, self._where = now, whereabouts(self.thread)
        elif since > self._looked:
            self._where = ""  # what was seen belongs to another phase
        return self._where

    def _leave_out(self, now: float, *, is_new: bool) -> None:
        """Leave out the time in which the process did not run, unless the rank has stood still already."""
        gap, self._asked = now - self._asked, now
        lost = max(0.0, gap - LONGEST_GAP_SECONDS) if self.stall is None else 0.0
        self._lost = lost + (0.0 if is_new else self._lost)
        if self._moved is not None:
            self._moved = min(now, self._moved + lost)

    def look(self) -> str:
        """Return where the rank is now, whether it stands still or not."""
        return whereabouts(self.thread)

    def _stall(self, now: float, phase: str, since: float) -> Stall | None:
        if phase in self._longest:
            longest = self._longest[phase]
            least = KNOWN_PAUSE_SECONDS if longest else PAUSE_SECONDS
            limit, began, is_pause = max(least, PAUSE_FACTOR * longest), since + self._lost, True
            if longest >= SHORTEST_SAVE_SECONDS and self.still > STANDSTILL_SECONDS:
                limit, is_pause = max(self._overdue, PAUSE_FACTOR * longest), False
        elif self._moved is None:
            limit, began, is_pause = PAUSE_SECONDS, since + self._lost, True
        else:
            limit, began, is_pause = self._overdue, self._moved, False
        return Stall(began, is_pause) if now - began > limit else None

    @property
    def _overdue(self) -> float:
        return STANDSTILL_SECONDS + STANDSTILL_STEPS * self._usual


def whereabouts(thread: int) -> str:
    """Return the innermost line of the user's code on a thread, and the innermost of all if that is another.

    As `data.py:88 load_shard, in socket.py:706 readinto`; "" where the thread is gone.
    """
    return cut(code_line.whereabouts(_stack(thread)), MAX_WHERE_BYTES)


def _stack(thread: int) -> Iterator[code_line.CodeLine]:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield code_line.CodeLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
