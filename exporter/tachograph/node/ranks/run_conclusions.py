"""The node's conclusions about its own ranks of a run: as many series for eight ranks as for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from tachograph.catalog import index as catalog
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import Sample


def conclusions(run: str, ranks: Collection[tuple[Rank, str]]) -> list[Sample]:
    """Return how many ranks of a run are in which state, given each with its own, and when one last made a step.

    The step of a rank that has ended does not count: where it was left behind, its successor compiles elsewhere.
    """
    states = Counter({"running": 0})
    states.update(state for _, state in ranks)
    shown = [Sample(catalog.RUN_RANKS, (run, state), states[state]) for state in catalog.STATES if state in states]
    steps = [rank.progress for rank, state in ranks if state in catalog.ALIVE and rank.progress is not None]
    return [*shown, Sample(catalog.RUN_PROGRESS, (run,), max(steps))] if steps else shown
