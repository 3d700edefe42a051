"""The learning rate of a run, and how long its schedule has stood still."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.samples import Sample


class LearningRate:
    """Remembers when the schedule last moved."""

    def __init__(self) -> None:
        self._schedule: float | None = None
        self._moved_step = self._moved = 0.0

    def look(self, view: RunView) -> None:
        """Note a schedule that moved, or that is seen for the first time; a run that rolled back begins again."""
        schedule, step = max(view.gauges(catalog.TRAIN_SCHEDULE_STEP.key), default=None), view.train_step
        if schedule is not None and step is not None and (schedule != self._schedule or step < self._moved_step):
            self._schedule, self._moved_step, self._moved = schedule, step, view.now

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield the rate and, of a schedule that is watched, its step and for how long that has been the same."""
        if rates := view.gauges(catalog.TRAIN_LEARNING_RATE.key):
            yield Sample(catalog.RUN_LEARNING_RATE, (view.run,), max(rates))
        if self._schedule is None or view.train_step is None or not view.gauges(catalog.TRAIN_SCHEDULE_STEP.key):
            return
        yield Sample(catalog.RUN_SCHEDULE_STEP, (view.run,), self._schedule)
        yield Sample(catalog.RUN_SCHEDULE_IDLE_STEPS, (view.run,), view.train_step - self._moved_step)
        yield Sample(catalog.RUN_SCHEDULE_IDLE_SECONDS, (view.run,), view.now - self._moved)
