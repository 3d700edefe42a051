"""An exception that left what the rank records, and that the training thread has not done with.

Where `destroy_process_group` hangs in a `finally`, nobody says bye for minutes, and yet the rank has failed.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from tachograph.client.core.phases import PhaseClock
from tachograph.client.transport.failure_reason import describe, places_of
from tachograph.text.code_line import CodeLine


class StandingFailure(NamedTuple):
    """Why, in words, since when by `time.perf_counter`, and the lines that it came through, the innermost first."""

    category: str
    message: str
    since: float
    places: tuple[CodeLine, ...]


def standing_failure(clock: PhaseClock) -> StandingFailure | None:
    """Return the exception that left a step, a save, an evaluation or a loader, if nothing was recorded since.

    One that the program has caught and has done with is none: it goes on, or ends as it likes. For the sender thread.
    """
    left = clock.left
    if left is None or clock.since != left.at:
        return None
    error = _handled_in(left.thread)
    if id(error) != left.error or not isinstance(error, Exception) or isinstance(error, StopIteration):
        return None
    return StandingFailure(*describe(error), left.at, places_of(error))


def _handled_in(thread: int) -> BaseException | None:
    found = sys._current_exceptions().get(thread)
    return found[1] if isinstance(found, tuple) else found  # a tuple until Python 3.11
