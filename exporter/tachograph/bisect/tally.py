"""How often each value worked and failed, and when that is enough to believe it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

SURE = 0.0001
"""How often a value may be taken for the wrong one, where the share of wrong runs is given."""

ONCE_FLAKY = 4
"""By how many runs one outcome must lead once a value had both: with 10 % of wrong runs, wrong once in 6,500."""

MOST_RUNS = 15
"""Of one value: what has no verdict then fails now and then, which is: it does not work."""


@dataclass(frozen=True)
class Trial:
    """One run of the command: its value, whether it worked, how long it took, and where its output is.

    `status` is the exit status, negative for a signal, None if its time was up.
    """

    value: str
    works: bool
    status: int | None
    seconds: float
    log: str


class Tally:
    """Trials by value."""

    def __init__(self, trials: Iterable[Trial], lead: int) -> None:
        self._outcomes: dict[str, list[bool]] = defaultdict(list)
        for trial in trials:
            self._outcomes[trial.value].append(trial.works)
        self.flaky = sorted(value for value, found in self._outcomes.items() if len(set(found)) > 1)
        self.lead = max(lead, ONCE_FLAKY) if self.flaky else lead

    def works(self, value: str) -> bool | None:
        """Return the outcome that most runs had, None before the first, or where a further run must decide."""
        found = self._outcomes.get(value, [])
        ahead = 2 * sum(found) - len(found)
        if ahead == 0 and len(found) < MOST_RUNS:
            return None
        return ahead > 0

    def sure(self, value: str, lead: int | None = None) -> bool:
        """Return whether the runs of a value are enough."""
        found = self._outcomes.get(value, [])
        ahead = abs(2 * sum(found) - len(found))
        return ahead >= (self.lead if lead is None else lead) or len(found) >= MOST_RUNS

    def counts(self, value: str) -> tuple[int, int]:
        """Return how often a value worked, and how often it was run."""
        found = self._outcomes.get(value, [])
        return sum(found), len(found)


def lead_for(wrong: float) -> int:
    """Return by how many runs an outcome must lead where a share of all runs has the wrong one (Wald, 1945)."""
    return max(1, math.ceil(math.log((1 - SURE) / SURE) / math.log((1 - wrong) / wrong)))
