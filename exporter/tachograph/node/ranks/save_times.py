"""How long the saves of a rank's process took, from what its frames count in phase `checkpoint`."""

from __future__ import annotations

import math

from tachograph.catalog import index as catalog
from tachograph.catalog.rank import SHORTEST_SAVE_SECONDS
from tachograph.node.ranks.series import RankSeries

_PHASES = catalog.TRAIN_PHASE_SECONDS.key
_DURATION = catalog.TRAIN_CHECKPOINT_DURATION.key


class SaveTimes:
    """The saves that were seen to end: their number, and the seconds of the longest. Two between two frames are one.

    Where a rank does not say how long its last one took, that is put beside its gauges.
    """

    def __init__(self) -> None:
        self.count = 0
        self.longest = self._last = 0.0
        self._total: float | None = None

    def take(self, series: RankSeries, phase: str | None) -> None:
        """Take a frame of a rank that is in a phase; what it had saved before the first one is not known apart."""
        if phase != "checkpoint":
            self._note(series.counters.get(_PHASES, {}).get("checkpoint", 0.0))
        if self._last:
            series.gauges.setdefault(_DURATION, {"": self._last})

    def _note(self, total: float) -> None:
        if self._total is not None and SHORTEST_SAVE_SECONDS <= (seconds := total - self._total) < math.inf:
            self.count += 1
            self.longest, self._last = max(self.longest, seconds), seconds
        self._total = total
