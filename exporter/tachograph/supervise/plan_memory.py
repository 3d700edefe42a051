"""The changes that the plans of a run have made to its training, by its journal: each attempt is told all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tachograph.supervise.journal import IGNORED, INTENT, Entry
from tachograph.supervise.policy import LOWER_RATE

LOWER = 0.5
"""The factor by which the learning rate and the clipping are lowered, each time."""


@dataclass(frozen=True)
class SkippedSteps:
    """A stretch of steps that are left out, the end not included, and how often some of them were added to it."""

    begin: int
    end: int
    times: int = 1


@dataclass
class PlanMemory:
    """The steps to leave out, the factor of rate and clipping, and why a loop is known to ignore its plan."""

    skipped: list[SkippedSteps] = field(default_factory=list)
    factor: float = 1.0
    ignored: str = ""

    @property
    def skip(self) -> list[tuple[int, int]]:
        """The steps to leave out, as ranges."""
        return [(one.begin, one.end) for one in self.skipped]

    @property
    def skips(self) -> int:
        """How often steps were added to those."""
        return sum(one.times for one in self.skipped)

    @property
    def most_often(self) -> SkippedSteps | None:
        """The stretch that was added to most often, the last one of several."""
        return max(reversed(self.skipped), key=lambda one: one.times, default=None)

    def take(self, entry: Entry) -> None:
        """Take one more entry into account."""
        if entry["kind"] == IGNORED:
            self.ignored = entry["why"]
        elif entry["kind"] == INTENT:
            if "skip" in entry:
                self.skipped = _with(self.skipped, SkippedSteps(*entry["skip"]))
            if entry["action"] == LOWER_RATE:
                self.factor *= LOWER


def _with(skipped: Iterable[SkippedSteps], new: SkippedSteps) -> list[SkippedSteps]:
    """Return stretches in their order, of which those that overlap or touch the new one are one with it."""
    apart = []
    for one in skipped:
        if one.begin <= new.end and new.begin <= one.end:
            new = SkippedSteps(min(one.begin, new.begin), max(one.end, new.end), one.times + new.times)
        else:
            apart.append(one)
    return sorted([*apart, new], key=lambda one: one.begin)
