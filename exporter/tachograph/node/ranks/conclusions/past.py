"""A figure of a run against its own past: its level, what it usually is, its best hour, and since when it is worse.

Windows are counted in steps that the run made: a pause adds nothing, and shows as nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

SAMPLE_SECONDS, LEVEL_SECONDS = 5.0, 120.0
"""How far samples of the level are apart, and how many seconds of them make it."""
KEPT_SECONDS, BEST_SECONDS = 15.0, 300.0
"""How far samples of the past, and those of its medians, are apart."""
APART, HOUR, DAY = 300.0, 3600.0, 86400.0
"""The last five minutes say what happens now, and are kept out of what is usual."""
YOUNG = HOUR + APART
FIRST = 600.0
"""Before ten minutes, nothing is usual: five of them must be there."""

Sample = tuple[float, float]
IsWorse = Callable[[float, float], bool]


@dataclass
class Held:
    """The usual figure before the figure got worse, `since` when, and when it `last` was."""

    usual: float
    since: float
    last: float


class Past:
    """Takes a figure each time that the run has made steps; `share` of the samples are at most at its level.

    Where steps are so slow that two minutes hold too few of them, the level is that of the last `least` samples.
    """

    def __init__(self, now: float, share: float = 0.5, least: int = 4) -> None:
        self._began = now
        self._share, self._least = share, least
        self._recent: deque[Sample] = deque()
        self._kept: deque[Sample] = deque()
        self._bests: deque[Sample] = deque()
        self._median: float | None = None
        self._held: Held | None = None
        self.level: float | None = None

    def note(self, now: float, figure: float, is_worse: IsWorse) -> None:
        """Take the figure; `is_worse` tells of a level and of what is usual whether the one is bad news."""
        if self._recent and now - self._recent[-1][0] < SAMPLE_SECONDS:
            return
        self._recent.append((now, figure))
        while len(self._recent) > self._least and self._recent[0][0] < now - LEVEL_SECONDS:
            self._recent.popleft()
        self.level = quantile(self._share, (each for _, each in self._recent))
        if not self._kept or now - self._kept[-1][0] >= KEPT_SECONDS:
            self._keep(now, figure)
        self._judge(now, self.level, is_worse)

    def usual(self, now: float) -> float | None:
        """Return what the figure usually is; None before ten minutes."""
        if self._held is not None and now - self._held.since < DAY:
            return self._held.usual
        return self._median

    @property
    def best(self) -> float | None:
        """The highest median of an hour within a day."""
        return max((median for _, median in self._bests), default=None)

    def worse_seconds(self, now: float) -> float:
        """Return for how long the figure has been worse than usual, interruptions aside; 0 if it is not."""
        held = self._held
        return now - held.since if held is not None and held.last >= self._recent[-1][0] else 0.0

    def _keep(self, now: float, figure: float) -> None:
        self._kept.append((now, figure))
        while self._kept[0][0] < now - YOUNG:
            self._kept.popleft()
        if past := [each for at, each in self._kept if at <= now - APART and now - self._began >= FIRST]:
            self._median = quantile(0.5, past)
        if (
            now - self._began >= YOUNG
            and self._median is not None
            and (not self._bests or now - self._bests[-1][0] >= BEST_SECONDS)
        ):
            self._bests.append((now, self._median))
            while self._bests[0][0] < now - DAY:
                self._bests.popleft()

    def _judge(self, now: float, level: float, is_worse: IsWorse) -> None:
        if (held := self._held) is not None:
            if is_worse(level, held.usual):
                held.last = now
            if now - held.last > YOUNG or now - held.since > 2 * DAY:
                self._held = None
        elif self._median is not None and len(self._recent) >= self._least and is_worse(level, self._median):
            self._held = Held(self._median, now, now)


def quantile(share: float, figures: Iterable[float]) -> float:
    """Return the least figure that this share of them is not above."""
    ordered = sorted(figures)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
