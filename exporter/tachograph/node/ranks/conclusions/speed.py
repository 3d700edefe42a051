"""How fast the run makes its steps, and whether that is as fast as usual.

tachograph_run_speed{run="llama-7b",unit="mfu"} 0.26
tachograph_run_usual_speed{run="llama-7b",unit="mfu"} 0.41
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.makeup import Makeup
from tachograph.node.ranks.conclusions.past import Past
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.samples import Sample

SLOW_STEPS = 12
"""The level is of so many figures at least: where steps are slow, a rank that is late is known by then, and named."""


class Speed:
    """Remembers the past of the best unit there is, since the present processes started and do the same work."""

    def __init__(self, makeup: Makeup) -> None:
        self._makeup = makeup
        self._of: tuple[str, float, float] = ("", 0.0, 0.0)
        self._past: Past | None = None
        self._progress: float | None = None

    def look(self, view: RunView) -> None:
        """Note how fast the steps are, once there is a new one."""
        if view.progress is None or view.progress == self._progress or (measured := _measured(view)) is None:
            return
        self._progress = view.progress
        unit, speed = measured
        # Half a batch is not half the work of the optimizer, so its MFU is lower; that of a larger batch is not, but
        # its steps are longer.
        changed = self._makeup.batch_changed if unit == "steps" else self._makeup.work_changed
        of = unit, max(view.started or 0.0, self._of[1]), changed
        if self._past is None or of != self._of:
            self._of, self._past = of, Past(view.now, least=SLOW_STEPS)
        lowest = 1 - view.limit("throughput_drop_ratio")
        self._past.note(view.now, speed, lambda level, usual: level < lowest * usual)

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield the speed, the usual and the best one, while there is a rank that runs."""
        past = self._past
        if past is None or past.level is None or not view.alive:
            return
        key = view.run, self._of[0]
        yield Sample(catalog.RUN_SPEED, key, past.level)
        if (usual := past.usual(view.now)) is not None:
            yield Sample(catalog.RUN_USUAL_SPEED, key, usual)
        if (best := past.best) is not None:
            yield Sample(catalog.RUN_BEST_SPEED, key, best)
        yield Sample(catalog.RUN_SLOW, (view.run,), past.worse_seconds(view.now))


def _measured(view: RunView) -> tuple[str, float] | None:
    """Return the best unit that is known, and the speed of the recent ordinary steps in it."""
    flops, peaks = 0.0, 0.0
    for rank in view.running:
        if "flops" in rank.rates and (peak := view.peak_flops(rank)):
            flops, peaks = flops + rank.rates["flops"], peaks + peak
    if peaks > 0:
        return "mfu", flops / peaks
    for unit in catalog.SPEED_UNITS[1:]:
        if rates := [rank.rates[unit] for rank in view.running if unit in rank.rates]:
            return unit, fmean(rates)
    return None
