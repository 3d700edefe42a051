"""The changes that the plans of a run have made to its training, by its journal: each attempt is told all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tachograph.supervise.journal import IGNORED, INTENT, Entry
from tachograph.supervise.policy import LOWER_RATE

LOWER = 0.5
"""The factor by which the learning rate and the clipping are lowered, each time."""


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in their order, those that overlap or touch as one."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


@dataclass
class PlanMemory:
    """The steps to leave out, as ranges, the factor of rate and clipping, and why a loop is known to ignore its plan.

    `skips` is how often steps were added to those.
    """

    skip: list[tuple[int, int]] = field(default_factory=list)
    skips: int = 0
    factor: float = 1.0
    ignored: str = ""

    def take(self, entry: Entry) -> None:
        """Take one more entry into account."""
        if entry["kind"] == IGNORED:
            self.ignored = entry["why"]
        elif entry["kind"] == INTENT:
            if "skip" in entry:
                self.skip = _merged([*self.skip, tuple(entry["skip"])])
                self.skips += 1
            if entry["action"] == LOWER_RATE:
                self.factor *= LOWER
