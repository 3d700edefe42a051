"""The processes of silent ranks: a few of each user are looked at in a second, at the user's own cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice

from tachograph.node.ranks.rank import Rank
from tachograph.node.ranks.shares import Shares

MAX_SILENT = 16
"""Silent processes that are looked at each second, of all users together."""


def look_at_processes(silent: Sequence[Rank], shares: Shares, now: float) -> None:
    """Look at the processes of silent ranks: of each user the same number, those first that were not looked at.

    Ranks of one process are one look, which is charged to the user.
    """
    of_users: dict[int, dict[object, Rank]] = {}
    for rank in sorted(silent, key=lambda rank: (rank.looked, rank.heard)):
        of_users.setdefault(rank.peer.uid, {}).setdefault(rank.peer.pid or rank, rank)
    for uid, ranks in of_users.items():
        share = shares.of(uid)
        for rank in islice(ranks.values(), max(1, MAX_SILENT // len(of_users))):
            if share.wait_seconds() > 0:
                break
            began = time.thread_time()
            rank.look_at_process(now)
            share.spend(time.thread_time() - began)
