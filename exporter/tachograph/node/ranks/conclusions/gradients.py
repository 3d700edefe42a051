"""The gradients of a run: their norm beside its usual one, and what mixed precision makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import Metric
from tachograph.node.ranks.conclusions.view import RunView, gauge
from tachograph.node.samples import Sample

VANISHED = 0.01
"""Share of its usual norm below which a gradient has vanished."""


class Gradients:
    """Remembers the last step at which there was a gradient."""

    def __init__(self) -> None:
        self._alive_step: float | None = None
        self._vanished = False

    def look(self, view: RunView) -> None:
        """Note the step, if there is a gradient; where no norm is known just now, what was last known stands."""
        step, norm = view.train_step, _median(view, catalog.TRAIN_GRAD_NORM)
        if step is None:
            return
        if norm is not None:
            level = _median(view, catalog.TRAIN_GRAD_NORM_LEVEL)
            self._vanished = norm == 0 or (level is not None and norm < VANISHED * level)
        if not self._vanished or self._alive_step is None or step < self._alive_step:
            self._alive_step = step

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield medians of the ranks, the least loss scale and the most skipped steps."""
        for metric, shown in (
            (catalog.TRAIN_GRAD_NORM, catalog.RUN_GRAD_NORM),
            (catalog.TRAIN_GRAD_NORM_LEVEL, catalog.RUN_GRAD_NORM_LEVEL),
            (catalog.TRAIN_GRAD_NORM_SPIKE_STEPS, catalog.RUN_GRAD_NORM_SPIKE_STEPS),
        ):
            if (value := _median(view, metric)) is not None:
                yield Sample(shown, (view.run,), value)
        if nonfinite := _nonfinite_steps(view):
            yield Sample(catalog.RUN_GRAD_NORM_NONFINITE_STEPS, (view.run,), nonfinite)
        if self._vanished and self._alive_step is not None and view.train_step is not None:
            yield Sample(catalog.RUN_GRAD_NORM_VANISHED_STEPS, (view.run,), view.train_step - self._alive_step)
        if scales := view.gauges(catalog.TRAIN_AMP_LOSS_SCALE.key):
            yield Sample(catalog.RUN_AMP_LOSS_SCALE, (view.run,), min(scales))
        if skipped := view.totals(catalog.TRAIN_AMP_SKIPPED.key):
            yield Sample(catalog.RUN_AMP_SKIPPED, (view.run,), max(skipped))


def _median(view: RunView, metric: Metric) -> float | None:
    values = view.gauges(metric.key)
    return median(values) if values else None


def _nonfinite_steps(view: RunView) -> float:
    """Return for how many steps in a row the norm has not been finite, by half of the ranks that log one."""
    steps = [
        gauge(rank, catalog.TRAIN_GRAD_NORM_NONFINITE_STEPS.key) or 0.0
        for rank in view.alive
        if catalog.TRAIN_GRAD_NORM.key in rank.series.gauges
        or catalog.TRAIN_GRAD_NORM_NONFINITE_STEPS.key in rank.series.gauges
    ]
    return median(steps) if steps else 0.0
