"""Each user's share of the exporter, so that no user can starve the others.

Ranks of many users share one exporter on one event loop. Connections are counted, and CPU time is charged to the user
who caused it: frames of a user who has used up the share are read later. Whatever a user wants beyond a share is
refused where it is wanted, and counted and logged here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial

from tachograph.catalog import index as catalog
from tachograph.node.ranks.names import NewNames
from tachograph.node.recent_peak import RecentPeak
from tachograph.node.samples import Sample

WORK_RATE = 0.25
"""CPU seconds per second that the frames of all users together may cost the event loop."""

WORK_BURST = 0.02
"""CPU seconds that they may cost at once, and so delay a scrape. 64 full frames take half."""

CONNECTION_COST = 0.0003
"""CPU seconds charged for an accepted connection, which asyncio sets up and tears down unmeasured."""

SHORTEST_WAIT_SECONDS = 0.02
"""Shortest time for which a user over the CPU share is not read, so that not every frame causes a wake-up."""

LONGEST_DEBT_SECONDS = 10.0
"""What a user has taken of others' parts is held against that user for no longer."""

MOST_USERS = 32
"""Users that the counter of exceeded shares tells apart, since with user namespaces one person can have many uids."""

QUIET_SECONDS = 600.0
"""A share that was not exceeded for so long is logged again when it is."""

_log = logging.getLogger(__name__)


class _Debt:
    """CPU seconds that were taken, less what has become free since at some rate."""

    __slots__ = ("_refilled", "seconds")

    def __init__(self, now: float) -> None:
        self.seconds, self._refilled = 0.0, now

    def wait_seconds(self, now: float, rate: float, burst: float) -> float:
        """Return the seconds until less than `burst` is owed."""
        self.seconds = max(0.0, self.seconds - (now - self._refilled) * rate)
        self._refilled = now
        return max(0.0, (self.seconds - burst) / rate)


class Share:
    """The connections, bytes, series and names of one user, and the CPU time left to spend."""

    __slots__ = (
        "_debt", "_is_awaited", "_shares", "_waiting", "connections", "kept_bytes", "names", "series",
    )  # fmt: skip

    def __init__(self, shares: Shares, uid: int, now: float) -> None:
        self._shares = shares
        self._debt = _Debt(now)
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_awaited = False
        self.connections = 0
        self.kept_bytes = 0
        self.series = 0
        self.names = NewNames(shares.clock, partial(shares.exceeded, uid, "names"))

    def spend(self, seconds: float) -> None:
        """Charge CPU seconds."""
        self._debt.seconds += seconds
        self._shares.spend(seconds)

    def spend_on_frame(self, seconds: float) -> None:
        """Charge the CPU seconds of one frame."""
        self.spend(seconds)
        self._shares.note_frame(seconds)

    def wait_seconds(self) -> float:
        """Return the seconds until this user may be served again; 0 while some of the share is left, or of the whole.

        What others leave is everybody's: those who are connected and send nothing take nothing.
        """
        rate, burst = WORK_RATE / self._shares.users, WORK_BURST / self._shares.users
        own = self._debt.wait_seconds(self._shares.clock(), rate, burst)
        if own > LONGEST_DEBT_SECONDS:
            self._debt.seconds = burst + LONGEST_DEBT_SECONDS * rate
        return min(own, self._shares.wait_seconds()) if own else 0.0

    def in_turn(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` once some of the share is left, after those of this user that wait already.

        One at a time: if all woke whenever a little is left, their waking would be the work.
        """
        self._waiting.append(go_on)
        if not self._is_awaited:
            self._await()

    def _await(self) -> None:
        self._is_awaited = True
        asyncio.get_running_loop().call_later(max(self.wait_seconds(), SHORTEST_WAIT_SECONDS), self._serve)

    def _serve(self) -> None:
        while self._waiting and not self.wait_seconds():
            self._waiting.popleft()()
        self._is_awaited = False
        if self._waiting:
            self._await()


class Shares:
    """The shares of all users connected to the socket."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._of: dict[int, Share] = {}
        self.users = 1
        """Users who share the work: those with a connection, at least 1."""
        self._debt = _Debt(clock())
        self._ticked = clock()
        self.throttled_seconds = 0.0
        self._frame_cost = RecentPeak(clock)
        self.over: Counter[tuple[str, str]] = Counter()
        """How often each user, a uid in digits, has exceeded a share of what."""
        self._exceeded: dict[tuple[str, str], float] = {}

    @property
    def connections(self) -> int:
        """Connections of all users."""
        return sum(share.connections for share in self._of.values())

    def of(self, uid: int) -> Share:
        """Return a user's share."""
        share = self._of.get(uid)
        if share is None:
            share = self._of[uid] = Share(self, uid, self.clock())
        return share

    def spend(self, seconds: float) -> None:
        """Charge CPU seconds to all users together."""
        self._debt.seconds += seconds

    def wait_seconds(self) -> float:
        """Return the seconds until some of what all users have together is left."""
        return self._debt.wait_seconds(self.clock(), WORK_RATE, WORK_BURST)

    def note_frame(self, seconds: float) -> None:
        """Note the CPU seconds of one frame."""
        self._frame_cost.note(seconds)

    def exceeded(self, uid: int, resource: str, times: int = 1) -> None:
        """Count that a user wanted more than a share of one of `catalog.SHARED`, and log it when it begins."""
        user = str(uid)
        if (user, resource) not in self.over:
            known = {each for each, _ in self.over}
            user = user if user in known or len(known) < MOST_USERS else catalog.OTHER_USERS
        who, now = (user, resource), self.clock()
        self.over[who] += times
        if now - self._exceeded.get(who, -QUIET_SECONDS) >= QUIET_SECONDS:
            _log.warning(
                "user wants more than a share: what exceeds it is refused", extra={"uid": user, "resource": resource}
            )
        self._exceeded[who] = now

    def samples(self) -> Iterator[Sample]:
        """Yield the highest cost of a frame, the time in which users had to wait, and who exceeded a share of what."""
        yield Sample(catalog.FRAME_COST, (), self._frame_cost.read())
        yield Sample(catalog.THROTTLED, (), self.throttled_seconds)
        for who, times in self.over.items():
            yield Sample(catalog.USER_OVER_SHARE, who, times)

    def connect(self, uid: int) -> None:
        """Count a connection."""
        self.of(uid).connections += 1
        self._count_users()

    def disconnect(self, uid: int) -> None:
        """Count the end of a connection."""
        self.of(uid).connections -= 1
        self._count_users()

    def _count_users(self) -> None:
        self.users = max(1, sum(share.connections > 0 for share in self._of.values()))

    def tick(self) -> None:
        """Count the time in which a user had to wait, and forget users who left; call it about once a second."""
        now = self.clock()
        waiting = {uid for uid, share in self._of.items() if share.wait_seconds() > 0}
        if waiting:
            self.throttled_seconds += now - self._ticked
        for uid in waiting:
            self.exceeded(uid, "cpu", max(1, round(now - self._ticked)))
        self._ticked = now
        for uid, share in list(self._of.items()):
            if share.connections == 0 and share.series == 0 and share.names.is_whole and uid not in waiting:
                del self._of[uid]
