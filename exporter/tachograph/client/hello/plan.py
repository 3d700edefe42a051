"""The plan of this attempt, as `tachograph supervise` hands it to the training loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tachograph.client.core.arguments import count

ATTEMPT_ENVIRONMENT = "TACHOGRAPH_PLAN_ATTEMPT"
REASON_ENVIRONMENT = "TACHOGRAPH_PLAN_REASON"
STEP_ENVIRONMENT = "TACHOGRAPH_PLAN_STEP"
CHECKPOINT_ENVIRONMENT = "TACHOGRAPH_PLAN_CHECKPOINT"
LAUNCHER_RESTARTS = "TORCHELASTIC_RESTART_COUNT"


class Plan(NamedTuple):
    """The plan of an attempt, which is false without a supervisor and for a first attempt.

    `attempt` counts from 0, `reason` is what ended the last one, such as `hung`, and `step` that of the checkpoint to
    begin from, `checkpoint` where that is, as `checkpoint_saved(path=…)` said it; None and empty if none is known: then
    the newest.
    """

    attempt: int = 0
    reason: str = ""
    step: int | None = None
    checkpoint: str = ""

    def __bool__(self) -> bool:
        return self.attempt > 0


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
    path = "" if step is None else environment.get(CHECKPOINT_ENVIRONMENT, "")
    return Plan(count(environment.get(ATTEMPT_ENVIRONMENT)) or 0, environment.get(REASON_ENVIRONMENT, ""), step, path)
