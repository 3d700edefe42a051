"""How many batches the ranks of a run on this node draw for a step, over the last hundred steps or more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.view import RunView, seat
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import Sample

MARK_STEPS, MARK_SECONDS, MARKS = 25, 30.0, 5
"""A rank's counts are marked every so many steps, and not sooner than in so many seconds. The present is compared with
the oldest of so many marks: 100 steps ago, or two minutes."""


def tolerance(batches_per_step: float) -> float:
    """Return how far ranks may be apart over those steps: the batches of a step at either end, and three more."""
    return (3 + 2 * batches_per_step) / (MARK_STEPS * (MARKS - 1))


@dataclass
class Drawn:
    """The counts of one rank: steps and batches at the marks, and now."""

    steps: float = -1.0
    batches: float = 0.0
    marked: float = 0.0
    marks: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MARKS))

    def take(self, steps: float, batches: float, now: float) -> None:
        """Take the present counts; those of a new process begin again."""
        if steps < self.steps or batches < self.batches:
            self.marks.clear()
        self.steps, self.batches = steps, batches
        if not self.marks or (steps >= self.marks[-1][0] + MARK_STEPS and now - self.marked >= MARK_SECONDS):
            self.marks.append((steps, batches))
            self.marked = now

    def per_step(self, mark: int) -> float | None:
        """Return batches per step since a mark; None where those are too few steps to say."""
        if len(self.marks) < MARKS or (steps := self.steps - self.marks[mark][0]) <= 0:
            return None
        return (self.batches - self.marks[mark][1]) / steps


class RunBatches:
    """Remembers the counts of each rank that draws batches; with tensor parallelism some draw none."""

    def __init__(self) -> None:
        self._drawn: dict[Rank, Drawn] = {}

    def look(self, view: RunView) -> None:
        """Take the present counts."""
        drawn: dict[Rank, Drawn] = {}
        for rank in view.running:
            steps = rank.series.total(catalog.TRAIN_STEPS.key)
            batches = rank.series.total(catalog.TRAIN_BATCHES.key)
            if steps is not None and batches:
                drawn[rank] = self._drawn.get(rank) or Drawn()
                drawn[rank].take(steps, batches, view.now)
        self._drawn = drawn

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield the median rank's, and the least and the greatest where they are too far from it.

        Nothing while the median itself changes, as it does where a run changes on purpose what it accumulates.
        """
        per_step = {rank: each for rank, drawn in self._drawn.items() if (each := drawn.per_step(0)) is not None}
        if not per_step:
            return
        usual = median(per_step.values())
        lately = [each for drawn in self._drawn.values() if (each := drawn.per_step(MARKS // 2)) is not None]
        if not lately or abs(median(lately) - usual) > 2 * tolerance(usual):
            return
        ordered = sorted(per_step, key=lambda rank: per_step[rank])
        named = {"most": min(ordered, key=lambda rank: abs(per_step[rank] - usual))}
        if per_step[ordered[-1]] - per_step[ordered[0]] > tolerance(usual):
            named = (named if len(ordered) > 2 else {}) | {"least": ordered[0], "greatest": ordered[-1]}
        for share, rank in named.items():
            yield Sample(catalog.RUN_BATCHES_PER_STEP, (view.run, share, *seat(rank)), per_step[rank])
