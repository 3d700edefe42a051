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
        seen = rank.phase or "", rank.pid, rank.where, rank.process_state
        yield Sample(catalog.RUN_FROZEN, (view.run, *seat(rank), *seen, _words(rank)), view.now - rank.heard)


def _is_frozen(rank: Rank, now: float) -> bool:
    limit = FROZEN_IN_PAUSES_SECONDS if rank.phase in PAUSES else FROZEN_SECONDS
    return now - rank.heard > limit


def _words(rank: Rank) -> str:
    """Return the end of the sentence in which a page says that a rank sends nothing: where it was last, and why."""
    said = f", last seen in phase {rank.phase}" if rank.phase else ""
    if rank.written_coordinates:
        said += f"; {rank.written_coordinates}"
    if rank.pid:
        said += f"; pid {rank.pid}"
    if rank.process_state:
        said += f", state {rank.process_state}"
    if rank.where:
        return f"{said}, at {rank.where}: what it calls there holds Python's lock, and does not return."
    process = f" -p {rank.pid}" if rank.pid else ""
    return (
        f"{said}: the process is stopped, swapped out, or stuck in the kernel. Look at its state there (ps -o "
        f"pid,stat,wchan:32,cmd{process}): T – continue it; D – its disk or file system hangs; R – something holds "
        "Python's lock."
    )
