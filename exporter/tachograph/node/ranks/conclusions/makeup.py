"""Whether the run is still what it was: since when its processes run, and its batch is as large."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean

from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.samples import Sample

OTHER = 1.25
"""A step that is worth this many times as much as before, or as little, is another one by design."""
SETTLES_SECONDS = 60.0
"""For this long after a change, what a step is worth goes on changing: a mean of steps from before and after."""


class Makeup:
    """Remembers the batch: as the ranks say, and what a step is worth."""

    def __init__(self) -> None:
        self._batch: float | None = None
        self._worth: tuple[str, float] | None = None
        self.batch_changed = self.work_changed = self._batch_grew = -math.inf
        """When the batch last changed, by the monotonic clock; and when the work itself last changed, as to a smaller
        batch or longer sequences: more of the same work at once takes no longer per token."""

    def look(self, view: RunView) -> None:
        """Note a change of the batch."""
        batches = [rank.series.gauges.get(catalog.TRAIN_INVARIANT.key, {}).get("global_batch") for rank in view.running]
        batch = max((each for each in batches if each is not None), default=None)
        if batch is not None:
            if self._batch is not None and batch != self._batch:
                self.batch_changed = view.now
                if batch > self._batch:
                    self._batch_grew = view.now
                else:
                    self.work_changed = view.now
            self._batch = batch
        if (worth := self._worth_of_step(view)) is None:
            return
        unit, now = worth
        if self._worth is not None and self._worth[0] == unit:
            before = self._worth[1]
            if before / OTHER <= now <= before * OTHER:
                if view.now - self.batch_changed > SETTLES_SECONDS:
                    return
            else:
                self.batch_changed = view.now
                if now < before or view.now - self._batch_grew > SETTLES_SECONDS:
                    self.work_changed = view.now
        self._worth = worth

    @staticmethod
    def _worth_of_step(view: RunView) -> tuple[str, float] | None:
        """Return what a step of a mean rank is worth, and in which unit."""
        for unit in ("tokens", "samples"):
            worth = [rank.rates[unit] / rank.rates["steps"] for rank in view.running if unit in rank.rates]
            if worth:
                return unit, fmean(worth)
        return None

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield when the youngest process of the run started, and how long ago its batch changed."""
        if view.youngest is not None:
            yield Sample(catalog.RUN_STARTED, (view.run,), view.youngest.started_wall)
        if self.batch_changed > -math.inf:
            yield Sample(catalog.RUN_BATCH_CHANGED, (view.run,), view.now - self.batch_changed)
