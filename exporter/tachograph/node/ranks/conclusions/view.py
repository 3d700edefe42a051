"""The ranks of a run on this node at one moment: the facts that conclusions rest on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

from tachograph import diagnosis
from tachograph.catalog import index as catalog
from tachograph.catalog.rank import PAUSES
from tachograph.findings.limits import Applied, HasDefault, applied
from tachograph.node.ranks.rank import Rank


@dataclass(frozen=True)
class RunView:
    """The ranks of a run with their states, `now` by the monotonic clock, as all times are; `wall` is that of the day.

    `site_limits` has the site's limits by name. `peak_flops` returns the peak FLOP/s of a rank's device, None where
    that is not known. `role` is that of a run that is one role of another, whose name and role `run` has.
    """

    run: str
    states: Mapping[Rank, str]
    now: float
    wall: float
    site_limits: Mapping[str, float] = field(default_factory=dict)
    peak_flops: Callable[[Rank], float | None] = lambda _: None
    role: str = ""

    @cached_property
    def running(self) -> Sequence[Rank]:
        """Those that run."""
        return [rank for rank, state in self.states.items() if state == "running"]

    @cached_property
    def alive(self) -> Sequence[Rank]:
        """Those whose process is there, running or frozen."""
        return [rank for rank, state in self.states.items() if state in catalog.ALIVE]

    @cached_property
    def progress(self) -> float | None:
        """When one of the living last completed a step; None before the first.

        The step of a rank that has ended does not count: where it was left behind, its successor compiles elsewhere.
        """
        return max((rank.progress for rank in self.alive if rank.progress is not None), default=None)

    @cached_property
    def without_step(self) -> float | None:
        """Seconds since that step."""
        return None if self.progress is None else max(0.0, self.now - self.progress)

    @cached_property
    def youngest(self) -> Rank | None:
        """Whose process started last, of those that run; None before any has said when it did."""
        known = (rank for rank in self.running if rank.started is not None)
        return max(known, key=lambda rank: rank.started or 0.0, default=None)

    @cached_property
    def started(self) -> float | None:
        """When that was."""
        return None if self.youngest is None else self.youngest.started

    @cached_property
    def steps(self) -> Mapping[Rank, float]:
        """Seconds of each rank's usual step, where it is known."""
        return {rank: step for rank in self.states if (step := step_seconds(rank)) is not None}

    @cached_property
    def step_seconds(self) -> float | None:
        """Seconds of the run's usual step: the median of those whose process is there."""
        usual = [self.steps[rank] for rank in self.alive if rank in self.steps]
        return median(usual) if usual else None

    @cached_property
    def waits(self) -> Mapping[Rank, float]:
        """Seconds per ordinary step that each rank that runs waits for the others, where it is known."""
        waits = {rank: gauge(rank, catalog.TRAIN_RECENT_WAIT.key) for rank in self.running}
        return {rank: wait for rank, wait in waits.items() if wait is not None}

    @cached_property
    def train_step(self) -> float | None:
        """The furthest step of the living, in this attempt where they only count; None where none has said one."""
        said = [rank.step for rank in self.alive if rank.step is not None]
        return max(said or self.totals(catalog.TRAIN_STEPS.key), default=None)

    @cached_property
    def limits(self) -> Mapping[str, Applied]:
        """The limits that apply to the run, by name; its own is that of the most tolerant of the living ranks."""
        own: dict[str, float] = {}
        for rank in self.alive:
            for name, value in rank.series.gauges.get(catalog.TRAIN_THRESHOLD.key, {}).items():
                own[name] = max(value, own.get(name, 0.0))
        return applied(own, self.site_limits)

    @cached_property
    def hang_limit(self) -> float:
        """Seconds that the run may go without a step where nobody pauses."""
        seconds = self.limit("hang_seconds")
        if self.step_seconds is None:
            return max(seconds, diagnosis.UNKNOWN_STEP_SECONDS)
        return seconds + diagnosis.HANG_STEPS * self.step_seconds

    def gauge_of_each(self, key: str) -> dict[Rank, float]:
        """Return a gauge that cannot be negative, of the living that have it."""
        return {rank: value for rank in self.alive if (value := gauge(rank, key)) is not None}

    def gauges(self, key: str) -> list[float]:
        """Return the same without who has it."""
        return list(self.gauge_of_each(key).values())

    def totals(self, key: str) -> list[float]:
        """Return a counter, summed over its label, of the living that have it."""
        return [total for rank in self.alive if (total := rank.series.total(key)) is not None]

    def limit(self, name: HasDefault) -> float:
        """Return the limit that applies to the run, of those that have a default."""
        return self.limits[name].value


def gauge(rank: Rank, key: str) -> float | None:
    """Return a gauge of a rank that cannot be negative."""
    value = rank.series.gauge(key)
    return value if value is not None and 0 <= value < math.inf else None


def seat(rank: Rank) -> tuple[str, str, str]:
    """Return the labels rank, gpu and uuid of a rank."""
    return rank.key[1], *rank.place


def step_seconds(rank: Rank) -> float | None:
    """Return a rank's usual step, else the mean of all that it made, without the phases that are not part of a step."""
    if usual := gauge(rank, catalog.TRAIN_RECENT_STEP.key) or rank.usual_step_seconds:
        return usual
    steps = rank.series.total(catalog.TRAIN_STEPS.key)
    phases = rank.series.counters.get(catalog.TRAIN_PHASE_SECONDS.key, {})
    seconds = sum(taken for phase, taken in phases.items() if phase not in PAUSES)
    return seconds / steps if steps and 0 < seconds < math.inf else None
