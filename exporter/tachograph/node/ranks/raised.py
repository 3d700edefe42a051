"""An exception that holds a rank up, as its states tell: its process lives, and it has failed all the same."""

from __future__ import annotations

from typing import NamedTuple

from tachograph.catalog import index as catalog
from tachograph.node.ranks.frames import LAST_INSTANT
from tachograph.wire import MAX_NOTICE_BYTES, cut

FAILED_AFTER_SECONDS = 20.0
"""Time for which an exception may hold a rank up before it has failed."""

SAME_SECONDS = 1.0
"""Two exceptions that are less apart are one: frames are heard a little later or sooner."""


def known_reason(category: str) -> str:
    """Return what a rank says that it failed by as one of catalog.FAILURE_REASONS; another word is `exception`."""
    return category if category in catalog.FAILURE_REASONS else catalog.FAILURE_REASONS[-1]


class Raised(NamedTuple):
    """Why a rank is held up, since when, and since when that has been seen, by the exporter's monotonic clock.

    `told` is the Unix time that the rank gives for the former.
    """

    category: str
    message: str
    at: float
    seen: float
    told: float

    def has_failed_it(self, now: float) -> bool:
        """Return whether it has held the rank up for long enough."""
        return now - self.seen >= FAILED_AFTER_SECONDS


def raised(given: object, before: Raised | None, made: float, now: float, heard: float | None) -> Raised | None:
    """Return what a state says to hold the rank up, None for nothing; raise ValueError if it is no exception.

    The state was made at the Unix time `made` and heard `now`. `before` is what the one before said, which was `heard`
    at that time: the same is seen since then, and a new one was not raised before that, whatever the clock of the day
    was set to.
    """
    if given is None:
        return None
    category, message, told = map(given.get, ("category", "message", "time")) if isinstance(given, dict) else [None] * 3
    if not isinstance(category, str) or not isinstance(message, str) or not isinstance(told, (int, float)):
        raise ValueError("no exception")
    if not 0 <= told <= LAST_INSTANT:  # an integer may be too long for a double
        raise ValueError("no time at which it can have been raised")
    at = now - max(0.0, made - told)
    if before is not None and (told == before.told or abs(before.at - at) < SAME_SECONDS):
        at, seen = before.at, before.seen
    else:
        at, seen = at if heard is None else max(at, heard), now
    return Raised(known_reason(category), cut(message, MAX_NOTICE_BYTES), at, seen, told)
