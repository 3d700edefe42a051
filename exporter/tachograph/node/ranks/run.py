"""One run on this node: its ranks, the sums over them, and what is remembered of earlier ones."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol, runtime_checkable

from tachograph.catalog import index as catalog
from tachograph.node.histograms import MOST, HistogramSample, RunHistogram, from_classic
from tachograph.node.ranks.conclusions.run import RunConclusions
from tachograph.node.ranks.earlier_processes import MAX_FORGOTTEN
from tachograph.node.ranks.frames import Event, FrameError, Hello, Peer, State
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.rank import Rank
from tachograph.node.ranks.run_totals import RunTotals
from tachograph.node.ranks.saved_ranks import saved_process
from tachograph.node.ranks.saved_totals import SavedProcess, SavedRun
from tachograph.node.samples import Sample


@runtime_checkable
class Askable(Protocol):
    """A link that can ask its rank for something."""

    def ask_for_box(self, reason: str) -> None:
        """Ask the rank for its box."""
        ...


@dataclass(frozen=True)
class RankEvent:
    """An event, and the rank that reported it."""

    run: str
    rank: int
    event: Event


KEPT_EVENTS = 16
"""The last events of a run that are remembered: more than a page shows."""


class Run:
    """One run on this node, or one role of it; it is owned by the uid whose rank said hello first."""

    def __init__(self, owner: int, role: str = "") -> None:
        self.owner, self.role = owner, role
        self.ranks: dict[int, Rank] = {}
        self.absent: dict[int, SavedProcess] = {}
        """Processes known to a previous exporter that have not said hello to this one."""
        self.histograms: dict[str, RunHistogram] = {}
        self.totals = RunTotals()
        self.conclusions = RunConclusions()
        self.restarts: dict[int, int] = {}
        """Restarts of forgotten ranks of this run."""
        self.captured: tuple[float, int] | None = None
        """When its ranks were last asked for their boxes, by the monotonic clock, and how many were."""
        self.events: deque[RankEvent] = deque(maxlen=KEPT_EVENTS)

    def claimable(self, link: object, hello: Hello, peer: Peer, *, are_awaited: bool) -> Rank | None:
        """Return the rank that a hello may take over, None if there is none yet; raise FrameError if it may not.

        `are_awaited`: this exporter has just started, and ranks that lived when the one before ended return.
        """
        if self.owner != peer.uid:
            raise FrameError("owner", f"run {hello.run} belongs to uid {self.owner}, you are uid {peer.uid}")
        old, absent = self.ranks.get(hello.rank), self.absent.get(hello.rank)
        if are_awaited and absent is not None and absent.end is None and not absent.is_of(hello, peer):
            _check_attempt(hello, absent.pid or absent.hello_pid, absent.attempt)
        if old is None or old.link in (None, link):
            return old
        if peer.pid and old.same_process(hello, peer):  # in other pid namespaces every container has the same few
            return old
        _check_attempt(hello, old.peer.pid or old.hello.pid, old.hello.attempt)
        return old

    def speaker(self, link: object, hello: Hello, peer: Peer, limits: Limits, drops: Counter[str]) -> Rank:
        """Return the rank for a process: the one it had, or a new one that continues from what is known."""
        old, absent = self.ranks.get(hello.rank), self.absent.get(hello.rank)
        if old is not None and old.same_process(hello, peer) and old.outcome in ("", "dead"):
            return old
        goes_on = absent is not None and absent.is_of(hello, peer)
        if old is not None:
            restarts = old.restarts + 1
        elif absent is not None:
            restarts = absent.restarts + (not goes_on)
        else:
            restarts = self.restarts.get(hello.rank, -1) + 1
        first = old is None and absent is None and hello.rank not in self.restarts
        restarts = min(restarts, MOST)  # the rank sends its attempt number, which is bounded too
        rank = Rank(hello, peer, link, limits, drops, restarts=restarts, first=first)
        if old is not None:
            rank.follow(old)
        if absent is not None and goes_on:
            rank.resume(absent)
        return rank

    def take(self, rank: Rank, state: State) -> None:
        """Add the observations and the events of a rank's state, which it has applied."""
        for key, now, before in rank.observations(state):
            self.histograms.setdefault(key, RunHistogram()).add(now, before)
        self.events.extend(RankEvent(rank.hello.run, rank.hello.rank, event) for event in rank.new_events(state))

    def forget(self, rank: Rank) -> None:
        """Forget a rank, but for the number of its restarts."""
        del self.ranks[rank.hello.rank]
        if len(self.restarts) < MAX_FORGOTTEN:
            self.restarts[rank.hello.rank] = rank.restarts

    def capture(self, reason: str, now: float) -> int:
        """Ask every connected rank for its box; return how many were asked."""
        links = [rank.link for rank in self.ranks.values() if isinstance(rank.link, Askable)]
        for link in links:
            link.ask_for_box(reason)
        if links:
            self.captured = now, len(links)
        return len(links)

    def sums(self, name: str) -> list[Sample | HistogramSample]:
        """Return the sums over the ranks."""
        merged = (
            histogram.sample(catalog.TRAIN_HISTOGRAMS[key], (name,)) for key, histogram in self.histograms.items()
        )
        return [*self.totals.samples(name), *merged]

    def saved(self, name: str) -> SavedRun:
        """Return what `restored` needs."""
        known = [saved_process(rank) for rank in self.ranks.values()]
        return SavedRun(
            run=name,
            owner=self.owner,
            totals=self.totals.copy(),
            histograms={
                key: ([min(count, MOST) for count in histogram.classic()], histogram.sum)
                for key, histogram in self.histograms.items()
            },
            fine={key: dict(histogram.counts) for key, histogram in self.histograms.items()},
            restarts=dict(self.restarts),
            processes=[*known, *self.absent.values()],
            role=self.role,
        )

    @classmethod
    def restored(cls, saved: SavedRun) -> Run:
        """Return a run saved by a previous exporter; its ranks have to say hello again."""
        run = cls(saved.owner, saved.role)
        run.totals = RunTotals(saved.totals)
        run.histograms = {
            key: RunHistogram(saved.fine[key] if key in saved.fine else from_classic(counts), total)
            for key, (counts, total) in saved.histograms.items()
            if key in catalog.TRAIN_HISTOGRAMS
        }
        run.restarts = dict(saved.restarts)
        run.absent = {process.rank: process for process in saved.processes}
        return run


def latest_events(runs: Iterable[Run], most: int) -> list[RankEvent]:
    """Return the last events of ranks, the newest first; of each user in turn, whatever times they give."""
    of_users: dict[int, list[RankEvent]] = {}
    for run in runs:
        of_users.setdefault(run.owner, []).extend(run.events)
    latest = (sorted(events, key=_time_of, reverse=True)[:most] for events in of_users.values())
    in_turn = [event for turn in zip_longest(*latest) for event in turn if event is not None]
    return sorted(in_turn[:most], key=_time_of, reverse=True)


def _time_of(event: RankEvent) -> float:
    return event.event.time


def _check_attempt(hello: Hello, holder: int, attempt: int) -> None:
    """Raise FrameError unless the attempt is a later one than that of the process that holds the rank."""
    if hello.attempt <= attempt:
        raise FrameError(
            "conflict",
            f"rank {hello.rank} of run {hello.run} is held by pid {holder} in attempt {attempt}: give another run name "
            "or rank, or a higher attempt",
        )
