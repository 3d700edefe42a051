"""What the person at the keyboard has asked for: an order, a filter, a place in the list."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tachograph.top.columns import Column
from tachograph.top.facts import Gpu, Rank

R = TypeVar("R", Rank, Gpu)

WORST = "worst"
PANES = ("ranks", "gpus")


@dataclass(frozen=True)
class Pane:
    """How one table is shown."""

    sort: str = WORST
    turned: bool = False
    offset: int = 0


@dataclass(frozen=True)
class Wishes:
    """How everything is shown."""

    ranks: Pane = field(default_factory=Pane)
    gpus: Pane = field(default_factory=Pane)
    focus: str = "ranks"
    filter: str = ""
    editing: bool = False
    paused: bool = False
    help: bool = False

    @property
    def pane(self) -> Pane:
        """The table that keys act on."""
        return self.ranks if self.focus == "ranks" else self.gpus

    def with_pane(self, change: Callable[[Pane], Pane]) -> Wishes:
        """Return the same with another look at the focused table."""
        if self.focus == "ranks":
            return replace(self, ranks=change(self.ranks))
        return replace(self, gpus=change(self.gpus))


def matching(rows: Sequence[R], text: str, uuids: Collection[str] = ()) -> list[R]:
    """Return the rows that hold every word of a filter, a number being a rank, and those with one of the uuids."""
    terms = text.casefold().split()
    return [row for row in rows if row.uuid in uuids or all(_holds(row, term) for term in terms)]


def _holds(row: Rank | Gpu, term: str) -> bool:
    ranks = (row.rank,) if isinstance(row, Rank) else row.ranks
    if term.isascii() and term.isdigit():
        return int(term) in ranks
    own: tuple[str, ...]
    if isinstance(row, Rank):
        own = (row.run, row.node, row.state, row.phase, row.uuid, row.cause, *row.marks, *row.alerts)
    else:
        own = (row.node, row.name, row.uuid, *row.throttling, *row.trouble, *row.alerts)
    return any(term in word.casefold() for word in own)


def in_order(rows: Sequence[R], columns: Sequence[Column[R]], pane: Pane) -> list[R]:
    """Return the rows in the order asked for; the worst first where none is."""
    column = next((column for column in columns if column.heading == pane.sort), None)
    if column is None:
        return list(rows)[::-1] if pane.turned else list(rows)
    return sorted(rows, key=column.key, reverse=column.descending != pane.turned)  # type: ignore[arg-type]  # comparable


def next_sort(headings: Sequence[str], now: str) -> str:
    """Return what the next press of the key sorts by."""
    names = [WORST, *headings]
    return names[(names.index(now) + 1) % len(names) if now in names else 0]
