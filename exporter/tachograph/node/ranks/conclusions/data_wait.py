"""How much of its steps the run waits for data, whether that is news, and for how long it has been so."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_low

from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.past import Past
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.samples import Sample

STANDS_SECONDS = 10.0
"""Half of the ranks stand still there if they have been in phase data for longer than this and than a usual step."""
FORGIVEN_SECONDS = 30.0
"""A stall that pauses for no longer than this goes on."""
LEAST_SHARE, LEAST_STEPS = 0.4, 6
"""Three fifths of the samples are to show a stall; where steps are slow, one batch counts for three of them."""
STALLED = 3.0
"""Times the usual wait that is news."""


class DataWait:
    """Remembers the past of the wait from the start of the present processes on, and when the stall began."""

    def __init__(self) -> None:
        self._started = 0.0
        self._past: Past | None = None
        self._progress: float | None = None
        self._wait = 0.0
        self._stalled: tuple[float, float] | None = None
        """Since when, and when it last was seen, by the monotonic clock."""

    def look(self, view: RunView) -> None:
        """Note the wait, once there is a new step, and whether it is a stall."""
        limit = view.limit("data_stall_ratio")

        def is_stall(wait: float, usual: float) -> bool:
            return wait > limit and wait >= STALLED * usual

        waits = _waits(view)
        if waits and view.progress is not None and view.progress != self._progress:
            self._progress = view.progress
            if self._past is None or (view.started or 0.0) > self._started:
                self._started, self._past = view.started or 0.0, Past(view.now, LEAST_SHARE, LEAST_STEPS)
            self._wait = median_low(waits)
            self._past.note(view.now, self._wait, is_stall)
        usual = self._past.usual(view.now) if self._past is not None else None
        if _stands_still(view) or (usual is not None and is_stall(self._wait, usual)):
            self._stalled = self._stalled[0] if self._stalled is not None else view.now, view.now
        elif self._stalled is not None and view.now - self._stalled[1] > FORGIVEN_SECONDS:
            self._stalled = None

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield the wait and what is usual, where ranks count it, and how long they have been stalled."""
        past, key = self._past, (view.run,)
        level = None if past is None else past.level
        if not view.alive or (level is None and self._stalled is None):
            return
        if past is not None and level is not None:
            yield Sample(catalog.RUN_DATA_WAIT, key, level)
            if (usual := past.usual(view.now)) is not None:
                yield Sample(catalog.RUN_USUAL_DATA_WAIT, key, usual)
        stalled = view.now - self._stalled[0] if self._stalled is not None else 0.0
        yield Sample(catalog.RUN_DATA_STALL, key, stalled)


def _waits(view: RunView) -> list[float]:
    """Return the share of its usual step that each rank waits for data; one batch may take longer than a step."""
    phases = {rank: rank.series.gauges.get(catalog.TRAIN_RECENT_PHASE.key, {}).get("data") for rank in view.running}
    return [
        min(wait / view.steps[rank], 1.0) for rank, wait in phases.items() if wait is not None and rank in view.steps
    ]


def _stands_still(view: RunView) -> bool:
    """Return whether half of the ranks have been in phase data for long, of a run that has made steps."""
    step = view.step_seconds
    if step is None or view.progress is None:
        return False
    longest = step + STANDS_SECONDS
    waiting = sum(rank.phase == "data" and (rank.phase_seconds(view.now) or 0.0) > longest for rank in view.running)
    return waiting > 0 and 2 * waiting >= len(view.running)
