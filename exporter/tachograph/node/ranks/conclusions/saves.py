"""When the run last saved, and at which step."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.view import RunView, gauge
from tachograph.node.samples import Sample


class RunSaves:
    """Remembers the last save of any rank here: the next attempt has none until its first."""

    def __init__(self) -> None:
        self._at = -math.inf
        self._saved = 0.0
        self._step: float | None = None

    def look(self, view: RunView) -> None:
        """Note a save that is newer; its time is shown as its rank tells it."""
        for rank in view.states:
            saved = gauge(rank, catalog.TRAIN_CHECKPOINT_TIMESTAMP.key)
            if saved is not None and rank.saved_at is not None and rank.saved_at > self._at:
                self._at, self._saved = rank.saved_at, saved
                self._step = gauge(rank, catalog.TRAIN_CHECKPOINT_STEP.key)

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield the last save, and its step if that is known."""
        if self._saved:
            yield Sample(catalog.RUN_CHECKPOINT_TIMESTAMP, (view.run,), self._saved)
            if self._step is not None:
                yield Sample(catalog.RUN_CHECKPOINT_STEP, (view.run,), self._step)
