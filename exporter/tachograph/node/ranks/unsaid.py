"""Facts that a rank leaves unsaid and its frames show all the same: a client of plain counters is judged like ours.

What the rank says itself stands.
"""

from __future__ import annotations

import math
from operator import attrgetter

from tachograph.catalog import index as catalog
from tachograph.node.ranks.frames import State
from tachograph.node.ranks.series import RankSeries

HEALED_SECONDS = 70.0
"""A value that was not finite counts for so long: it may be NaN only between two scrapes, a minute apart at most."""

_STEPS = catalog.TRAIN_STEPS.key
_NONFINITE_STEP = catalog.TRAIN_NONFINITE_STEP.key
_LOSS_LOST_AT = catalog.TRAIN_LOSS_NONFINITE_TIMESTAMP.key
_NORM_LOST_STEPS = catalog.TRAIN_GRAD_NORM_NONFINITE_STEPS.key
_LOSS, _NORM = catalog.TRAIN_LOSS.key, catalog.TRAIN_GRAD_NORM.key
_SAVES = catalog.TRAIN_CHECKPOINTS.key
_SAVED_AT, _SAVED_STEP = catalog.TRAIN_CHECKPOINT_TIMESTAMP.key, catalog.TRAIN_CHECKPOINT_STEP.key


class Unsaid:
    """The facts that follow from the frames of one process: steps completed, values that became NaN, and saves."""

    __slots__ = ("_counts", "_loss", "_norm", "_saved", "_saves", "_step", "_steps", "loss_kept_until")

    def __init__(self) -> None:
        self.loss_kept_until = -math.inf
        """The last step up to which the loss is known to have been finite, before the first one at which it was not."""
        self._counts = False
        self._step: int | None = None
        self._steps = 0
        self._loss, self._norm = Finite(), Finite()
        self._saves: float | None = None
        self._saved: tuple[float, int | None] | None = None

    def count_steps(self, series: RankSeries, state: State) -> None:
        """Count steps by their number where the rank has never counted any; before its metrics are applied."""
        if _STEPS in state.metrics:
            if self._counts:
                del series.counters[_STEPS]
                self._counts = False
        elif state.step is not None and (self._counts or _STEPS not in series.counters):
            if self._step is not None:
                self._steps += max(0, state.step - self._step)
            self._counts, self._step = True, state.step
            series.counters[_STEPS] = {"": float(self._steps)}

    def take(self, series: RankSeries, state: State, now: float) -> None:
        """Put what follows from a frame, heard `now` by the monotonic clock, beside the gauges that it has."""
        gauges = series.gauges
        step = state.step if state.step is not None else series.total(_STEPS)
        self._loss.take(series.gauge(_LOSS), step, state.time, now)
        self._norm.take(series.gauge(_NORM), step, state.time, now)
        said = gauges.get(_NONFINITE_STEP, {})
        if self._loss.lost_at is not None:
            gauges.setdefault(_LOSS_LOST_AT, {"": self._loss.lost_at})
        self.loss_kept_until = said["loss"] - 1 if "loss" in said else self._loss.kept_until
        found = {"loss": self._loss.first_step, "grad_norm": self._norm.first_step}
        if unsaid := {source: step for source, step in found.items() if step is not None and source not in said}:
            gauges[_NONFINITE_STEP] = {**said, **unsaid}
        if step is not None and self._norm.since is not None:
            gauges.setdefault(_NORM_LOST_STEPS, {"": step - self._norm.since + 1})
        if _SAVED_AT not in gauges:
            self._note_saves(series, state)

    def _note_saves(self, series: RankSeries, state: State) -> None:
        """Note when a save was reported, as an event or by a counter."""
        events = [event for event in state.events if event.kind == "checkpoint_saved"]
        saves = series.total(_SAVES)
        if events:
            last = max(events, key=attrgetter("id"))
            self._saved = last.time, last.step
        elif self._saves is not None and (saves or 0.0) > self._saves:
            self._saved = state.time, None
        self._saves = saves or 0.0
        if self._saved is not None:
            at, step = self._saved
            series.gauges[_SAVED_AT] = {"": at}
            if step is not None:
                series.gauges.setdefault(_SAVED_STEP, {"": step})


class Finite:
    """When a value was not finite, as frames show it: at which step first, since which one now, and when last.

    `kept_until` is the step of the last frame before that with a finite one, `lost_at` the Unix time that it gives.
    """

    __slots__ = ("_heard", "_step", "first_step", "kept_until", "lost_at", "since")

    def __init__(self) -> None:
        self._step = self.kept_until = -math.inf
        self._heard = 0.0
        self.first_step: float | None = None
        self.since: float | None = None
        self.lost_at: float | None = None

    def take(self, value: float | None, step: float | None, made: float, now: float) -> None:
        """Take the value of a frame made at a Unix time and heard `now`, at a step; None where it has none."""
        if value is None:
            return
        if math.isfinite(value):
            self._step, self.since = -math.inf if step is None else step, None
            if self.lost_at is not None and now - self._heard > HEALED_SECONDS:
                self.lost_at = self.first_step = None
            return
        if self.lost_at is None:
            self.first_step, self.kept_until = step, self._step
        self.since = step if self.since is None else self.since
        self.lost_at, self._heard = made, now
