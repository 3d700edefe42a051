"""An exception that holds a rank up, as its states tell: its process lives, and it has failed all the same."""

from __future__ import annotations

from typing import NamedTuple

from tachograph.catalog import index as catalog
from tachograph.wire import MAX_NOTICE_BYTES, cut

FAILED_AFTER_SECONDS = 20.0
"""Time for which an exception may hold a rank up before it has failed."""

SAME_SECONDS = 1.0
"""Two exceptions that are less apart are one, told by a clock that is being set right."""


def known_reason(category: str) -> str:
    """Return what a rank says that it failed by as one of catalog.FAILURE_REASONS; another word is `exception`."""
    return category if category in catalog.FAILURE_REASONS else catalog.FAILURE_REASONS[-1]


class Raised(NamedTuple):
    """Why a rank is held up, since when by the clock of the day, and seen since when by ours."""

    category: str
    message: str
    at: float
    seen: float

    def has_failed_it(self, now: float) -> bool:
        """Return whether it has held the rank up for long enough."""
        return now - self.seen >= FAILED_AFTER_SECONDS


def raised(given: object, before: Raised | None, now: float) -> Raised | None:
    """Return what a state says to hold the rank up, None for nothing; raise ValueError if it is no exception.

    `before` is what the state before said: the same is seen since then.
    """
    if given is None:
        return None
    category, message, at = map(given.get, ("category", "message", "time")) if isinstance(given, dict) else [None] * 3
    if not isinstance(category, str) or not isinstance(message, str) or not isinstance(at, float):
        raise ValueError("no exception")
    known = known_reason(category)
    if before is not None and abs(before.at - at) < SAME_SECONDS:
        at, now = before.at, before.seen
    return Raised(known, cut(message, MAX_NOTICE_BYTES), at, now)
