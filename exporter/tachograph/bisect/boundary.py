"""Bisection of a number: the largest value that works beside the smallest that fails, or the other way round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tachograph.bisect.tally import Tally, Trial


@dataclass(frozen=True)
class Boundary:
    """Two neighbours, of which one works and the other fails; `wrong` says which end was not as it was given."""

    works: int | None
    fails: int | None
    wrong: str = ""


@dataclass(frozen=True)
class Candidates:
    """The values between a good and a bad one, `step` apart, both ends included; the good one may be the larger."""

    good: int
    bad: int
    step: int = 1

    def values(self) -> list[int]:
        """Return the values from good to bad: multiples of the step, and the ends as they are."""
        low, high = sorted((self.good, self.bad))
        first = low // self.step * self.step + self.step
        between = list(range(first, high, self.step))
        return [self.good, *(between if self.good < self.bad else between[::-1]), self.bad]


def next_value(within: Candidates, trials: Sequence[Trial], lead: int) -> int | Boundary:
    """Return the value to run next, or the boundary if it is known.

    Each value on the way is run once; both neighbours at the end until one outcome leads by `lead` runs. Where these
    deny what was found on the way, the search goes on from there.
    """
    values, tally = within.values(), Tally(trials, lead)
    for end, expected in ((values[0], True), (values[-1], False)):
        works = tally.works(str(end))
        if works is None or (works is not expected and not tally.sure(str(end))):
            return end
        if works is not expected:
            return Boundary(None, end, "good") if expected else Boundary(end, None, "bad")
    low, high = 0, len(values) - 1
    while high - low > 1:
        middle = (low + high) // 2
        works = tally.works(str(values[middle]))
        if works is None:
            return values[middle]
        low, high = (middle, high) if works else (low, middle)
    for each in (values[high], values[low]):
        if not tally.sure(str(each)):
            return each
    return Boundary(values[low], values[high])
