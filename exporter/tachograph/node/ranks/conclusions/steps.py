"""At which step the ranks here are, and by name who is at another one: they train together only at the same."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from tachograph.catalog import index as catalog
from tachograph.catalog.rank import PAUSES
from tachograph.diagnosis import CROWD
from tachograph.node.ranks.conclusions.view import RunView, seat
from tachograph.node.samples import Sample

STEPS_BETWEEN_FRAMES = 3


def steps(view: RunView) -> Iterator[Sample]:
    """Yield the median step of those that train, and the steps of those furthest from it."""
    at = {rank: rank.step for rank in view.running if rank.step is not None and rank.phase not in PAUSES}
    if not at:
        return
    usual = median(at.values())
    yield Sample(catalog.RUN_RANK_STEP, (view.run, "", "", ""), usual)
    apart = [rank for rank in at if abs(at[rank] - usual) > STEPS_BETWEEN_FRAMES]
    for rank in sorted(apart, key=lambda rank: -abs(at[rank] - usual))[:CROWD]:
        yield Sample(catalog.RUN_RANK_STEP, (view.run, *seat(rank)), at[rank])
