"""How a rank ends: by its last message, by what the kernel says of its process, or without a word."""

from __future__ import annotations

import os

from tachograph.catalog import index as catalog
from tachograph.node.ranks.frames import Bye
from tachograph.node.ranks.process_end import asked_to_end, in_words
from tachograph.node.ranks.rank import Rank


def said_bye(rank: Rank, bye: Bye, now: float) -> None:
    """End a rank that shuts down in an orderly way."""
    rank.end("finished", now)
    if bye.outcome == "failed":
        rank.fail(bye.category, bye.message)
        rank.failure_reason = bye.reason
    elif bye.exit_code:
        _fail_by(rank, bye.exit_code)


def exited(rank: Rank, status: int, *, decides: bool) -> None:
    """Note how the process of a finished rank ended, in the form of wait(2); a failure only where that decides."""
    if rank.outcome != "finished" or status == 0:
        return
    if decides and os.WIFEXITED(status):
        _fail_by(rank, os.WEXITSTATUS(status))
    else:
        rank.end_note = f"its process ended later: {in_words(status)}"


def gone(rank: Rank, status: int | None = None) -> None:
    """Conclude how the process of a lost rank ended, in the form of wait(2); it died where that is not known.

    An exit code is a failure, and no death: 0 acquits it, also later, and so do the signals by which a scheduler or
    a terminal ends a process, and the exit codes by which a process says that it ended by one.
    """
    if rank.lost is None or (rank.outcome and status is None):  # it is back; this is known
        return
    rank.end("dead", rank.lost)
    if status is None:
        return
    if status == 0:
        rank.end("finished", rank.lost)
    elif rank.outcome == "dead" and os.WIFEXITED(status):
        _fail_by(rank, os.WEXITSTATUS(status))
    elif category := asked_to_end(status):
        rank.fail(category)
    elif rank.outcome == "dead":
        rank.died_by(in_words(status))
    rank.end_note = f"{in_words(status)}, without a final message"


def _fail_by(rank: Rank, code: int) -> None:
    rank.end_note = f"exit code {code}"
    rank.fail(catalog.SIGNAL_EXIT_CODES.get(code, catalog.EXIT_CODE), rank.end_note)
