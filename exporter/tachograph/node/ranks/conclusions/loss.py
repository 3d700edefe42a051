"""Where the loss of a run is: its level, its spikes, and the first rank that lost it to NaN or infinity."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median, median_low

from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.view import RunView, gauge, seat
from tachograph.node.ranks.rank import Rank
from tachograph.node.ranks.unsaid import HEALED_SECONDS
from tachograph.node.samples import Sample

ENDED_SECONDS = 600.0
"""How long a lost loss outlives the rank that it ended, unless that comes back: its page silences the failure's."""


class RunLoss:
    """Remembers when spikes began on most of the ranks, and since when the loss is not finite."""

    def __init__(self) -> None:
        self._spikes: float | None = None
        self._spiked: float | None = None
        self._lost: float | None = None

    def look(self, view: RunView) -> None:
        """Note when half of the ranks that log a loss have counted one more spike, and when the first loss was lost."""
        spikes = [rank.series.total(catalog.TRAIN_LOSS_SPIKES.key) or 0.0 for rank in _logging(view.alive)]
        if spikes:
            count = median_low(spikes)
            if self._spikes is not None and count > self._spikes:
                self._spiked = view.now
            self._spikes = count
        if not any(_lost(rank, view) for rank in view.states):
            self._lost = None
        elif self._lost is None:
            self._lost = view.now

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield the loss and its spike, and the rest only while there is something to say."""
        logging = _logging(view.alive)
        if finite := [loss for rank in logging if math.isfinite(loss := _loss(rank))]:
            yield Sample(catalog.RUN_LOSS, (view.run,), median(finite))
        if logging:
            steps = median(gauge(rank, catalog.TRAIN_LOSS_SPIKE_STEPS.key) or 0.0 for rank in logging)
            yield Sample(catalog.RUN_LOSS_SPIKE_STEPS, (view.run,), steps)
        if self._spiked is not None:
            yield Sample(catalog.RUN_LOSS_SPIKED, (view.run,), view.now - self._spiked)
        yield from self._nonfinite(view)
        yield from _validation(view)

    def _nonfinite(self, view: RunView) -> Iterator[Sample]:
        """Yield the first step at which a rank lost its loss, with that rank, and how many did."""
        lost = [rank for rank in view.states if _lost(rank, view)]
        if not lost or self._lost is None:
            return
        first, step = first_to_lose(lost)
        if step is not None:
            yield Sample(catalog.RUN_LOSS_NONFINITE_STEP, (view.run, *seat(first[0])), step)
        now = [rank for rank in view.alive if not math.isfinite(_loss(rank))]
        for when, ranks in (("first", first), ("lately", lost), ("now", now)):
            yield Sample(catalog.RUN_LOSS_NONFINITE_RANKS, (view.run, when), len(ranks))
        yield Sample(catalog.RUN_LOSS_NONFINITE_SECONDS, (view.run,), view.now - self._lost)


def _loss(rank: Rank) -> float:
    """Return the last loss of a rank; 0 where it logs none."""
    loss = rank.series.gauge(catalog.TRAIN_LOSS.key)
    return 0.0 if loss is None else loss


def _logging(ranks: Sequence[Rank]) -> list[Rank]:
    return [rank for rank in ranks if rank.series.gauge(catalog.TRAIN_LOSS.key) is not None]


def _lost(rank: Rank, view: RunView) -> bool:
    """Return whether the loss of a rank is not finite, or was so a moment ago, also where it ended by that."""
    if not rank.outcome and not math.isfinite(_loss(rank)):
        return True
    last = rank.nonfinite_at
    if last is None or rank.series.gauge(catalog.TRAIN_LOSS_NONFINITE_TIMESTAMP.key) is None:
        return False
    if rank.outcome:
        return rank.ended_at - last < HEALED_SECONDS and view.now - rank.ended_at < ENDED_SECONDS
    return view.now - last < HEALED_SECONDS


def last_is_lost(rank: Rank) -> bool:
    """Return whether the last loss of a rank was NaN or infinite, whether or not it has ended since."""
    return not math.isfinite(_loss(rank))


def first_to_lose(lost: Sequence[Rank]) -> tuple[list[Rank], float | None]:
    """Return the ranks that may have lost their loss first, that of the earliest step at the head, and that step.

    A rank that does not say when it was lost it between two frames. None where no rank's step is known.
    """
    found = {rank: rank.series.gauges.get(catalog.TRAIN_NONFINITE_STEP.key, {}).get("loss") for rank in lost}
    steps = {rank: step for rank, step in found.items() if step is not None}
    if not steps:
        return [], None
    earliest = min(steps.values())
    first = [rank for rank, step in steps.items() if step == earliest or rank.unsaid.loss_kept_until < earliest]
    return sorted(first, key=lambda rank: steps[rank]), earliest


def spike_began(view: RunView, least: int = 1) -> float | None:
    """Return the step at which the loss of half of the ranks began to spike, for so many steps at least."""
    logging = _logging(view.alive)
    spikes = {rank: gauge(rank, catalog.TRAIN_LOSS_SPIKE_STEPS.key) or 0.0 for rank in logging}
    began = [rank.step - steps for rank, steps in spikes.items() if steps >= least and rank.step is not None]
    return max(median_low(began), 0.0) if began and 2 * len(began) >= len(logging) else None


def in_trouble_since(view: RunView) -> float | None:
    """Return the step since which the loss spikes or is not finite; None while all is well, as far as is known."""
    lost = [rank for rank in view.states if _lost(rank, view)]
    steps = (spike_began(view), first_to_lose(lost)[1])
    return min((step for step in steps if step is not None), default=None)


def _validation(view: RunView) -> Iterator[Sample]:
    """Yield the validation loss, and its spike where half of the ranks that log one see it."""
    losses = [loss for rank in view.alive if (loss := rank.series.gauge(catalog.TRAIN_VAL_LOSS.key)) is not None]
    if not losses:
        return
    spikes = view.gauges(catalog.TRAIN_VAL_LOSS_SPIKE.key)
    finite = [loss for loss in losses if math.isfinite(loss)]
    yield Sample(catalog.RUN_VAL_LOSS, (view.run,), median(finite) if 2 * len(finite) > len(losses) else math.nan)
    if 2 * len(spikes) >= len(losses):
        yield Sample(catalog.RUN_VAL_LOSS_SPIKE, (view.run,), max(spikes))
