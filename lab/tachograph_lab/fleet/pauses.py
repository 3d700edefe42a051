"""When a run pauses training to save a checkpoint or to evaluate."""

from __future__ import annotations

import numpy as np

from tachograph_lab.fleet.pace import Seconds
from tachograph_lab.scenario import Pause, Scenario
from tachograph_lab.scenario.faults import NoCheckpoint, SlowCheckpoint


class PauseSchedule:
    """The schedule of a run over all its attempts; `saved` is the step of the last checkpoint, 0 while there is none.

    On one node, rank 0 saves alone and the others wait for it in their next all-reduce, as in examples/ddp.py; on more
    nodes, all ranks save their shards. All ranks evaluate.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.saved = 0
        self._checkpoint, self._eval = scenario.checkpoint, scenario.eval
        self._savers = np.ones(scenario.fleet.ranks)
        if scenario.fleet.nodes == 1:
            self._savers[1:] = 0.0
        self._slow = [each for each in scenario.faults if isinstance(each, SlowCheckpoint)]
        self._none = [each for each in scenario.faults if isinstance(each, NoCheckpoint)]
        self.restart(0.0)

    def restart(self, now: float) -> None:
        """Restart the intervals at the beginning of an attempt."""
        self._checkpoint_at, self._eval_at = _next(self._checkpoint, now), _next(self._eval, now)

    def checkpoint(self, now: float) -> Seconds | float:
        """Return the seconds that each rank spends on a checkpoint at a step's end, 0 if none is due."""
        if self._checkpoint is None or now < self._checkpoint_at:
            return 0.0
        if any(fault.at <= now < fault.until for fault in self._none):
            return 0.0
        self._checkpoint_at = _next(self._checkpoint, now)
        takes = next((fault.takes for fault in self._slow if fault.at <= now < fault.until), self._checkpoint.takes)
        seconds: Seconds = takes * self._savers
        return seconds

    def evaluation(self, now: float) -> float:
        """Return the seconds that all ranks spend on evaluation at a step's end, 0 if none is due."""
        if self._eval is None or now < self._eval_at:
            return 0.0
        self._eval_at = _next(self._eval, now)
        return self._eval.takes


def _next(pause: Pause | None, now: float) -> float:
    return float("inf") if pause is None else now + pause.every
