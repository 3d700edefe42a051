"""Who is there, in which state and attempt, at which step, when it was made, and how often they were restarted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.ranks.rank_samples import wall_of
from tachograph.node.samples import Sample


def presence(view: RunView) -> Iterator[Sample]:
    """Yield the ranks by state, restarts, the attempt, the step that the furthest is at, and when one was last made."""
    states = Counter({"running": 0})
    states.update(view.states.values())
    for state in catalog.STATES:
        if state in states:
            yield Sample(catalog.RUN_RANKS, (view.run, state), states[state])
    attempt = max(rank.hello.attempt for rank in view.states)
    yield Sample(catalog.RUN_RESTARTS, (view.run, str(attempt)), max(rank.restarts for rank in view.states))
    if view.alive:
        yield Sample(catalog.RUN_ATTEMPT, (view.run,), max(rank.hello.attempt for rank in view.alive))
    if view.progress is not None:
        yield Sample(catalog.RUN_PROGRESS, (view.run,), wall_of(view.progress, view.now, view.wall))
    if view.train_step is not None:
        yield Sample(catalog.RUN_TRAIN_STEP, (view.run,), view.train_step)
    if steps := view.totals(catalog.TRAIN_STEPS.key):
        yield Sample(catalog.RUN_STEPS, (view.run,), max(steps))
