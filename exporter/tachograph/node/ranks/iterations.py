"""The iterations of a rank whose loop generates what it trains on, from what its frames count."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

from tachograph.catalog import index as catalog
from tachograph.catalog.rank import GENERATION
from tachograph.node.ranks.series import RankSeries

REMEMBERED = 10
SHOWN_FROM = 5
"""So many iterations say what they usually take: of fewer, lengths that differ by chance would."""
REGULAR, SPREAD, MANY = 5, 3.0, 20
"""How long generation takes is known from so many iterations on if the longest takes at most `SPREAD` times the median,
otherwise from `MANY` on: lengths from a second to minutes take some to show."""
FORGOTTEN = 5.0
"""After so many times an iteration's steps without generation, the loop does something else."""

_STEPS = catalog.TRAIN_STEPS.key
_PHASES = catalog.TRAIN_PHASE_SECONDS.key
_RECENT_PHASE = catalog.TRAIN_RECENT_PHASE.key


class Iterations:
    """An iteration is generation and the steps until the next one; frames may merge short ones."""

    __slots__ = ("_began", "_count", "_generated_at", "_last", "_seconds", "_steps")

    def __init__(self) -> None:
        self._count = 0
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self._last: deque[tuple[Mapping[str, float], float]] = deque(maxlen=REMEMBERED)
        """The seconds of each phase in the last iterations, and their steps."""
        self._began: Mapping[str, float] | None = None
        """The seconds of each phase when the iteration under way began, after `_steps` steps."""
        self._steps = 0.0
        self._generated_at: float | None = None
        """The steps made by when it was first seen to generate, or to have, in it."""

    @property
    def are_known(self) -> bool:
        """Whether there were enough to tell how long generation takes."""
        if self._count < REGULAR:
            return False
        return self._count >= MANY or max(self._seconds) <= SPREAD * median(self._seconds)

    def take(self, series: RankSeries, phase: str | None, phase_seconds: float | None) -> None:
        """Read the counters of a frame, and put what generation takes per step beside the rank's recent phases.

        `phase_seconds` is for how long the rank has been in its phase, which the counters hold already.
        """
        counters = series.counters.get(_PHASES, {})
        spent = {name: counters[name] for name in GENERATION if name in counters}
        if not spent:
            return
        if phase in spent:
            spent[phase] = max(0.0, spent[phase] - (phase_seconds or 0.0))
        steps = series.total(_STEPS) or 0.0
        if self._began is None:
            self._began, self._steps = spent, steps
        elif self._generated_at is not None and steps > self._generated_at:
            self._end(self._began, spent, steps)
        elif self._last and steps - self._steps > FORGOTTEN * self._per_iteration():
            self._last.clear()
        if self._generated_at is None and (phase in spent or spent != self._began):
            self._generated_at = steps
        if len(self._last) >= SHOWN_FROM:
            made = self._per_iteration()
            usual = {name: median(took.get(name, 0.0) for took, _ in self._last) / made for name in spent}
            series.gauges[_RECENT_PHASE] = {**series.gauges.get(_RECENT_PHASE, {}), **usual}

    def _end(self, began: Mapping[str, float], spent: Mapping[str, float], steps: float) -> None:
        took = {name: seconds - began.get(name, 0.0) for name, seconds in spent.items()}
        self._seconds.append(sum(took.values()))
        self._last.append((took, steps - self._steps))
        self._count += 1
        self._began, self._steps, self._generated_at = spent, steps, None

    def _per_iteration(self) -> float:
        """Return the steps of an iteration; a frame may find one after its first step, and the next after its last."""
        return median(made for _, made in self._last)
