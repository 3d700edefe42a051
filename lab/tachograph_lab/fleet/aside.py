"""Ranks that take part in no collective for a while, such as a standing evaluator: the others go on without them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tachograph_lab.fleet.pace import Seconds
from tachograph_lab.scenario.faults import PauseOnce


@dataclass(frozen=True)
class RankAside:
    """A rank that has stepped aside at the end of a step: what it has reported since then."""

    row: int
    """The part of a cycle that it spends the time in."""
    until: float
    cycles: int
    """The cycles in which it took part."""
    ended: float
    """When its last step ended."""


class RanksAside:
    """The ranks aside in the present cycle: `now` has all of them, `before` those that were aside when it began."""

    def __init__(self, pauses: Iterable[PauseOnce], rows: dict[str, int]) -> None:
        self._pauses = list(pauses)
        self._rows = rows
        self.now: dict[int, RankAside] = {}
        self.before: frozenset[int] = frozenset()

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks that are aside."""
        return list(self.now)

    def plan(self, at: float, cycles: int, spent: Seconds) -> None:
        """Plan the cycle that begins at `at`: a rank ends its step, if it still has to, and then does nothing else."""
        kept = {rank: aside for rank, aside in self.now.items() if at < aside.until}
        self.before = frozenset(kept)
        self.now = kept
        for pause in [each for each in self._pauses if each.at <= at < each.until]:
            for rank in pause.ranks:
                if rank not in kept:
                    kept[rank] = RankAside(self._rows[pause.phase], pause.until, cycles, at + float(spent[0, rank]))
        for rank, aside in kept.items():
            ending = 0.0 if rank in self.before else float(spent[0, rank])
            spent[:, rank] = 0.0
            spent[0, rank] = ending
            spent[aside.row, rank] = max(0.0, aside.until - at - ending)

    def cut(self, seconds: float, spent: Seconds, rest: int) -> None:
        """Cut what these ranks have spent to a cycle of this length; what their pause left over is in part `rest`."""
        for rank, aside in self.now.items():
            spent[aside.row, rank] = min(float(spent[aside.row, rank]), max(0.0, seconds - float(spent[0, rank])))
            spent[rest, rank] += max(0.0, seconds - float(spent[:, rank].sum()))
