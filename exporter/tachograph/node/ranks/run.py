"""One run on this node: its ranks, the sums over them, and what is remembered of earlier ones."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from tachograph.catalog import index as catalog
from tachograph.node.histograms import MOST, HistogramSample, RunHistogram, from_classic
from tachograph.node.ranks.conclusions.run import RunConclusions
from tachograph.node.ranks.frames import Event, Hello
from tachograph.node.ranks.rank import Rank
from tachograph.node.ranks.run_totals import RunTotals
from tachograph.node.ranks.saved_ranks import saved_process
from tachograph.node.ranks.saved_totals import SavedProcess, SavedRank, SavedRun
from tachograph.node.samples import Sample


class EarlierProcess(NamedTuple):
    """The remembered facts of an earlier process of a rank: its step, its last heartbeat (Unix time), how it ended.

    `heard` is the time of the heartbeat by the monotonic clock, which all exporters of one boot share; None if it was
    saved by one that did not say.
    """

    step: int | None
    heartbeat: float
    attempt: int
    finished: bool
    heard: float | None = None

    @classmethod
    def of(cls, rank: Rank) -> EarlierProcess:
        """Return the facts of a rank's present process."""
        return cls(rank.step, rank.heartbeat, rank.hello.attempt, rank.outcome == "finished", rank.heard)

    @classmethod
    def restored(cls, saved: SavedProcess | SavedRank) -> EarlierProcess:
        """Return the facts of a process known to a previous exporter."""
        return cls(saved.step, saved.heartbeat, saved.attempt, saved.finished, saved.heard)

    def continues_in(self, hello: Hello) -> bool:
        """Return whether a hello continues it: not after it finished, unless the hello has a later attempt."""
        return not self.finished or hello.attempt > self.attempt


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
