"""How long saves take, how long there has been none, and whether one failed."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import Sample

FAILED_SECONDS = 600.0


class RunCheckpoints:
    """Remembers which ranks failed to save, and when, also once their process has ended."""

    def __init__(self) -> None:
        self._failures: dict[Rank, float] = {}
        self._failed: dict[int, float] = {}

    def look(self, view: RunView) -> None:
        """Note failures that were not there a moment ago."""
        before, self._failures = self._failures, {}
        for rank in view.states:
            count = rank.series.total(catalog.TRAIN_CHECKPOINT_FAILURES.key) or 0.0
            if count > before.get(rank, count):
                self._failed[rank.hello.rank] = view.now
            self._failures[rank] = count
        for number, at in list(self._failed.items()):
            if view.now - at > FAILED_SECONDS:
                del self._failed[number]

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield the last save and the one under way, how long there has been none, free space and failures."""
        if durations := view.gauges(catalog.TRAIN_CHECKPOINT_DURATION.key):
            yield Sample(catalog.RUN_CHECKPOINT_SECONDS, (view.run,), max(durations))
        saving = [rank.phase_seconds(view.now) or 0.0 for rank in view.alive if rank.phase == "checkpoint"]
        if saving:
            yield Sample(catalog.RUN_CHECKPOINT_SAVING, (view.run,), max(saving))
        started = [rank.started for rank in view.alive if rank.started is not None]
        if started:
            saved = [rank.saved_at for rank in view.alive if rank.saved_at is not None]
            yield Sample(catalog.RUN_UNSAVED, (view.run,), max(view.now - max([*started, *saved]), 0.0))
        free = view.gauge_of_each(catalog.TRAIN_CHECKPOINT_FREE.key)
        if free:
            rank = min(free, key=free.__getitem__)
            yield Sample(catalog.RUN_CHECKPOINT_FREE, rank.key, free[rank])
        if self._failed:
            yield Sample(catalog.RUN_CHECKPOINT_FAILED, (view.run, str(min(self._failed))), len(self._failed))
