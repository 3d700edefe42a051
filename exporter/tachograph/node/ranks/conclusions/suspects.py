"""Who holds up a run that makes no step, as far as one node can tell.

The collectives that its ranks entered say so, else the phases that they are in. The rules say the same of all nodes:
rank:hang_suspect:behind.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import TypeVar

from tachograph import diagnosis
from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.pace import is_bystander
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.ranks.rank import Rank

K = TypeVar("K", bound=Hashable)
Entered = Mapping[K, Mapping[str, float]]
"""The last collective that each rank entered, by process group."""

COUNTABLE = 2.0**53
"""Beyond it a float skips whole numbers: a sequence number there was never counted."""
MOST_APART, STEPS_APART = 2.0, 20.0
"""Members of a group that are further apart than so many collectives, and those of so many steps, were so before the
hang: gloo counts what pipeline stages send, and the last stage sends less."""
LEFT_SECONDS = 60.0
"""Who finished no longer than this, and the limit of a hang, before the last step left it to the others."""


def members(view: RunView) -> list[Rank]:
    """Return the living who take part in the run's steps."""
    return [rank for rank in view.alive if not is_bystander(rank, view)]


def left(view: RunView) -> list[Rank]:
    """Return the ranks that finished near the run's last step or later, the last one first."""
    if view.progress is None:
        return []
    since = view.progress - view.hang_limit - LEFT_SECONDS
    found = [rank for rank in view.states if rank.outcome == "finished" and rank.ended_at > since]
    return sorted(found, key=lambda rank: -rank.ended_at)


def entered(rank: Rank) -> dict[str, float]:
    """Return the last collective that a rank entered, by process group."""
    numbers = rank.series.gauges.get(catalog.TRAIN_COLLECTIVE_ENQUEUED.key, {})
    return {group: number for group, number in numbers.items() if 0 <= number <= COUNTABLE}


def per_step(ranks: Collection[Rank]) -> dict[str, float]:
    """Return how many collectives of each group a rank enters in a step, at most."""
    most: dict[str, float] = {}
    for rank in ranks:
        steps = max(rank.series.total(catalog.TRAIN_STEPS.key) or 0.0, 1.0)
        for group, number in entered(rank).items():
            most[group] = max(number / steps, most.get(group, 0.0))
    return most


def by_group(entered: Entered[K]) -> dict[str, list[float]]:
    """Return the collectives that the members of each process group entered last."""
    numbers: dict[str, list[float]] = {}
    for groups in entered.values():
        for group, number in groups.items():
            numbers.setdefault(group, []).append(number)
    return numbers


def of_the_hang(ranks: Collection[Rank]) -> dict[Rank, dict[str, float]]:
    """Return what each rank entered, of the groups whose members have come apart in this hang."""
    numbers, most = {rank: entered(rank) for rank in ranks}, per_step(ranks)
    apart = {group: max(each) - min(each) for group, each in by_group(numbers).items()}
    known = {group for group, by in apart.items() if 0 < by <= MOST_APART + STEPS_APART * most[group]}
    return {rank: {group: groups[group] for group in groups if group in known} for rank, groups in numbers.items()}


def collectives_behind(entered: Entered[K]) -> dict[K, float]:
    """Return how many collectives each rank is behind, of those that are."""
    furthest = {group: max(each) for group, each in by_group(entered).items()}
    gaps = {
        rank: max((furthest[group] - number for group, number in groups.items()), default=0.0)
        for rank, groups in entered.items()
    }
    return {rank: gap for rank, gap in gaps.items() if gap > 0}


def last_in_all(entered: Entered[K]) -> dict[K, float]:
    """Return, of those that are behind, who is the last in each of its groups, with how many collectives.

    All ranks enter their collectives in the order of one program. So whoever is behind in one group and ahead of
    somebody in another waits itself, for that one.
    """
    last = {group: min(each) for group, each in by_group(entered).items()}
    return {
        rank: gap
        for rank, gap in collectives_behind(entered).items()
        if all(number == last[group] for group, number in entered[rank].items())
    }


def stopped_first(entered: Entered[K]) -> dict[K, float]:
    """Return how many collectives those are behind who stopped first.

    They are last in all of their groups. If everybody behind is ahead somewhere, a rank has left out a collective and
    gone on: those behind in a group in which most are not, else all.
    """
    numbers = by_group(entered)
    most_came = {group for group, each in numbers.items() if 2 * sum(number < max(each) for number in each) < len(each)}
    behind = collectives_behind(entered)
    left_out = {
        rank: gap
        for rank, gap in behind.items()
        if any(number < max(numbers[group]) for group, number in entered[rank].items() if group in most_came)
    }
    return last_in_all(entered) or left_out or behind


def hang_suspects(entered: Entered[K], phases: Mapping[K, str | None]) -> dict[K, float]:
    """Return who may hold a hung run up, with how many collectives they are behind.

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


def most_finished(ranks: Collection[Rank], gone: Collection[Rank]) -> bool:
    """Return whether most have finished, or one of two while the other is not in a backward pass."""
    if len(gone) == len(ranks):
        return all(rank.phase != "backward" for rank in ranks)
    return len(gone) > len(ranks)


def culprits(view: RunView) -> dict[Rank, float]:
    """Return who holds the run up, with how many collectives they are behind; nobody where they are a crowd.

    If most have finished: those that remain, otherwise those that finished; if nobody has, the suspects, or the only
    rank of the run.
    """
    ranks, gone = members(view), left(view)
    if gone:
        found = dict.fromkeys(evidence(ranks, gone) if most_finished(ranks, gone) else gone, 0.0)
    else:
        found = hang_suspects(of_the_hang(ranks), {rank: rank.phase for rank in ranks})
    if not found and len(ranks) == 1 and ranks[0].hello.world_size <= 1:
        found = {ranks[0]: 0.0}
    return {} if is_crowd(len(found), len(ranks) + len(gone)) else found


def is_crowd(suspects: int, ranks: int) -> bool:
    """Return whether so many suspects of so many ranks are too many to blame."""
    return suspects > diagnosis.CROWD or 2 * suspects > max(ranks, 2)


def evidence(ranks: Collection[Rank], gone: Collection[Rank]) -> dict[Rank, str]:
    """Return who may hold the run up for the rules to choose from, and why: `elsewhere` than waiting, or `behind`.

    Where there is nobody, all that remain if others are gone, else the first rank stands for all: `example`. They are
    as many as make a crowd, at most.
    """
    stopped = stopped_first({rank: entered(rank) for rank in ranks})
    found = {rank: "elsewhere" for rank in ranks if rank.phase and rank.phase not in diagnosis.WAITING_PHASES}
    found |= {rank: "behind" for rank in stopped if rank not in found}
    found = found or dict.fromkeys(ranks if gone else [*ranks][:1], "example")
    first = sorted(found, key=lambda rank: (rank not in stopped, rank.hello.rank))
    return {rank: found[rank] for rank in first[: diagnosis.CROWD + 1]}
