"""Who is there, in which state, and when one of them last made a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.samples import Sample


class Presence:
    """Remembers nothing."""

    def look(self, view: RunView) -> None:
        """Nothing is remembered."""

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield the ranks by state, and the last step."""
        states = Counter({"running": 0})
        states.update(view.states.values())
        for state in catalog.STATES:
            if state in states:
                yield Sample(catalog.RUN_RANKS, (view.run, state), states[state])
        if view.progress is not None:
            yield Sample(catalog.RUN_PROGRESS, (view.run,), view.progress)
