"""How long a run may go without a step, and which rank holds it up: the order of reasoning of the alert rules."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import TypeVar

from tachograph import diagnosis

K = TypeVar("K", bound=Hashable)


def is_pause(phases: Collection[str | None]) -> bool:
    """Return whether ranks without a step may be pausing: one is outside a step's phases, or none waits."""
    return (
        not diagnosis.QUIET_PHASES.isdisjoint(phases)
        or "other" in phases
        or diagnosis.WAITING_PHASES.isdisjoint(phases)
    )


def collectives_behind(entered: Mapping[K, Mapping[str, float]]) -> dict[K, float]:
    """Return how many collectives each rank is behind, given the last one it entered by process group."""
    furthest: dict[str, float] = {}
    for groups in entered.values():
        for group, number in groups.items():
            furthest[group] = max(number, furthest.get(group, number))
    gaps = {
        rank: max((furthest[group] - number for group, number in groups.items()), default=0.0)
        for rank, groups in entered.items()
    }
    return {rank: gap for rank, gap in gaps.items() if gap > 0}


def stopped_first(entered: Mapping[K, Mapping[str, float]]) -> dict[K, float]:
    """Return how many collectives those are behind who stopped first: rank:stopped_first:behind.

    All ranks enter their collectives in the order of one program. So whoever is behind in one group and ahead of
    somebody in another waits itself, for that one. If everybody behind is ahead somewhere, a rank has left out a
    collective and gone on: those behind in a group in which most are not, else all.
    """
    behind = collectives_behind(entered)
    numbers: dict[str, list[float]] = {}
    for groups in entered.values():
        for group, number in groups.items():
            numbers.setdefault(group, []).append(number)
    last = {group: min(each) for group, each in numbers.items()}
    most_came = {group for group, each in numbers.items() if 2 * sum(number < max(each) for number in each) < len(each)}
    first = {
        rank: gap
        for rank, gap in behind.items()
        if all(number == last[group] for group, number in entered[rank].items())
    }
    odd = {
        rank: gap
        for rank, gap in behind.items()
        if any(number < max(numbers[group]) for group, number in entered[rank].items() if group in most_came)
    }
    return first or odd or behind


def hang_suspects(entered: Mapping[K, Mapping[str, float]], phases: Mapping[K, str | None]) -> dict[K, float]:
    """Return who may hold a hung run up, with how many collectives they are behind: as rank:hang_suspect:behind.

    Of those not waiting, who stopped first, else who is behind; else who stopped first; else those not waiting while
    others are.
    """
    behind, first = collectives_behind(entered), stopped_first(entered)
    elsewhere = [rank for rank, phase in phases.items() if phase and phase not in diagnosis.WAITING_PHASES]
    alone = elsewhere if len(elsewhere) < len(phases) else []
    return (
        {rank: first[rank] for rank in elsewhere if rank in first}
        or {rank: behind[rank] for rank in elsewhere if rank in behind}
        or first
        or dict.fromkeys(alone, 0.0)
    )


def is_crowd(suspects: int, ranks: int) -> bool:
    """Return whether so many suspects of so many ranks are too many to blame."""
    return suspects > diagnosis.CROWD or 2 * suspects > max(ranks, 2)
