"""Moments that a rank tells of, by the exporter's monotonic clock.

A rank tells of a moment by the clock of the day, which may be set at any time: forward an hour, when a suspended VM is
resumed; back, by NTP. So what it says is believed as far as what was heard bears it out: a step that a frame is the
first to report was completed after the frame before. An age by the rank's own monotonic clock needs no such care.
"""

from __future__ import annotations

NOISE_SECONDS = 0.05
"""Two readings of one moment, each counted back from a present, differ by no more."""


class ToldMoment:
    """One moment, such as the end of the last step, told anew by each frame; `at` is None until it is known."""

    __slots__ = ("at", "told")

    def __init__(self, at: float | None = None, told: float | None = None) -> None:
        self.at = at
        self.told = told

    def take(self, told: float | None, made: float, now: float, before: float | None, age: float | None = None) -> None:
        """Take what a frame says: the moment and when the frame was made, both Unix times; or its age in seconds.

        `now` is when the frame was heard and `before` when the one before it was, None if it is the first one, by the
        monotonic clock. A frame that says neither leaves the moment as it was.
        """
        if age is None and told is None:
            return
        is_same = told is not None and told == self.told
        self.told = told
        at = now - (max(0.0, made - (told or 0.0)) if age is None else age)
        if self.at is not None and (is_same or abs(at - self.at) <= NOISE_SECONDS):
            return  # also where it is counted back from a clock that was set
        self.at = at if before is None or age is not None else max(at, before)

    def skip(self, seconds: float, now: float) -> None:
        """Leave out seconds that do not count."""
        if self.at is not None:
            self.at = min(now, self.at + seconds)
