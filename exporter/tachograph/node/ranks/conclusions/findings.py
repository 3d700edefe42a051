"""The findings about the part of a run that is on this node, for whoever looks at it: each once, without words.

Whether somebody is paged is for the rules, which see the whole run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from tachograph.catalog import index as catalog
from tachograph.catalog.run import TOLD_REASONS
from tachograph.diagnosis import SPIKE_STEPS
from tachograph.node.ranks.conclusions.lateness import Lateness, lateness
from tachograph.node.ranks.conclusions.loss import first_to_lose, last_is_lost, spike_began
from tachograph.node.ranks.conclusions.memory import fullest
from tachograph.node.ranks.conclusions.run import RunConclusions
from tachograph.node.ranks.conclusions.since import DATA, waits_for_data
from tachograph.node.ranks.conclusions.standing import RunStanding, standing
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.ranks.rank import Rank

DIED, FAILED, TOLD, FROZEN = "died", "failed", "asked to end", "frozen"
NOT_FINITE, SPIKED = "loss not finite", "loss spiked"
HUNG, OVERDUE = "hung", "overdue"
STRAGGLER, WAITS_FOR_DATA, FULL_MEMORY = "straggler", "waits for data", "full memory"


class NodeFinding(NamedTuple):
    """A finding: its kind, the numbers of the ranks that it is about, and for how many seconds it has been so.

    Of those that ended or are frozen, the first rank is the one that has been so for longest. A loss has been lost or
    has spiked since step `since_step`, on rank `first` before others where that is known. `share` is that of a GPU's
    memory.
    """

    kind: str
    ranks: tuple[int, ...] = ()
    seconds: float | None = None
    since_step: float | None = None
    first: int | None = None
    share: float | None = None


class RunPart:
    """The part of a run that is on this node at one moment, with what is concluded of it for whoever looks."""

    def __init__(self, view: RunView, conclusions: RunConclusions) -> None:
        self.view, self.saves, self.since = view, conclusions.saves, conclusions.since
        self.without_step = conclusions.without_step(view)

    @cached_property
    def standing(self) -> RunStanding:
        """Its state, and who holds it up."""
        return standing(self.view, self.without_step)

    @cached_property
    def lateness(self) -> Mapping[Rank, Lateness]:
        """How late each rank is."""
        return lateness(self.view)

    @cached_property
    def lost(self) -> Sequence[Rank]:
        """The ranks whose last loss was NaN or infinite, also those that have ended."""
        return [rank for rank in self.view.states if last_is_lost(rank)]

    @cached_property
    def lost_first(self) -> Sequence[Rank]:
        """Those that may have lost it before all others."""
        return first_to_lose(self.lost)[0]

    @cached_property
    def spiked_step(self) -> float | None:
        """The step at which the loss began to spike, once that does not recover."""
        return spike_began(self.view, SPIKE_STEPS)

    def marks(self, rank: Rank) -> tuple[str, ...]:
        """Return what is wrong with a rank, in the words of `tachograph top`."""
        now, late = self.standing, self.lateness[rank]
        is_marked = rank is now.culprit and now.marked != ""
        found = {
            now.marked: is_marked,
            "NaN loss": not rank.outcome and last_is_lost(rank),
            "stalled": now.is_stalled and rank in self.view.running and not is_marked,
            "straggler": late.is_straggler,
            "late": late.is_late,
        }
        return tuple(mark for mark, holds in found.items() if holds)

    def seconds_in_state(self, rank: Rank) -> float:
        """Return for how long a rank has been dead, failed, finished or frozen."""
        return self.view.now - (rank.heard if rank.ended is None else rank.ended)

    def findings(self, sizes: Mapping[str, float]) -> Iterator[NodeFinding]:
        """Yield what is wrong, given the bytes of each GPU's memory by uuid."""
        yield from self._not_running()
        yield from self._loss()
        if self.standing.is_stalled:
            yield NodeFinding(HUNG if self.standing.is_hung else OVERDUE, seconds=self.standing.seconds)
        else:
            for rank, late in self.lateness.items():
                if late.is_straggler:
                    seconds = self.since.seconds(rank, self.view.now)
                    yield NodeFinding(STRAGGLER, (rank.hello.rank,), seconds)
            if waits_for_data(self.view):
                yield NodeFinding(WAITS_FOR_DATA, seconds=self.since.seconds(DATA, self.view.now))
        if (full := fullest(self.view, sizes)) is not None:
            rank, share = full
            yield NodeFinding(FULL_MEMORY, (rank.hello.rank,), share=share)

    def _not_running(self) -> Iterator[NodeFinding]:
        """Yield who died, failed, was asked to end or says nothing; of those that failed whoever did so by itself."""
        states = self.view.states
        failed = [rank for rank, state in states.items() if state == "failed"]
        own = [rank for rank in failed if rank.end_reason not in TOLD_REASONS]
        yield from self._since(DIED, (rank for rank, state in states.items() if state == "dead"))
        yield from self._since(FAILED if own else TOLD, own or failed)
        yield from self._since(FROZEN, (rank for rank, state in states.items() if state == "frozen"))

    def _since(self, kind: str, ranks: Iterable[Rank]) -> Iterator[NodeFinding]:
        """Yield that ranks have been in a state, if any are: whoever has been so for longest comes first."""
        if found := sorted(ranks, key=lambda rank: -self.seconds_in_state(rank)):
            yield NodeFinding(kind, _numbers(found), self.seconds_in_state(found[0]))

    def _loss(self) -> Iterator[NodeFinding]:
        """Yield that the loss is not finite, of ranks that run if there are any, and that it does not recover."""
        lost = [rank for rank in self.lost if self.view.states[rank] == "running"] or self.lost
        if lost:
            steps = {rank: rank.series.gauges.get(catalog.TRAIN_NONFINITE_STEP.key, {}).get("loss") for rank in lost}
            known = {rank: step for rank, step in steps.items() if step is not None}
            seconds = since = who = None
            if known:
                first = min(known, key=known.__getitem__)
                since = known[first]
                is_alone = 2 * sum(rank in self.lost_first for rank in known) <= len(lost)
                who = first.hello.rank if is_alone else None
                if self.view.step_seconds is not None and first.step is not None:
                    seconds = max(first.step - since, 0.0) * self.view.step_seconds
            yield NodeFinding(NOT_FINITE, _numbers(lost), seconds, since, who)
        if self.spiked_step is not None:
            yield NodeFinding(SPIKED, since_step=self.spiked_step)


def _numbers(ranks: Iterable[Rank]) -> tuple[int, ...]:
    return tuple(rank.hello.rank for rank in ranks)
