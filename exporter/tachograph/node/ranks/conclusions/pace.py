"""How long a step of the run usually takes, and how long it may go without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tachograph import diagnosis
from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.samples import Sample


def hang_limit(step_seconds: float | None, thresholds: Iterable[float] = (), *, pauses: bool = False) -> float:
    """Return how long a run may go without a step, given its usual step and the thresholds that its ranks set."""
    own = max((threshold for threshold in thresholds if threshold > 0), default=diagnosis.HANG_SECONDS)
    own = max(own, diagnosis.PAUSE_SECONDS) if pauses else own
    return (
        max(own, diagnosis.FIRST_STEPS_SECONDS) if step_seconds is None else own + diagnosis.HANG_STEPS * step_seconds
    )


class Pace:
    """Remembers nothing."""

    def look(self, view: RunView) -> None:
        """Nothing is remembered."""

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield the usual step."""
        if view.step_seconds is not None:
            yield Sample(catalog.RUN_STEP_SECONDS, (view.run,), view.step_seconds)
