"""How fast collectives move their bytes, and how much of a step they take, over two minutes of undisturbed training.

A collective's length includes the wait for late ranks; whoever arrives last waits for nobody, so the best rank's
bandwidth is the true one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tachograph.catalog import index as catalog
from tachograph.catalog.rank import PAUSES
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import Sample

EVERY = 10.0
WINDOW_SECONDS = 120.0
SHORTEST_WINDOW = 60.0
"""On NCCL, lengths are read every 15 s or so."""

_BYTES = catalog.TRAIN_COLLECTIVE_BUS_BYTES.key
_SECONDS = catalog.TRAIN_COLLECTIVE_SECONDS.key
_STEPS = catalog.TRAIN_STEPS.key


class Counted(NamedTuple):
    """The counts of a rank at a moment: bytes and seconds by operation, and its steps."""

    at: float
    moved: Mapping[str, float]
    seconds: Mapping[str, float]
    steps: float


class RunCollectives:
    """Remembers two minutes of each rank's counters; from the start after a save, an evaluation or a hang.

    They are noted as a step ends: between two ends a long step's collectives count whole or not at all.
    """

    def __init__(self) -> None:
        self._counted: dict[Rank, deque[Counted]] = {}
        self._steps: dict[Rank, float] = {}

    def look(self, view: RunView) -> None:
        """Note the counters of ranks that have ended a step since the last look, every 10 s."""
        stands = view.without_step is not None and view.without_step > view.hang_limit
        if stands or any(rank.phase in PAUSES for rank in view.running):
            self._counted = {}
        before, self._counted = self._counted, {}
        ended, self._steps = self._steps, {}
        for rank in view.running:
            counters = rank.series.counters
            if not (seconds := counters.get(_SECONDS)):
                continue
            counted = self._counted[rank] = before.get(rank) or deque()
            steps = self._steps[rank] = rank.series.total(_STEPS) or 0.0
            if steps == ended.get(rank) or (counted and view.now - counted[-1].at < EVERY):
                continue
            counted.append(Counted(view.now, dict(counters.get(_BYTES, {})), dict(seconds), steps))
            while counted[0].at < view.now - WINDOW_SECONDS:
                counted.popleft()

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield the best rank's bandwidth by operation, and the longest collectives of a step."""
        best: dict[str, float] = {}
        longest: float | None = None
        for counted in filter(None, self._counted.values()):
            first, last = counted[0], counted[-1]
            if last.at - first.at < SHORTEST_WINDOW:
                continue
            for op, seconds in last.seconds.items():
                took = seconds - first.seconds.get(op, 0.0)
                moved = last.moved.get(op, 0.0) - first.moved.get(op, 0.0)
                if took > 0 and moved > 0:
                    best[op] = max(best.get(op, 0.0), moved / took)
            if (steps := last.steps - first.steps) > 0:
                taken = (sum(last.seconds.values()) - sum(first.seconds.values())) / steps
                longest = max(longest or 0.0, taken)
        for op in catalog.OPERATIONS:
            if op in best:
                yield Sample(catalog.RUN_COLLECTIVE_BANDWIDTH, (view.run, op), best[op])
        if longest is not None:
            yield Sample(catalog.RUN_COLLECTIVE_SECONDS, (view.run,), longest)
