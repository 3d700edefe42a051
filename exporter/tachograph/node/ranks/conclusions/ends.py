"""Which of the run's ranks ended first on this node, and how; whether it is over; which attempts were fruitless."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tachograph.catalog import index as catalog
from tachograph.diagnosis import CROWD
from tachograph.node.ranks.conclusions.view import RunView, gauge, seat
from tachograph.node.ranks.last_words import LastWords
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import Sample
from tachograph.text.humanize import listed

OUTLIVED_SECONDS = 60.0
"""An end began nothing that comes later if the run made steps for so long after it."""
BACK_SECONDS = 75.0
"""Ends are shown for so long if all who ended are back: a launcher restarts them before a scrape has seen the end."""
TOGETHER_SECONDS = 0.5
TOGETHER_BY_COMMUNICATION_SECONDS = 3.0
"""Ends that are no further apart than this have one cause: connections break one after the other."""
TOLD_SECONDS = 1.0
"""Who ends so much later than one that was asked to end was at fault for nothing."""
SURE_SECONDS = 30.0
"""A rank has finished if its process has not ended with an error for so long."""
PLAN_SHARE = 0.99
"""Of its planned steps, what a run makes at least that has not ended early."""
STARTING_SECONDS = 5.0
"""Ranks of one attempt start so far apart: one may have ended before another one starts."""
SHOWN_ATTEMPT_SECONDS = 900.0
"""The rules remember an end for so long."""
ROW_SECONDS = 900.0
"""Attempts that fail further apart are no loop."""


@dataclass(frozen=True)
class RankEnd:
    """How a process of a rank ended: when, and when it began; `restarts` counts the processes of the rank before it."""

    rank: Rank
    number: int
    at: float
    began: float
    restarts: int
    reason: str
    said: LastWords
    step: int | None

    @property
    def kind(self) -> str:
        """Return one of catalog.END_KINDS."""
        return catalog.KIND_OF_END.get(self.reason, "failed")


def ends_of(rank: Rank, view: RunView) -> Iterator[RankEnd]:
    """Yield the ends of a rank's processes, the earlier one and the present one, but for those that finished."""
    if (earlier := rank.earlier_end) is not None:
        yield RankEnd(rank, rank.hello.rank, *earlier[1:])
    found = rank.end_at(view.now)
    if found is not None and found[1] != "finished":
        at, reason = found
        said = rank.last_words(view.now)
        yield RankEnd(rank, rank.hello.rank, at, rank.began, rank.restarts, reason, said, rank.step)


def stepping_since(view: RunView) -> float | None:
    """Return when the ranks of the newest attempt started if one of them has made a step: what ended before is over."""
    stepping = [rank for rank in view.alive if rank.progress is not None]
    newest = max((rank.restarts for rank in stepping), default=0)
    starts = (rank.started for rank in stepping if rank.restarts == newest)
    return min((start for start in starts if start is not None), default=None)


class Ends:
    """Remembers the ends of the newest attempt, until the run has outlived them or all who ended are back."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, float], RankEnd] = {}
        self._noted: set[tuple[int, float, str]] = set()
        self._past = float("-inf")
        self._attempts = Attempts()

    def look(self, view: RunView) -> None:
        """Note who has ended, and forget what the run has outlived."""
        seen = set()
        for rank in view.states:
            for end in ends_of(rank, view):
                seen.add((end.number, end.at, end.reason))
                if (end.number, end.at, end.reason) not in self._noted and end.at > self._past:
                    self._ends[end.number, end.began] = end
            if not rank.outcome or rank.outcome == "finished":
                self._withdraw(rank, view)
        self._noted = seen
        self._begin_attempt(view)
        self._forget(view)
        self._attempts.look(view, self._first(("died", "failed", "communication")))

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield the first end of each kind, how many came with it, and what the run came to on this node."""
        yield from self._first_ends(view)
        yield from _gone(view)
        yield from self._over(view)
        yield from self._attempts.samples(view)

    def told_seconds(self, view: RunView) -> float | None:
        """Return for how long ranks have been gone that were asked to end; None where none was."""
        told = self._of(("told",))
        return view.now - told[0].at if told else None

    def _withdraw(self, rank: Rank, view: RunView) -> None:
        """Forget the end of a process that is there after all, or that finished, as its exit code says later."""
        if (rank.hello.rank, rank.began) in self._ends and view.states[rank] != "failed":
            del self._ends[rank.hello.rank, rank.began]

    def _begin_attempt(self, view: RunView) -> None:
        """Forget the ends of an earlier attempt: somebody has been restarted since, and has made a step or ended."""
        ends = self._ends.values()
        newest = max(ends, key=lambda end: (end.restarts, -end.began), default=None)
        if newest is not None:
            earlier = [end.at for end in ends if end.restarts < newest.restarts and end.at < newest.began]
            if (stepping := stepping_since(view)) is not None:
                earlier += [end.at for end in ends if end.at < stepping]
            self._forget_until(max(earlier, default=self._past))

    def _forget(self, view: RunView) -> None:
        first = min((end.at for end in self._ends.values()), default=None)
        if first is None:
            return
        if view.without_step is not None:
            outlived = view.now - view.without_step - OUTLIVED_SECONDS
            if first < outlived:
                self._forget_until(max(end.at for end in self._ends.values() if end.at < outlived))
        alive = {rank.hello.rank for rank in view.alive}
        if view.now - first > BACK_SECONDS and all(end.number in alive for end in self._ends.values()):
            self._forget_until(view.now)

    def _forget_until(self, moment: float) -> None:
        self._past = moment
        self._ends = {key: end for key, end in self._ends.items() if end.at > moment}

    def _of(self, kinds: Sequence[str]) -> list[RankEnd]:
        return sorted((end for end in self._ends.values() if end.kind in kinds), key=lambda end: (end.at, end.number))

    def _first(self, kinds: Sequence[str]) -> RankEnd | None:
        """Return the first end of these kinds, unless somebody had been asked to end before."""
        found, told = self._of(kinds), self._of(("told",))
        if not found or (told and found[0].at > told[0].at + TOLD_SECONDS):
            return None
        return found[0]

    def _first_ends(self, view: RunView) -> Iterator[Sample]:
        for kind in catalog.END_KINDS:
            if not (ends := self._of((kind,))):
                continue
            first = ends[0]
            if kind != "told":
                yield Sample(catalog.RUN_LAST_WORDS, (view.run, *_last_words(first)), view.now - first.at)
            apart = TOGETHER_BY_COMMUNICATION_SECONDS if kind == "communication" else TOGETHER_SECONDS
            labels = (view.run, kind, first.reason, *seat(first.rank))
            yield Sample(catalog.RUN_FIRST_END, labels, view.now - first.at)
            together = sum(end.at <= first.at + apart for end in ends)
            yield Sample(catalog.RUN_ENDED_TOGETHER, (view.run, kind), together)
        restarted = [end.began - STARTING_SECONDS for end in self._ends.values() if end.restarts]
        starts = [min(restarted)] if restarted else []
        if (stepping := stepping_since(view)) is not None and view.now - stepping < SHOWN_ATTEMPT_SECONDS:
            starts.append(stepping)
        if starts:
            yield Sample(catalog.RUN_ENDED_ATTEMPT, (view.run,), view.now - max(starts))

    def _over(self, view: RunView) -> Iterator[Sample]:
        """Yield since when ranks have finished, or were asked to end and are gone; and how far short of the plan."""
        ended = [rank for rank in view.states if rank.ended is not None]
        finished = [rank.ended for rank in ended if rank.outcome == "finished" and rank.ended is not None]
        if finished and view.now - max(finished) > SURE_SECONDS:
            yield Sample(catalog.RUN_ENDED, (view.run, "finished"), view.now - max(finished))
        if view.alive:
            return
        told = self._of(("told",))
        if told and self._first(("died", "failed", "communication")) is None:
            yield Sample(catalog.RUN_ENDED, (view.run, told[0].reason), view.now - told[0].at)
        if len(finished) == len(view.states) and finished and view.now - max(finished) > SURE_SECONDS:
            plan = max((gauge(rank, catalog.TRAIN_TOTAL_STEPS.key) or 0.0 for rank in ended), default=0.0)
            step = max((rank.step for rank in ended if rank.step is not None), default=None)
            if plan and step is not None:
                short = plan - step if step < PLAN_SHARE * plan - 1 else 0.0
                yield Sample(catalog.RUN_STEPS_SHORT, (view.run,), short)


def _gone(view: RunView) -> Iterator[Sample]:
    """Yield which ranks ended without finishing and are not back, by reason: as RunHung writes them."""
    gone: dict[str, dict[int, float]] = {}
    for rank in view.states.keys() - set(view.alive):
        at, reason = rank.end_at(view.now) or (0.0, "finished")
        if reason != "finished":
            gone.setdefault(reason, {})[rank.hello.rank] = at
    for reason, ended in sorted(gone.items()):
        numbers = sorted(ended)
        how = f"ended ({reason})"
        if reason in catalog.TOLD_REASONS:
            how = "was asked to end" if len(numbers) == 1 else "were asked to end"
        ranks = f"Rank{'s' if len(numbers) > 1 else ''} {listed([*map(str, numbers)], CROWD)}"
        yield Sample(catalog.RUN_GONE, (view.run, ranks, how), view.now - min(ended.values()))


def _last_words(end: RankEnd) -> tuple[str, ...]:
    """Return what a page says of an end: the labels of catalog.RUN_LAST_WORDS but for the run."""
    step = "" if end.step is None else f"{end.step:,}"
    return str(end.number), end.reason, step, end.rank.written_coordinates, *end.said


class Attempts:
    """Counts the attempts in a row that failed without a step beyond the best so far."""

    def __init__(self) -> None:
        self._best = self._best_before = -1
        self._row = 0
        self._counted: RankEnd | None = None
        self._last = float("-inf")

    def look(self, view: RunView, first: RankEnd | None) -> None:
        """Note the best step, and the failure of an attempt by its first end."""
        self._best = max([self._best, *(rank.step for rank in view.states if rank.step is not None)])
        if self._best > self._best_before and first is None:
            self._row = 0
        if first is None:
            self._counted = None
        elif self._counted is None or (first.began > self._counted.at and first.restarts > self._counted.restarts):
            in_row = first.at - self._last < ROW_SECONDS
            self._row = 0 if self._best > self._best_before else (self._row if in_row else 0) + 1
            self._counted, self._last, self._best_before = first, first.at, self._best

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield how many attempts failed in a row."""
        if self._row and view.now - self._last < ROW_SECONDS:
            yield Sample(catalog.RUN_FRUITLESS_ATTEMPTS, (view.run,), self._row)
