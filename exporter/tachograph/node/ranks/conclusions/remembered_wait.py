"""A wait for others, of a rank or of a node's median rank, over some steps, and what it was within the hour before."""

from __future__ import annotations

from collections import deque
from statistics import median

HOLD_SECONDS, HOLD_STEPS, LONGEST_HOLD = 20.0, 4, 1000.0
"""For how long a wait must last to count: longer than the window of its figures, so that one stall is never enough.
A step usually takes 300 s at most; those that a rank slows take longer."""

PAST_EVERY = 60.0
PAST_DELAY = 120.0
PAST_SECONDS = 3720.0
PAST_KNOWN = 300.0
"""The past is the median of an hour, a figure a minute, that ended 2 minutes ago; known after 5 minutes."""


def hold_seconds(step: float) -> float:
    """Return for how long a wait must last, given the usual step."""
    return min(max(HOLD_STEPS * step, HOLD_SECONDS), LONGEST_HOLD)


class RememberedWait:
    """Seconds per step of one wait, in order of time."""

    __slots__ = ("_minutes", "_past", "_recent", "_since")

    def __init__(self, now: float) -> None:
        self._since = now
        self._recent: deque[tuple[float, float]] = deque()
        self._minutes: deque[tuple[float, float]] = deque()
        self._past: float | None = None

    def take(self, now: float, wait: float, step: float) -> None:
        """Note a wait; only a change is kept."""
        recent = self._recent
        if not recent or recent[-1][1] != wait:
            recent.append((now, wait))
        begin = now - hold_seconds(step)
        if HOLD_STEPS * step > HOLD_SECONDS:
            # Counted, as all nodes count alike: by the clock, one may miss a step that another still has.
            begin -= step
            while len(recent) > HOLD_STEPS + 1:
                recent.popleft()
        while len(recent) > 1 and recent[1][0] <= begin:
            recent.popleft()

    def learn(self, now: float, step: float) -> None:
        """Note what is usual, as a share of the step: once a minute, while it is."""
        minutes = self._minutes
        minutes.append((now, self._recent[-1][1] / step))
        while minutes[0][0] < now - PAST_SECONDS:
            minutes.popleft()
        shares = [share for at, share in minutes if at <= now - PAST_DELAY]
        self._past = median(shares) if shares and minutes[0][0] <= now - PAST_KNOWN else None

    def lasts(self, now: float, step: float) -> bool:
        """Return whether it is known for long enough."""
        return bool(self._recent) and self._since <= now - hold_seconds(step)

    @property
    def last(self) -> float:
        """The present wait."""
        return self._recent[-1][1]

    @property
    def least(self) -> float:
        """The least wait of the last steps."""
        return min(wait for _, wait in self._recent)

    @property
    def greatest(self) -> float:
        """The greatest wait of the last steps."""
        return max(wait for _, wait in self._recent)

    def past(self, step: float) -> float | None:
        """Return its wait as it was, for steps of this length; None where that is not known yet."""
        return None if self._past is None else self._past * step
