"""How many new series one user may have Prometheus keep: those of a new rank, and one for each new value of a label.

A page never has more than `limits.series`, but ranks that come under new names could fill it with new series at every
scrape, and Prometheus keeps each of them for hours. Names that are known cost nothing, so a restart is free.
"""

from __future__ import annotations

from collections.abc import Callable

RANK_SERIES = 50
"""Series for which a new rank is charged; one shows 20 by default, and about 60 in all without labels of its own."""

FACT_SERIES = 4
"""Series that carry what a hello says of a rank, and are new when it says something else."""

NAMES_BURST = 12_000
"""New series of one user at once: three times `limits.series`, as many as 64 ranks with a hundred values each need when
the exporter has been restarted."""

NAMES_PER_HOUR = 40_000
"""New series of one user an hour: ten times `limits.series`, 60 runs of 8 ranks with 30 values each."""

MOST_RANKS = 1024
MOST_VALUES = 20_000
"""Names of one user that are known; the oldest are forgotten, and cost again."""


class NamedRank:
    """The values of labels that are known of one rank of a run, and the texts that become some."""

    __slots__ = ("_names", "_values")

    def __init__(self, names: NewNames) -> None:
        self._names = names
        self._values: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._values)

    def takes(self, family: str, value: str, series: int = 1) -> bool:
        """Return whether a value may be shown: it is known, or the user's share has room for its series."""
        if (family, value) in self._values:
            return True
        if not self._names.spend(series, are_too_many=len(self._values) >= MOST_VALUES):
            return False
        self._values.add((family, value))
        return True


class NewNames:
    """The names that one user's ranks have had, and how many new series are left; `exceeded` is called if too few."""

    __slots__ = ("_clock", "_exceeded", "_left", "_ranks", "_refilled", "refused")

    def __init__(self, clock: Callable[[], float], exceeded: Callable[[], None] = lambda: None) -> None:
        self._clock, self._exceeded = clock, exceeded
        self._left = float(NAMES_BURST)
        self._refilled = clock()
        self._ranks: dict[tuple[str, int], NamedRank] = {}
        self.refused = 0
        """Names refused so far."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is lost if this is forgotten."""
        self._refill()
        return self._left >= NAMES_BURST

    def rank(self, run: str, rank: int, facts: str) -> NamedRank | None:
        """Return the values of a rank with these facts; None if the user's share has no room for its series."""
        named = self._ranks.pop((run, rank), None)
        if named is None and self.spend(RANK_SERIES):
            named = NamedRank(self)
            self._make_room()
        if named is None:
            return None
        self._ranks[run, rank] = named  # the last to be forgotten
        return named if named.takes("", facts, FACT_SERIES) else None

    def spend(self, series: int, *, are_too_many: bool = False) -> bool:
        """Take new series from the share; return whether it had as many."""
        self._refill()
        if are_too_many or self._left < series:
            self.refused += 1
            self._exceeded()
            return False
        self._left -= series
        return True

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(float(NAMES_BURST), self._left + (now - self._refilled) * NAMES_PER_HOUR / 3600)
        self._refilled = now

    def _make_room(self) -> None:
        held = sum(map(len, self._ranks.values()))
        while self._ranks and (len(self._ranks) >= MOST_RANKS or held >= MOST_VALUES):
            held -= len(self._ranks.pop(next(iter(self._ranks))))
