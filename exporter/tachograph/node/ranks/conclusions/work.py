"""The work that the run gets done by the clock, pauses and all, and what its devices could do at most.

tachograph_run_work_per_second{run="llama-7b",unit="tokens"} 131072
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from weakref import WeakKeyDictionary

from tachograph.catalog import index as catalog
from tachograph.node.peaks import achievable_of, dtype_of
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import Sample

SPACING, MINUTE = 5.0, 60.0
COUNTERS = {
    "flops": catalog.TRAIN_FLOPS.key,
    "hardware_flops": catalog.TRAIN_HARDWARE_FLOPS.key,
    "tokens": catalog.TRAIN_TOKENS.key,
    "samples": catalog.TRAIN_SAMPLES.key,
}


class RunWork:
    """Remembers what was done, over all processes, at moments of the last minute."""

    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[Rank, dict[str, float]] = WeakKeyDictionary()
        self._done: dict[str, float] = {}
        self._moments: deque[tuple[float, dict[str, float]]] = deque()

    def look(self, view: RunView) -> None:
        """Add what the ranks have done since the last look; what they had done before the first one does not count."""
        if self._moments and view.now - self._moments[-1][0] < SPACING:
            return
        for rank in view.states:
            counted = {unit: done for unit, key in COUNTERS.items() if (done := rank.series.total(key)) is not None}
            before = self._seen.get(rank, counted)
            if counted.get("flops") and view.peak_flops(rank) is None:
                counted = {unit: done for unit, done in counted.items() if not unit.endswith("flops")}
            for unit, done in counted.items():
                self._done[unit] = self._done.get(unit, 0.0) + max(0.0, done - before.get(unit, 0.0))
            self._seen[rank] = counted
        self._moments.append((view.now, dict(self._done)))
        while self._moments[0][0] < view.now - MINUTE - SPACING:
            self._moments.popleft()

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield the work of a minute by unit, and the peak of the ranks whose device and work are known."""
        (began, before), (ended, now) = self._moments[0], self._moments[-1]
        if ended > began and view.alive:
            for unit, done in now.items():
                yield Sample(catalog.RUN_WORK, (view.run, unit), (done - before.get(unit, 0.0)) / (ended - began))
        counting = (rank for rank in view.alive if rank.series.total(catalog.TRAIN_FLOPS.key) is not None)
        if peaks := {rank: peak for rank in counting if (peak := view.peak_flops(rank)) is not None}:
            yield Sample(catalog.RUN_PEAK_FLOPS, (view.run,), sum(peaks.values()))
            measured = [_achievable(rank) for rank in peaks]
            if None not in measured:
                yield Sample(catalog.RUN_ACHIEVABLE_FLOPS, (view.run,), sum(each or 0.0 for each in measured))


def _achievable(rank: Rank) -> float | None:
    """Return the most that anybody measured on a rank's GPU at its precision; None where its peak was given by hand."""
    gpu = rank.placement.gpu
    return None if gpu is None or rank.peak_flops is not None else achievable_of(gpu.name).get(dtype_of(rank.precision))
