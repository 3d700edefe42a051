"""Who holds its connection and sends nothing, for longer than Python's lock is held for good reason."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.catalog import index as catalog
from tachograph.catalog.rank import PAUSES
from tachograph.diagnosis import CROWD
from tachograph.node.ranks.conclusions.view import RunView, seat
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import Sample

FROZEN_SECONDS = 23.0
FROZEN_IN_PAUSES_SECONDS = 60.0
"""An index, json or pickle hold the lock for ten or twenty seconds; a start, a save or an evaluation for a minute."""


def frozen(view: RunView) -> Iterator[Sample]:
    """Yield the ranks that have been silent for too long, at most eight of them."""
    silent = [rank for rank, state in view.states.items() if state == "frozen" and _is_frozen(rank, view.now)]
    for rank in sorted(silent, key=lambda rank: rank.heard)[:CROWD]:
        labels = (view.run, *seat(rank), rank.phase or "", rank.pid, rank.where, rank.process_state)
        yield Sample(catalog.RUN_FROZEN, labels, view.now - rank.heard)


def _is_frozen(rank: Rank, now: float) -> bool:
    limit = FROZEN_IN_PAUSES_SECONDS if rank.phase in PAUSES else FROZEN_SECONDS
    return now - rank.heard > limit
