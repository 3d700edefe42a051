"""One completed step, as the training thread noted it and the sender thread reads it."""

from __future__ import annotations

from typing import NamedTuple


class StepRecord(NamedTuple):
    """A completed step: when it was, whether it was an ordinary one, and what its rank had counted up to its end.

    `began` and `ended` are of `time.perf_counter`; with gradient accumulation the step began with its first micro-step.
    `tag` is one of `catalog.rank.STEP_TAGS`, None for an ordinary step. `seconds` are cumulative wall seconds per
    phase in the order of `catalog.rank.PHASES`, `wait` cumulative exposed wait for collectives, both at `ended`:
    what a step cost is the difference from the record before it.
    """

    number: int
    began: float
    ended: float
    tag: str | None
    seconds: tuple[float, ...]
    wait: float
