"""How fast the counters of a node's page rise: per rank by its own steps, per GPU by the clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tachograph import diagnosis

KEPT_SECONDS = 600.0
"""How long ago the previous step may have been completed."""

AttemptKey = tuple[str, int, str]
"""An attempt of a rank: run, rank, attempt."""
GpuKey = tuple[str, str]
"""A GPU: index and uuid."""


@dataclass(frozen=True)
class RankCounters:
    """The counters of one attempt of one rank; `entered` is the last collective entered by process group."""

    steps: float
    progress: float
    tokens: float | None
    flops: float | None
    entered: Mapping[str, float]
    phase: str = ""


@dataclass(frozen=True)
class RankRates:
    """By how much a rank's counters rose from one completed step to another."""

    steps: float
    seconds: float
    tokens: float | None
    flops: float | None

    @property
    def step_seconds(self) -> float:
        """Seconds per step."""
        return self.seconds / self.steps


@dataclass(frozen=True)
class GpuCounters:
    """The counters of one GPU; `held` is the seconds with clocks held down, by reason."""

    sm_cycles: float | None
    sm_active: float | None
    tensor_active: float | None
    held: Mapping[str, float]


@dataclass(frozen=True)
class PageCounters:
    """The counters of one page, and when it was read by a clock that never jumps."""

    at: float
    ranks: Mapping[AttemptKey, RankCounters]
    gpus: Mapping[GpuKey, GpuCounters]


class CounterHistory:
    """The counters of the last ten minutes."""

    def __init__(self) -> None:
        self._pages: deque[PageCounters] = deque()

    def add(self, page: PageCounters) -> None:
        """Add the newest page."""
        while self._pages and page.at - self._pages[0].at > KEPT_SECONDS:
            self._pages.popleft()
        self._pages.append(page)

    def rank(self, key: AttemptKey) -> RankRates | None:
        """Return a rank's rates over the window or since the step before it; None until it has made two steps."""
        now = self._pages[-1].ranks.get(key)
        if now is None:
            return None
        page = self._before(lambda page: key in page.ranks and page.ranks[key].steps < now.steps)
        if page is None or now.progress <= page.ranks[key].progress:
            return None
        then = page.ranks[key]
        return RankRates(
            now.steps - then.steps,
            now.progress - then.progress,
            _rise(now.tokens, then.tokens),
            _rise(now.flops, then.flops),
        )

    def gpu(self, key: GpuKey) -> tuple[float, GpuCounters] | None:
        """Return over how many seconds, and by how much, a GPU's counters rose; None for the first page."""
        now = self._pages[-1].gpus[key]
        page = self._before(lambda page: key in page.gpus and page is not self._pages[-1])
        if page is None:
            return None
        then = page.gpus[key]
        rose = GpuCounters(
            _rise(now.sm_cycles, then.sm_cycles),
            _rise(now.sm_active, then.sm_active),
            _rise(now.tensor_active, then.tensor_active),
            {reason: max(0.0, seconds - then.held.get(reason, seconds)) for reason, seconds in now.held.items()},
        )
        return self._pages[-1].at - page.at, rose

    def behind(self, run: str) -> Mapping[AttemptKey, float]:
        """Return the ranks of a run that the others wait for in a collective, while none of them has moved on."""
        if len(self._pages) < 2:
            return {}
        ranks, before = (
            {key: rank for key, rank in page.ranks.items() if key[0] == run and rank.entered}
            for page in (self._pages[-1], self._pages[-2])
        )
        entered = {key: rank.entered for key, rank in ranks.items()}
        if entered != {key: rank.entered for key, rank in before.items()}:
            return {}
        if not diagnosis.collectives_behind(entered):
            return {}
        return diagnosis.hang_suspects(entered, {key: rank.phase for key, rank in ranks.items()})

    def _before(self, fits: Callable[[PageCounters], bool]) -> PageCounters | None:
        """Return the newest page that fits and is as old as the window, else the oldest that fits."""
        newest = self._pages[-1].at
        fitting = [page for page in self._pages if fits(page)]
        old = [page for page in fitting if newest - page.at >= diagnosis.LAG_WINDOW_SECONDS]
        return old[-1] if old else fitting[0] if fitting else None


def _rise(now: float | None, then: float | None) -> float | None:
    return None if now is None or then is None or now < then else now - then
