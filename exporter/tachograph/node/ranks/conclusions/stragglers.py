"""Which ranks here wait least for the others, how long the median rank waits, and what both did in the hour before.

A rank that waits least arrived last. Whether it is late the rules say, which compare nodes: a node of one rank has
nobody to compare it with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from tachograph.catalog import index as catalog
from tachograph.diagnosis import CROWD, LAG_RATIO
from tachograph.node.ranks.conclusions.lags import is_late, usual_wait
from tachograph.node.ranks.conclusions.remembered_wait import PAST_EVERY, RememberedWait
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import Sample

NAMED_SECONDS = 120.0
"""A rank that was named stays so for a while: how it recovers is seen then, and not only that it is named no more."""

FORGOTTEN_SECONDS = 3600.0
"""A run that stands still has the stragglers that it had, for an hour."""


class Stragglers:
    """Remembers the waits of each living rank and of the median rank of each stage, and who was named when."""

    def __init__(self) -> None:
        self._waits: dict[Rank, RememberedWait] = {}
        self._medians: dict[str, RememberedWait] = {}
        self._named: dict[Rank, float] = {}
        self._first: dict[str, Rank] = {}
        self._step: float | None = None
        self._seen = self._learnt = 0.0

    def look(self, view: RunView) -> None:
        """Note how long each rank waits, and who waits least; what is usual once a minute."""
        now, step = view.now, view.step_seconds
        alive = set(view.alive)
        self._waits = {rank: wait for rank, wait in self._waits.items() if rank in alive}
        self._named = {
            rank: at for rank, at in self._named.items() if rank in self._waits and now - at <= NAMED_SECONDS
        }
        if view.waits and step:
            self._seen, self._step = now, step
            for rank, wait in view.waits.items():
                if rank not in self._waits:
                    self._waits[rank] = RememberedWait(now)
                self._waits[rank].take(now, wait, step)
        elif now - self._seen > FORGOTTEN_SECONDS:
            self._waits, self._step = {}, None
        if self._step is None:
            return
        stages = self._stages()
        self._medians = {stage: self._medians.get(stage) or RememberedWait(now) for stage in stages}
        for stage, ranks in stages.items():
            of_median = self._medians[stage]
            of_median.take(now, _usual([self._waits[rank].last for rank in ranks]), self._step)
            for rank in self._least(stage, ranks)[:CROWD]:
                self._named[rank] = now
        if now - self._learnt >= PAST_EVERY and view.waits:
            self._learn(now, self._step)

    def _learn(self, now: float, step: float) -> None:
        """Note what is usual, of all or of nobody: not while a rank waits less or the median rank more than it did."""
        self._learnt = now
        limit = LAG_RATIO * step
        for wait in self._waits.values():
            if (past := wait.past(step)) is not None and past - wait.last > limit:
                return
        for wait in self._medians.values():
            if (past := wait.past(step)) is not None and wait.last - past > limit:
                return
        for wait in (*self._waits.values(), *self._medians.values()):
            wait.learn(now, step)

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield the waits of the median rank by stage, and of the ranks that wait least."""
        step = self._step
        if step is None:
            return
        for stage, ranks in self._stages().items():
            of_median, key = self._medians[stage], (view.run, stage)
            yield Sample(catalog.RUN_WAITING_RANKS, key, len(ranks))
            if not of_median.lasts(view.now, step):
                continue
            yield Sample(catalog.RUN_WAIT, key, of_median.least)
            if (past := of_median.past(step)) is not None:
                yield Sample(catalog.RUN_WAIT_PAST, key, past)
            off = (abs(self._waits[rank].last - of_median.last) for rank in ranks)
            yield Sample(catalog.RUN_WAIT_SPREAD, key, median(off))
            named = [rank for rank in ranks if rank in self._named and self._waits[rank].lasts(view.now, step)]
            for rank in sorted(named, key=lambda rank: self._waits[rank].greatest)[:CROWD]:
                yield from self._named_samples((view.run, rank.key[1], stage, *rank.place), self._waits[rank], step)
        yield from _phases(view)

    def _named_samples(self, key: tuple[str, ...], wait: RememberedWait, step: float) -> Iterator[Sample]:
        yield Sample(catalog.RUN_LEAST_WAIT, key, wait.greatest)
        if (past := wait.past(step)) is not None:
            yield Sample(catalog.RUN_LEAST_WAIT_PAST, key, past)

    def _stages(self) -> Mapping[str, list[Rank]]:
        """The ranks that wait, by their stage of the pipeline; empty where there is none, or none is known."""
        stages = defaultdict[str, list[Rank]](list)
        for rank in self._waits:
            stages[str(rank.coordinates.get("pp", ""))].append(rank)
        return stages

    def _least(self, stage: str, ranks: Sequence[Rank]) -> list[Rank]:
        """Return who waits least; with those that wait clearly less than the median rank, or than they did.

        Where ranks are alike, chance makes another one wait least on each step: it is the same one until one waits less
        by half of what makes a rank late.
        """
        waits, of_median, step = self._waits, self._medians[stage], self._step or 0.0
        least = min(ranks, key=lambda rank: waits[rank].greatest)
        first = self._first.get(stage, least)
        if first not in ranks or waits[first].greatest - waits[least].greatest > LAG_RATIO / 2 * step:
            first = least
        self._first[stage] = first
        lags = {rank: of_median.least - waits[rank].greatest for rank in ranks}
        past = of_median.past(step)
        grown = {
            rank: lag - (past - own)
            for rank, lag in lags.items()
            if past is not None and (own := waits[rank].past(step)) is not None
        }
        late = [rank for measure in (lags, grown) for rank in _standing_out(measure, step)]
        return list(dict.fromkeys([first, *late]))


def _standing_out(measure: Mapping[Rank, float], step: float) -> list[Rank]:
    """Return the ranks with half of the largest lag or more, where that is more than noise; the largest first."""
    largest = max(measure.values(), default=0.0)
    if not is_late(largest, largest / step):
        return []
    found = [rank for rank, lag in measure.items() if lag > largest / 2]
    return sorted(found, key=lambda rank: -measure[rank])


def _usual(waits: Sequence[float]) -> float:
    return waits[0] if (usual := usual_wait(waits)) is None else usual


def _phases(view: RunView) -> Iterator[Sample]:
    """Yield for how long the median rank is busy in each phase of a step."""
    found = defaultdict[str, list[float]](list)
    for rank in view.running:
        for phase, seconds in rank.series.gauges.get(catalog.TRAIN_RECENT_PHASE.key, {}).items():
            found[phase].append(seconds)
    for phase in catalog.PHASES:
        if phase in found:
            yield Sample(catalog.RUN_PHASE, (view.run, phase), median(found[phase]))
