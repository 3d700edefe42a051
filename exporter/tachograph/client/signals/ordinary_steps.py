"""Ordinary steps, and what each cost its rank: the time since the step before, its waits, and its own time by phase."""

from __future__ import annotations

from typing import NamedTuple

from tachograph.catalog.rank import GENERATION, OWN_PHASES, PAUSE_SHARE, PHASES
from tachograph.client.core.steps import StepRecord

_OWN = tuple(PHASES.index(name) for name in OWN_PHASES)
_GENERATION = tuple(map(PHASES.index, GENERATION))
_BACKWARD = OWN_PHASES.index("backward")
_INIT, _COLLECTIVE, _CHECKPOINT, _EVAL = map(PHASES.index, ("init", "collective", "checkpoint", "eval"))


class StepCost(NamedTuple):
    """The cost of one ordinary step: everything since the end of the one before, as its batch is waited for in between.

    `seconds` are from that end to its own, without those in which it generated; `wait` is the exposed wait for
    collectives among them, `own` the seconds in each of `OWN_PHASES` without that wait. On a GPU waits are known steps
    later, so single numbers of `wait` and `own` may be below 0.
    """

    ended: float
    seconds: float
    wait: float
    own: list[float]


class OrdinarySteps:
    """Tells ordinary steps from the others: each observer of steps has its own."""

    def __init__(self) -> None:
        self._before: StepRecord | None = None
        self._stride = 1

    def cost(self, record: StepRecord) -> StepCost | None:
        """Return what a completed step cost; None if it is tagged, or comes after a gap or a pause between steps."""
        before, self._before = self._before, record
        if before is None:
            return None
        stride, self._stride = self._stride, record.number - before.number
        if record.tag is not None or self._stride != stride:
            return None
        now, then = record.seconds, before.seconds
        if now[_EVAL] > then[_EVAL]:  # which may have waited for data and run forward, in phases inside its own
            return None
        seconds = record.ended - before.ended - sum([now[index] - then[index] for index in _GENERATION])
        if now[_CHECKPOINT] - then[_CHECKPOINT] + now[_INIT] - then[_INIT] > PAUSE_SHARE * seconds:
            return None
        own = [now[index] - then[index] for index in _OWN]
        wait = record.wait - before.wait
        # Marked collectives have a phase of their own: what is left of the wait is that of gradient buckets.
        own[_BACKWARD] -= max(0.0, wait - (now[_COLLECTIVE] - then[_COLLECTIVE]))
        return StepCost(record.ended, seconds, wait, own)
