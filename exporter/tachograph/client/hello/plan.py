"""The plan of this attempt, as `tachograph supervise` hands it to the training loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tachograph.client.core.arguments import count, decimal

ATTEMPT_ENVIRONMENT = "TACHOGRAPH_PLAN_ATTEMPT"
REASON_ENVIRONMENT = "TACHOGRAPH_PLAN_REASON"
STEP_ENVIRONMENT = "TACHOGRAPH_PLAN_STEP"
CHECKPOINT_ENVIRONMENT = "TACHOGRAPH_PLAN_CHECKPOINT"
SKIP_ENVIRONMENT = "TACHOGRAPH_PLAN_SKIP"
RATE_ENVIRONMENT = "TACHOGRAPH_PLAN_RATE"
CLIPPING_ENVIRONMENT = "TACHOGRAPH_PLAN_CLIPPING"
LAUNCHER_RESTARTS = "TORCHELASTIC_RESTART_COUNT"


class Plan(NamedTuple):
    """The plan of an attempt, which is false without a supervisor and for a first attempt.

    `attempt` counts from 0, `reason` is what ended the last one, such as `hung`, and `step` that of the checkpoint to
    begin from, `checkpoint` where that is, as `checkpoint_saved(path=…)` said it; None and empty if none is known: then
    the newest. Steps in `skip`, as ranges with an end that is not part of them, are left out, and the numbers go on:
    `skips(step)` says so. The learning rate, and the norm that gradients are clipped to, are multiplied by `rate` and
    `clipping`.
    """

    attempt: int = 0
    reason: str = ""
    step: int | None = None
    checkpoint: str = ""
    skip: tuple[tuple[int, int], ...] = ()
    rate: float = 1.0
    clipping: float = 1.0

    def __bool__(self) -> bool:
        return self.attempt > 0

    def skips(self, step: int) -> bool:
        """Return whether the batch of a step is to be left out, and with it the step."""
        return any(begin <= step < end for begin, end in self.skip)


NO_PLAN = Plan()


def plan_of(environment: Mapping[str, str]) -> Plan:
    """Return the plan in the environment; what cannot be read of it is left out.

    Where the launcher has restarted the ranks itself, within the attempt, there is no step to go back to: they have
    gone back, and checkpoints that came after that are good.
    """
    if ATTEMPT_ENVIRONMENT not in environment:
        return NO_PLAN
    is_restarted = bool(count(environment.get(LAUNCHER_RESTARTS)))
    step = None if is_restarted else count(environment.get(STEP_ENVIRONMENT))
    return Plan(
        attempt=count(environment.get(ATTEMPT_ENVIRONMENT)) or 0,
        reason=environment.get(REASON_ENVIRONMENT, ""),
        step=step,
        checkpoint="" if step is None else environment.get(CHECKPOINT_ENVIRONMENT, ""),
        skip=_ranges(environment.get(SKIP_ENVIRONMENT, "")),
        rate=_factor(environment.get(RATE_ENVIRONMENT, "")),
        clipping=_factor(environment.get(CLIPPING_ENVIRONMENT, "")),
    )


def _ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Return the ranges of steps in a text such as 120:130,200:216."""
    ends = [each.partition(":")[::2] for each in text.split(",")]
    found = [(count(begin), count(end)) for begin, end in ends]
    return tuple((begin, end) for begin, end in found if begin is not None and end is not None and begin < end)


def _factor(text: str) -> float:
    """Return a factor, 1 for what is none, or would raise what it is to lower."""
    factor = decimal(text)
    return factor if 0 < factor < 1 else 1.0
