"""The last checkpoints of a run: which of them are durable, which are suspect, and the newest that can be restored.

A checkpoint is durable once each rank that took part in the one before it has reported it, too: a sharded one is whole
only then. One is suspect if it was saved at or after the step at which the loss spiked or was not finite any more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.loss import in_trouble_since
from tachograph.node.ranks.conclusions.view import RunView, gauge
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import Sample

KEPT = 8
"""Checkpoints that are remembered: a fault may be noticed after some of them were saved."""

LONGEST_LAG_SECONDS = 21_600.0
MOST_MOMENTS, LEAST_GAP = 512, 0.02
"""Steps of which it is remembered when the run came to them; beyond that, how far two are apart, as a share of how long
ago they are."""


class StepMoments:
    """When a run came to its steps, by the monotonic clock: to a second, or to a twentieth of how long ago it is."""

    def __init__(self) -> None:
        self._moments: list[tuple[float, float]] = []

    def note(self, step: float, now: float) -> None:
        """Note the furthest step now; what came after it before the run went back is forgotten."""
        if self._moments and step < self._moments[-1][0]:
            self._moments = [one for one in self._moments if one[0] < step]
        if not self._moments or step > self._moments[-1][0]:
            self._moments.append((step, now))
        if len(self._moments) > MOST_MOMENTS:
            self._thin_out(now)

    def _thin_out(self, now: float) -> None:
        kept: list[tuple[float, float]] = []
        for moment in reversed(self._moments):
            ago = now - moment[1]
            if ago <= LONGEST_LAG_SECONDS and (not kept or kept[-1][1] - moment[1] >= LEAST_GAP * ago):
                kept.append(moment)
        self._moments = kept[::-1]

    def of(self, step: float) -> float | None:
        """Return when the run was first seen at a step or beyond; None if that was before all that is known, or never.

        A loop may number what it saves by the steps that it has made, which is one more than the last one's number.
        """
        for number, (reached, at) in enumerate(self._moments):
            if reached >= step:
                return at if number or reached == step else None
        last = self._moments[-1] if self._moments else (-math.inf, 0.0)
        return last[1] if step == last[0] + 1 else None


@dataclass
class RunSave:
    """A checkpoint of a step: when a rank last reported it, by the monotonic clock and by that of the day, and where.

    `owner` is the user of the rank that told the path, `lag` for how many seconds the run had been at the step or
    beyond when it became durable, None if that is not known.
    """

    step: float
    at: float = 0.0
    time: float = 0.0
    path: str = ""
    owner: int = -1
    ranks: set[int] = field(default_factory=set)
    is_durable: bool = False
    is_suspect: bool = False
    lag: float | None = None


class RunSaves:
    """Remembers the last checkpoints of the ranks here: the next attempt has none until its first."""

    def __init__(self) -> None:
        self.saves: list[RunSave] = []
        """By step, which is by time: one that is saved again after a step back takes those after it away."""
        self._reported: Mapping[Rank, tuple[float, float | None]] = {}
        self._unnumbered = 0.0
        self._moments = StepMoments()

    @property
    def restorable(self) -> RunSave | None:
        """The newest that is durable and not suspect."""
        return next((save for save in reversed(self.saves) if save.is_durable and not save.is_suspect), None)

    def look(self, view: RunView) -> None:
        """Note what ranks have reported since the last look, and since which step the loss is in trouble."""
        if view.train_step is not None:
            self._moments.note(view.train_step, view.now)
        before, self._reported = self._reported, {rank: said for rank in view.states if (said := _said(rank))}
        new = [rank for rank, said in self._reported.items() if before.get(rank) != said]
        for rank in sorted(new, key=lambda rank: rank.saved_at or 0.0):
            self._take(rank, *self._reported[rank])
        if new:
            self._conclude({rank.hello.rank for rank in view.states})
        if self.saves and (since := in_trouble_since(view)) is not None:
            for save in self.saves:
                save.is_suspect |= save.step >= since

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield when the newest that can be restored was saved, and its step; without steps, when any was."""
        last = self.restorable
        if time := self._unnumbered if last is None else last.time:
            yield Sample(catalog.RUN_CHECKPOINT_TIMESTAMP, (view.run,), time)
        if last is not None:
            yield Sample(catalog.RUN_CHECKPOINT_STEP, (view.run,), last.step)
            if last.lag is not None:
                yield Sample(catalog.RUN_CHECKPOINT_LAG, (view.run,), last.lag)

    def _take(self, rank: Rank, time: float, step: float | None) -> None:
        if step is None:
            self._unnumbered = time
            return
        save = next((one for one in self.saves if one.step == step), None)
        if save is None or rank.hello.rank in save.ranks or save.at < rank.began:
            save = RunSave(step)
            self.saves = [*(one for one in self.saves if one.step < step), save]
            if len(self.saves) > KEPT:  # the suspect go first: a loss may be in trouble for many saves
                self.saves.remove(next((one for one in self.saves[:-1] if one.is_suspect), self.saves[0]))
        save.ranks.add(rank.hello.rank)
        save.at, save.time = max(save.at, rank.saved_at or 0.0), max(save.time, time)
        if rank.checkpoint_path:
            save.path, save.owner = rank.checkpoint_path, rank.peer.uid

    def _conclude(self, present: set[int]) -> None:
        """Conclude which are durable; a rank that is not there any more is not waited for."""
        expected: set[int] = set()
        for save in self.saves:
            if not save.is_durable and expected & present <= save.ranks:
                save.is_durable = True
                moment = self._moments.of(save.step)
                save.lag = None if moment is None else max(save.at - moment, 0.0)
            expected = save.ranks


def _said(rank: Rank) -> tuple[float, float | None] | None:
    """Return time and step of the last save that a rank reported."""
    time = gauge(rank, catalog.TRAIN_CHECKPOINT_TIMESTAMP.key)
    if time is None or rank.saved_at is None:
        return None
    return time, gauge(rank, catalog.TRAIN_CHECKPOINT_STEP.key)
