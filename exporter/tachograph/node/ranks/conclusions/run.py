"""All that a node concludes about its part of one run: what it remembers is looked at once a second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tachograph.node.ranks.conclusions.pace import Pace
from tachograph.node.ranks.conclusions.presence import Presence
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.samples import Sample


class Subject(Protocol):
    """One subject: what happened is noted as it is seen, what is concluded from it is shown at a scrape."""

    def look(self, view: RunView) -> None:
        """Note what is to be remembered of this moment: each second, and before each scrape."""
        ...

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield what is concluded, as series whose number does not grow with the ranks."""
        ...


class RunConclusions:
    """The subjects of one run."""

    def __init__(self) -> None:
        self._subjects: tuple[Subject, ...] = (Presence(), Pace())

    def look(self, view: RunView) -> None:
        """Note what is to be remembered of this moment."""
        for subject in self._subjects:
            subject.look(view)

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Look, and yield what is concluded."""
        self.look(view)
        for subject in self._subjects:
            yield from subject.samples(view)
