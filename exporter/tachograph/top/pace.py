"""How fast counters went between two looks at a node: per rank by its own steps, per GPU by the clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

WINDOW_SECONDS = 20.0
"""What a rate is taken over once it can be: as in the recorded lag."""
KEPT_SECONDS = 600.0
"""How long ago the step before may have been completed."""


Key = tuple[str, int, str]
"""An attempt of a rank: run, rank, attempt."""

Part = tuple[str, str]
"""A GPU: index and uuid."""


@dataclass(frozen=True)
class RankCounters:
    """The counters of one attempt of one rank."""

    steps: float
    progress: float
    tokens: float | None
    flops: float | None
    wait: float | None
    entered: Mapping[str, float]
    """The sequence number of the last collective entered, by process group."""


@dataclass(frozen=True)
class RankPace:
    """How a rank went from one completed step to another."""

    steps: float
    seconds: float
    tokens: float | None
    flops: float | None
    wait: float | None

    @property
    def step_seconds(self) -> float:
        """Seconds per step."""
        return self.seconds / self.steps

    @property
    def wait_seconds(self) -> float | None:
        """Exposed wait per step."""
        return None if self.wait is None else self.wait / self.steps


@dataclass(frozen=True)
class GpuCounters:
    """The counters of one GPU; seconds by the reason for which clocks were held."""

    sm_cycles: float | None
    sm_active: float | None
    tensor_active: float | None
    held: Mapping[str, float]


@dataclass(frozen=True)
class Look:
    """The counters of one page, and when it was read by a clock that never jumps."""

    at: float
    ranks: Mapping[Key, RankCounters]
    gpus: Mapping[Part, GpuCounters]


class Past:
    """The looks of the last ten minutes."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque()

    def add(self, look: Look) -> None:
        """Add the newest look."""
        while self._looks and look.at - self._looks[0].at > KEPT_SECONDS:
            self._looks.popleft()
        self._looks.append(look)

    def rank(self, key: Key) -> RankPace | None:
        """Return how a rank went, over the window or the last step before it; None before its second step in sight."""
        now = self._looks[-1].ranks.get(key)
        if now is None:
            return None
        look = self._before(lambda look: key in look.ranks and look.ranks[key].steps < now.steps)
        if look is None or now.progress <= look.ranks[key].progress:
            return None
        then = look.ranks[key]
        return RankPace(
            now.steps - then.steps,
            now.progress - then.progress,
            _delta(now.tokens, then.tokens),
            _delta(now.flops, then.flops),
            _delta(now.wait, then.wait),
        )

    def gpu(self, key: Part) -> tuple[float, GpuCounters] | None:
        """Return over how many seconds, and by how much, a GPU's counters rose; None at the first look."""
        now = self._looks[-1].gpus[key]
        look = self._before(lambda look: key in look.gpus and look is not self._looks[-1])
        if look is None:
            return None
        then = look.gpus[key]
        rose = GpuCounters(
            _delta(now.sm_cycles, then.sm_cycles),
            _delta(now.sm_active, then.sm_active),
            _delta(now.tensor_active, then.tensor_active),
            {reason: max(0.0, seconds - then.held.get(reason, seconds)) for reason, seconds in now.held.items()},
        )
        return self._looks[-1].at - look.at, rose

    def behind(self, run: str) -> Mapping[Key, float]:
        """Return the ranks that the others of a run wait for in a collective, while none of them has moved on."""
        if len(self._looks) < 2:
            return {}
        now, before = (
            {key: rank.entered for key, rank in look.ranks.items() if key[0] == run and rank.entered}
            for look in (self._looks[-1], self._looks[-2])
        )
        if now != before:
            return {}
        furthest: dict[str, float] = {}
        for entered in now.values():
            for group, number in entered.items():
                furthest[group] = max(number, furthest.get(group, number))
        gaps = {key: max(furthest[group] - number for group, number in entered.items()) for key, entered in now.items()}
        return {key: gap for key, gap in gaps.items() if gap > 0}

    def _before(self, fits: Callable[[Look], bool]) -> Look | None:
        """Return the newest look that fits and is as old as the window, else the oldest that fits."""
        newest = self._looks[-1].at
        fitting = [look for look in self._looks if fits(look)]
        old = [look for look in fitting if newest - look.at >= WINDOW_SECONDS]
        return old[-1] if old else fitting[0] if fitting else None


def _delta(now: float | None, then: float | None) -> float | None:
    return None if now is None or then is None or now < then else now - then
