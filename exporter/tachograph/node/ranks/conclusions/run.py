"""All that a node concludes about its part of one run: what it remembers is looked at once a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from tachograph.node.ranks.conclusions.batches import RunBatches
from tachograph.node.ranks.conclusions.checkpoints import RunCheckpoints
from tachograph.node.ranks.conclusions.collectives import RunCollectives
from tachograph.node.ranks.conclusions.data_wait import DataWait
from tachograph.node.ranks.conclusions.ends import Ends
from tachograph.node.ranks.conclusions.frozen import frozen
from tachograph.node.ranks.conclusions.gradients import Gradients
from tachograph.node.ranks.conclusions.hangs import Hang, TimeWithoutStep
from tachograph.node.ranks.conclusions.invariants import RunInvariants
from tachograph.node.ranks.conclusions.learning_rate import LearningRate
from tachograph.node.ranks.conclusions.loss import RunLoss
from tachograph.node.ranks.conclusions.makeup import Makeup
from tachograph.node.ranks.conclusions.memory import Memory
from tachograph.node.ranks.conclusions.pace import RunPace
from tachograph.node.ranks.conclusions.presence import presence
from tachograph.node.ranks.conclusions.saves import RunSaves
from tachograph.node.ranks.conclusions.settings import settings
from tachograph.node.ranks.conclusions.since import Since
from tachograph.node.ranks.conclusions.speed import Speed
from tachograph.node.ranks.conclusions.steps import steps
from tachograph.node.ranks.conclusions.stragglers import Stragglers
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.ranks.conclusions.work import RunWork
from tachograph.node.samples import Sample

PRESENT: tuple[Callable[[RunView], Iterator[Sample]], ...] = (presence, steps, settings, frozen)
"""What follows from the present moment alone."""


class Subject(Protocol):
    """A subject with a memory: what happened is noted as it is seen, what is concluded from it is shown at a scrape."""

    def look(self, view: RunView) -> None:
        """Note what is to be remembered of this moment: each second, and before each scrape."""
        ...

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield what is concluded, as series whose number does not grow with the ranks."""
        ...


class RunConclusions:
    """The conclusions about one run, from the moment and from what is remembered."""

    def __init__(self) -> None:
        makeup = Makeup()
        self.since = Since()
        self.saves = RunSaves()
        """As of the last look."""
        self._hang, self._ends = Hang(), Ends()
        self._subjects: tuple[Subject, ...] = (
            RunPace(),
            self._hang,
            self.saves,
            makeup,
            RunWork(),
            Speed(makeup),
            DataWait(),
            self._ends,
            RunLoss(),
            Gradients(),
            LearningRate(),
            RunInvariants(),
            RunBatches(),
            Stragglers(),
            RunCollectives(),
            Memory(),
            RunCheckpoints(),
            self.since,
        )

    def look(self, view: RunView) -> None:
        """Note what is to be remembered of this moment."""
        for subject in self._subjects:
            subject.look(view)

    def without_step(self, view: RunView) -> TimeWithoutStep:
        """Return what this node makes of the time that the run has made no step."""
        return self._hang.without_step(view, self._ends.told_seconds(view))

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Look, and yield what is concluded."""
        self.look(view)
        for present in PRESENT:
            yield from present(view)
        for subject in self._subjects:
            yield from subject.samples(view)
