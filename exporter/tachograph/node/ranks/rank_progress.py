"""When a rank's process last completed a step: as it says, else when it was first heard to count one more."""

from __future__ import annotations

from tachograph.node.ranks.frames import State
from tachograph.node.ranks.saved_totals import SavedProcess
from tachograph.node.ranks.told_moment import ToldMoment


class RankProgress(ToldMoment):
    """The moment of the last step; `wall` is that by the clock of the day, `steps` how many were counted."""

    __slots__ = ("steps", "wall")

    def __init__(self) -> None:
        super().__init__()
        self.wall: float | None = None
        self.steps = 0.0

    def take_state(self, state: State, steps: float, now: float, before: float | None, age: float | None) -> None:
        """Take a state in which so many steps are counted; `age` is that of the last one, where it says so."""
        if state.progress_time is not None or state.progress_seconds is not None:
            self.take(state.progress_time, state.time, now, before, age)
        elif steps > self.steps:
            self.at = now
        if state.progress_time is not None:
            self.wall = state.progress_time
        elif state.progress_seconds is not None:
            self.wall = state.time - state.progress_seconds
        elif steps > self.steps:
            self.wall = state.time
        self.steps = steps

    def resume(self, saved: SavedProcess) -> None:
        """Continue from what a previous exporter saw."""
        self.at, self.told, self.steps = saved.progress, saved.progress_told, saved.steps
