"""Since when a rank has held its run up, and a run has waited for data: for screens, which say it beside the fact."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_low
from typing import Final

from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.lags import is_straggler, lags
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import Sample

FORGIVEN_SECONDS = 30.0
"""What was over for no longer than this goes on."""
DATA: Final = "data"


def stragglers(view: RunView) -> set[Rank]:
    """Return the ranks that hold the run up, of those here."""
    limit, waits = view.limit("straggler_ratio"), view.waits
    return {
        rank
        for rank, lag in lags(waits).items()
        if (step := view.steps.get(rank)) and is_straggler(lag / step, waits[rank] / step, limit)
    }


def data_seconds(view: RunView) -> float | None:
    """Return what the median rank waits for data in each step; None where no rank loads data, or one just stood still.

    After a standstill of 45 s in the loader, the mean of its steps of half a second says 15 s.
    """
    if any(rank.stood_still for rank in view.running):
        return None
    phases = (rank.series.gauges.get(catalog.TRAIN_RECENT_PHASE.key, {}) for rank in view.running)
    waits = [each["data"] for each in phases if "data" in each]
    return median_low(waits) if waits else None


def waits_for_data(view: RunView) -> bool:
    """Return whether the run waits for data for more than the share of its steps that is its limit."""
    wait, step = data_seconds(view), view.step_seconds
    return wait is not None and bool(step) and min(wait / (step or 1.0), 1.0) > view.limit("data_stall_ratio")


class Since:
    """Remembers since when each rank has been a straggler, and since when the run has waited for data."""

    def __init__(self) -> None:
        self._found: dict[Rank | str, tuple[float, float]] = {}
        """Since when, and when it was last seen, by the monotonic clock."""

    def look(self, view: RunView) -> None:
        """Note what is so now."""
        now = view.now
        if any(now - seen > FORGIVEN_SECONDS for _, seen in self._found.values()):
            self._found = {each: at for each, at in self._found.items() if now - at[1] <= FORGIVEN_SECONDS}
        present: set[Rank | str] = {*stragglers(view)}
        if waits_for_data(view):
            present.add(DATA)
        for each in present:
            begun, _ = self._found.get(each, (now, now))
            self._found[each] = begun, now

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield nothing: the rules keep times of their own."""
        yield from ()

    def seconds(self, what: Rank | str, now: float) -> float | None:
        """Return for how long a rank has been a straggler, or DATA so; None where it is not."""
        found = self._found.get(what)
        return None if found is None else now - found[0]
