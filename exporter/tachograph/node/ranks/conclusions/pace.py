"""How long a step of the run usually takes, how long it may go without one, and when it last paused."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph import diagnosis
from tachograph.catalog import index as catalog
from tachograph.catalog.rank import PAUSES
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import Sample

EXCUSED_SECONDS = 2.0
"""A shorter save or evaluation excuses nothing: a small checkpoint every few steps is part of the pace."""
BYSTANDER_SECONDS = 60.0
"""A rank in its phase for this much longer than the limit before the run's last step is a bystander."""


def is_bystander(rank: Rank, view: RunView) -> bool:
    """Return whether the run makes its steps without a rank: a dedicated evaluator or saver.

    It has been in one phase since long before the run's last step; where none is known here, for longer than a start
    takes. A minute allows for steps that other nodes have made since then.
    """
    seconds = rank.phase_seconds(view.now) or 0.0
    if view.without_step is None:
        return rank.phase != "init" and seconds > diagnosis.FIRST_STEPS_SECONDS
    return seconds > view.without_step + view.hang_limit + BYSTANDER_SECONDS


class RunPace:
    """Remembers when the run last paused, and when it did so for good reason, by the monotonic clock."""

    def __init__(self) -> None:
        self._excused: float | None = None
        self._paused: float | None = None

    def look(self, view: RunView) -> None:
        """Note a pause."""
        if any(self._is_excused(rank, view) for rank in view.alive if rank.phase in PAUSES):
            self._excused = self._paused = view.now
        if view.alive and self._is_waiting(view):
            self._paused = view.now

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield the usual step, the limit, and how long ago the pauses were."""
        key = (view.run,)
        if view.step_seconds is not None:
            yield Sample(catalog.RUN_STEP_SECONDS, key, view.step_seconds)
        if view.without_step is not None:
            yield Sample(catalog.RUN_PROGRESS_AGE, key, view.without_step)
            yield Sample(catalog.RUN_HANG_LIMIT, key, view.hang_limit)
        if self._excused is not None and view.alive:
            yield Sample(catalog.RUN_EXCUSED, key, view.now - self._excused)
        if self._paused is not None and view.alive:
            yield Sample(catalog.RUN_PAUSED, key, view.now - self._paused)

    @staticmethod
    def _is_excused(rank: Rank, view: RunView) -> bool:
        return (rank.phase_seconds(view.now) or 0.0) > EXCUSED_SECONDS and not is_bystander(rank, view)

    @staticmethod
    def _is_waiting(view: RunView) -> bool:
        if view.without_step is None:
            return True
        return view.step_seconds is not None and view.without_step > diagnosis.LONG_STEP_SECONDS + view.step_seconds
