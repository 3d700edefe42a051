"""Whose ranks a GPU's alerts name: those that the driver lists there, and others only where it lists nobody.

A rank may claim any GPU. A claim shows the rank itself on that GPU; what it must not do is name its run in the alerts
of another user's GPU, or lower them to its tier. Each user with ranks on a GPU is shown, so that nobody takes the place
of another one; root, as which containers of many people may run, counts as a user for each of its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TypeAlias

from tachograph.node.process_status import process_status
from tachograph.node.ranks.rank import Rank
from tachograph.wire import without_role

FAULT_SECONDS = 60.0
"""How long a rank that did not finish is shown beside living ones: a fault of their GPU may have killed it."""

MAX_PIDS = 64
"""Processes of one GPU whose users are looked up."""

Owner: TypeAlias = "int | str"


def uid_of(pid: int) -> int | None:
    """Return the effective uid of a process, None if it is not visible."""
    uids = process_status(pid).get("Uid", "").split()
    return int(uids[1]) if len(uids) == 4 else None


class GpuOwners:
    """The processes that the driver lists on each GPU, with their users.

    What it listed last stands while it lists none, as on a lost GPU. Processes that are not visible are left out: in
    another pid namespace than the exporter's, a pid says nothing.
    """

    def __init__(self, user: Callable[[int], int | None] = uid_of) -> None:
        self._user = user
        self._pids: dict[str, Sequence[int]] = {}
        self._listed: dict[str, dict[int, int]] = {}

    def note(self, processes: Mapping[str, Sequence[int]]) -> None:
        """Take the pids that the driver lists, by the UUID of the GPU."""
        for uuid, pids in processes.items():
            if pids == self._pids.get(uuid):
                continue
            self._pids[uuid] = pids
            before = self._listed.get(uuid, {})
            users = {pid: before[pid] if pid in before else self._user(pid) for pid in pids[:MAX_PIDS]}
            if known := {pid: uid for pid, uid in users.items() if uid is not None}:
                self._listed[uuid] = known

    def user_of(self, pid: int) -> int | None:
        """Return the uid of a process that the driver lists; None where it is not visible."""
        return next((listed[pid] for listed in self._listed.values() if pid in listed), None)

    def confirm(self, rank: Rank) -> None:
        """Note whether the driver lists a living rank, or another process of its user, where the rank is placed."""
        placement, peer = rank.placement, rank.peer
        listed = self._listed.get(placement.gpu.uuid, {}) if placement.gpu is not None else {}
        placement.confirmed = (
            listed.get(peer.pid) == peer.uid or (peer.uid != 0 and peer.uid in listed.values())
            if listed
            else placement.is_of_driver
        )

    def named(self, uuid: str, ranks: Sequence[Rank], dev: Container[str], now: float) -> list[Rank]:
        """Return the ranks by which a GPU's alerts name it: of each user one that lives, else the one that ended last.

        A `dev` run lowers its alerts, so it is named only if all that the driver lists there is its own.
        """
        listed = self._listed.get(uuid, {})
        known = [rank for rank in ranks if rank.placement.confirmed] or ([] if listed else list(ranks))
        here = [rank for rank in known if rank.ended is None or _just_died(rank, now)] or known
        if not _is_alone(here, listed):
            here = [rank for rank in here if rank.hello.run not in dev]
        found: dict[Owner, Rank] = {}
        for rank in here:
            other = found.setdefault(_owner(rank), rank)
            if other.ended is not None and (rank.ended is None or rank.ended > other.ended):
                found[_owner(rank)] = rank
        return list(found.values())


def _owner(rank: Rank) -> Owner:
    return rank.peer.uid or without_role(rank.hello.run, rank.hello.role)


def _just_died(rank: Rank, now: float) -> bool:
    return rank.ended is not None and rank.outcome != "finished" and now - rank.ended < FAULT_SECONDS


def _is_alone(ranks: Sequence[Rank], listed: Mapping[int, int]) -> bool:
    """Return whether these ranks are of one user, and so is every process that the driver lists beside them."""
    if len({_owner(rank) for rank in ranks}) != 1 or not all(rank.placement.confirmed for rank in ranks):
        return False
    pids, uid = {rank.peer.pid for rank in ranks}, ranks[0].peer.uid
    return all(user == uid and (uid != 0 or pid in pids) for pid, user in listed.items())
