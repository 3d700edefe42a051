"""How late each rank here comes to the collectives of the others, and in what it is busy for longer, for screens.

The rules compare nodes, from what stragglers.py says; this is what one node sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple

from tachograph.catalog import index as catalog
from tachograph.diagnosis import LAG_SECONDS
from tachograph.node.ranks.conclusions.lags import is_late, lags
from tachograph.node.ranks.conclusions.since import stragglers
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.ranks.rank import Rank

Phases = Mapping[Rank, Mapping[str, float]]


class Lateness(NamedTuple):
    """Seconds per ordinary step that a rank waits, and by how many less than is usual here; None is not known.

    `wait_ratio` and `lag_ratio` are shares of its step, `mean_lag_seconds` is over all its steps. A straggler spends
    more time than the others in `phase`, by `phase_seconds` per step.
    """

    wait_seconds: float | None
    wait_ratio: float | None
    lag_seconds: float | None
    lag_ratio: float | None
    mean_lag_seconds: float | None
    is_late: bool
    is_straggler: bool
    phase: str
    phase_seconds: float | None


def phases(view: RunView) -> Phases:
    """Return the seconds per ordinary step that each rank that runs spends in each phase."""
    return {rank: rank.series.gauges.get(catalog.TRAIN_RECENT_PHASE.key, {}) for rank in view.running}


def lateness(view: RunView) -> dict[Rank, Lateness]:
    """Return how late each rank here is."""
    lag, mean_lag = lags(view.waits), lags(_mean_waits(view.states))
    slow, spent = stragglers(view), phases(view)
    found = {}
    for rank in view.states:
        late, wait, usual = lag.get(rank), view.waits.get(rank), view.steps.get(rank)
        ratio = late / usual if late is not None and usual else None
        phase, seconds = _late_in(rank, spent) if rank in slow else ("", None)
        found[rank] = Lateness(
            wait_seconds=wait,
            wait_ratio=wait / usual if wait is not None and usual else None,
            lag_seconds=late,
            lag_ratio=ratio,
            mean_lag_seconds=mean_lag.get(rank),
            is_late=ratio is not None and late is not None and is_late(late, ratio),
            is_straggler=rank in slow,
            phase=phase,
            phase_seconds=seconds,
        )
    return found


def _late_in(rank: Rank, spent: Phases) -> tuple[str, float | None]:
    """Return the phase in which a rank is busy longer than the others here, by their median, and by how much."""
    others = [phases for other, phases in spent.items() if other is not rank]
    longer = {
        phase: seconds - median(each.get(phase, 0.0) for each in others)
        for phase, seconds in spent.get(rank, {}).items()
        if others
    }
    phase = max(longer, key=longer.__getitem__, default="")
    return (phase, longer[phase]) if phase and longer[phase] > LAG_SECONDS else ("", None)


def _mean_waits(ranks: Iterable[Rank]) -> dict[Rank, float]:
    """Return the mean wait for collectives per step of each rank whose waits are counted."""
    counted = (
        (rank, rank.series.total(catalog.TRAIN_COLLECTIVE_WAIT.key), rank.series.total(catalog.TRAIN_STEPS.key))
        for rank in ranks
    )
    return {rank: wait / steps for rank, wait, steps in counted if wait is not None and wait < math.inf and steps}
