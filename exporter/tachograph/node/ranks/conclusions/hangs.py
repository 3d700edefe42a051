"""Whether the run is overdue here, and the evidence of who holds it up, which is shown only then.

The rules put the nodes' evidence together: a grace period is given for what ranks of any node do.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import TypeVar

from tachograph import diagnosis
from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.pace import EXCUSED_SECONDS, is_bystander
from tachograph.node.ranks.conclusions.view import RunView, gauge, seat
from tachograph.node.ranks.rank import Rank, wall_of
from tachograph.node.samples import Sample

K = TypeVar("K", bound=Hashable)


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
    """Return how many collectives those are behind who stopped first.

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
    left_out = {
        rank: gap
        for rank, gap in behind.items()
        if any(number < max(numbers[group]) for group, number in entered[rank].items() if group in most_came)
    }
    return first or left_out or behind


def hang_suspects(entered: Mapping[K, Mapping[str, float]], phases: Mapping[K, str | None]) -> dict[K, float]:
    """Return who may hold a hung run up, with how many collectives they are behind, as far as one node can tell.

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


COUNTABLE = 2.0**53
"""Beyond it a float skips whole numbers: a sequence number there was never counted."""
START_SECONDS = 180.0
"""Before the first step, evidence is shown once no rank has moved on for so long."""
PAUSE_MEMORY_SECONDS = 6 * 3600.0
UNMARKED, UNKNOWN, STUCK_SAVE = "unmarked", "unknown", "stuck_save"
KNOWN_SAVES, SAVE_FACTOR = 3, 5.0
"""Once so many saves are known, one is stuck beyond so many times the longest. NVIDIA's resiliency extension has that
factor: its timeouts are 5 times the longest interval that it has seen (`safety_factor`)."""


def is_pause(phases: Collection[str]) -> bool:
    """Return whether ranks that do this may be pausing: one is outside a step's phases, or none waits for others."""
    pausing, waiting = {*diagnosis.QUIET_PHASES, "other"}, {*diagnosis.WAITING_PHASES, UNKNOWN}
    return not pausing.isdisjoint(phases) or waiting.isdisjoint(phases)


def hangs_after(view: RunView) -> float:
    """Return after how many seconds without a step the run hangs, as far as one node can tell.

    Its limit; beside three steps half an hour where most start, save or evaluate, or the usual step is not known, and
    five minutes where ranks may pause. The rules know more: run:hang_grace_seconds:max.
    """
    phases = [stands_in(rank, view) for rank in members(view)]
    is_quiet = 2 * sum(phase in (*diagnosis.QUIET_PHASES, STUCK_SAVE) for phase in phases) > len(phases)
    grace = diagnosis.PAUSE_SECONDS if is_pause(phases) else 0.0
    if view.step_seconds is None or (grace and is_quiet):
        grace = diagnosis.FIRST_STEPS_SECONDS
    return max(view.hang_limit, grace + diagnosis.HANG_STEPS * (view.step_seconds or 0.0))


def entered(rank: Rank) -> dict[str, float]:
    """Return the last collective that a rank entered, by process group."""
    numbers = rank.series.gauges.get(catalog.TRAIN_COLLECTIVE_ENQUEUED.key, {})
    return {group: number for group, number in numbers.items() if 0 <= number <= COUNTABLE}


def doing(rank: Rank) -> str:
    """Return a rank's phase; `unmarked` is outside all of them in the middle of a step."""
    if rank.phase == "other" and gauge(rank, catalog.TRAIN_STEP_UNMARKED.key) is not None:
        return UNMARKED
    return rank.phase or UNKNOWN


def stands_in(rank: Rank, view: RunView) -> str:
    """Return the same of a run that makes no step: `stuck_save` in a save that is known to be none any more.

    It takes far longer than the longest so far, and for as long as a hang takes the rank's process has done nothing:
    larger saves and slow storage move. Three that this process has made tell how long one takes; the first after a
    restart may be another matter.
    """
    phase = doing(rank)
    if phase != "checkpoint" or rank.saves.count < KNOWN_SAVES or rank.still < view.limit("hang_seconds"):
        return phase
    longest = max(each.saves.longest for each in view.alive)
    has_time = (rank.phase_seconds(view.now) or 0.0) <= max(view.hang_limit, SAVE_FACTOR * longest)
    return phase if has_time else STUCK_SAVE


class Hang:
    """Remembers the pauses of six hours, when a rank last paused, and when one last entered a collective."""

    def __init__(self) -> None:
        self._pauses: deque[tuple[float, float]] = deque()
        self._without_step = 0.0
        self._paused: float | None = None
        self._is_pausing = False
        self._entered: Counter[str] = Counter()
        self._moved = 0.0

    def look(self, view: RunView) -> None:
        """Note whether the run pauses, and how long it did."""
        while self._pauses and view.now - self._pauses[0][0] > PAUSE_MEMORY_SECONDS:
            self._pauses.popleft()
        seconds = view.without_step
        if seconds is not None and seconds <= view.hang_limit:
            if self._without_step:
                self._pauses.append((view.now, self._without_step))
            self._without_step, self._paused, self._entered = 0.0, None, Counter()
            return
        self._without_step = seconds or 0.0
        ranks = members(view)
        self._is_pausing = seconds is not None and _is_pausing(ranks, view)
        if self._is_pausing:
            self._paused = view.now
        furthest: Counter[str] = Counter()
        for rank in ranks:
            furthest |= Counter({group: int(number) for group, number in entered(rank).items()})
        if furthest != self._entered or not furthest:
            self._entered, self._moved = furthest, view.now

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield who has finished, whether the run is overdue, and the evidence if it is."""
        finished = sorted((rank for rank in view.states if rank.outcome == "finished"), key=lambda rank: -rank.ended_at)
        for rank in finished[: diagnosis.CROWD + 1]:
            at = wall_of(rank.ended_at, view.now, view.wall)
            yield Sample(catalog.RUN_FINISHED, (view.run, *seat(rank)), at)
        ranks = members(view)
        if not ranks:
            return
        if view.without_step is None:
            seconds = min(_standing_seconds(rank, view) for rank in ranks)
            limit = view.limit("hang_seconds")
            yield Sample(catalog.RUN_START_STALLED, (view.run,), seconds if seconds > limit else 0.0)
            is_shown = seconds > START_SECONDS
        else:
            seconds = self._overdue_seconds(ranks, view)
            yield Sample(catalog.RUN_OVERDUE, (view.run,), seconds)
            is_shown = seconds > 0
        if is_shown:
            yield from self._evidence(ranks, view)

    def _overdue_seconds(self, ranks: Collection[Rank], view: RunView) -> float:
        """Return the seconds without a step once they are too many; 0 before, and where a rank is silent.

        A rank that is silent holds Python's lock, or is frozen, which is its own alert. After a pause the run has
        the time again that it may go without a step.
        """
        seconds, limit = view.without_step or 0.0, view.hang_limit
        if seconds <= limit or any(view.states[rank] == "frozen" for rank in ranks):
            return 0.0
        if self._paused is not None and not self._is_pausing and view.now - self._paused <= limit:
            return 0.0
        return seconds

    def _evidence(self, ranks: Collection[Rank], view: RunView) -> Iterator[Sample]:
        for phase, count in sorted(Counter(stands_in(rank, view) for rank in ranks).items()):
            yield Sample(catalog.RUN_OVERDUE_RANKS, (view.run, phase), count)
        lines = Counter(rank.where.partition(", in ")[0] for rank in ranks if rank.where)
        if lines:
            line = min(lines, key=lambda line: (-lines[line], line))
            yield Sample(catalog.RUN_OVERDUE_LINE, (view.run, line), lines[line])
        if self._pauses:
            longest = max(seconds for _, seconds in self._pauses)
            yield Sample(catalog.RUN_LONGEST_PAUSE, (view.run,), longest)
        yield Sample(catalog.RUN_HANG_STILL, (view.run,), view.now - self._moved)
        groups: dict[str, list[tuple[float, float]]] = {}
        for rank in ranks:
            steps = max(rank.series.total(catalog.TRAIN_STEPS.key) or 0.0, 1.0)
            for group, number in entered(rank).items():
                groups.setdefault(group, []).append((number, number / steps))
        for group, numbers in sorted(groups.items()):
            figures = {
                "furthest": max(number for number, _ in numbers),
                "least": min(number for number, _ in numbers),
                "per_step": max(per_step for _, per_step in numbers),
            }
            for figure, value in figures.items():
                yield Sample(catalog.RUN_HANG_ENQUEUED, (view.run, group, figure), value)
        for rank, why in suspects(ranks).items():
            named = (view.run, *seat(rank))
            evidence = rank.phase or UNKNOWN, why, rank.pid, rank.where
            yield Sample(catalog.RUN_HANG_SUSPECT, (*named, *evidence), rank.phase_seconds(view.now) or 0.0)
            for group, number in sorted(entered(rank).items()):
                yield Sample(catalog.RUN_HANG_SUSPECT_ENQUEUED, (*named, group), number)


def suspects(ranks: Collection[Rank]) -> dict[Rank, str]:
    """Return who may hold the run up, and why: `elsewhere` than waiting for others, or `behind` the others here.

    Where there is nobody, the first rank stands for all: `example`. They are as many as make a crowd, at most.
    """
    stopped = stopped_first({rank: entered(rank) for rank in ranks})
    found = {rank: "elsewhere" for rank in ranks if rank.phase and rank.phase not in diagnosis.WAITING_PHASES}
    found |= {rank: "behind" for rank in stopped if rank not in found}
    found = found or {next(iter(ranks)): "example"}
    first = sorted(found, key=lambda rank: (rank not in stopped, rank.hello.rank))
    return {rank: found[rank] for rank in first[: diagnosis.CROWD + 1]}


def members(view: RunView) -> list[Rank]:
    """Return the living who take part in the run's steps."""
    return [rank for rank in view.alive if not is_bystander(rank, view)]


def _standing_seconds(rank: Rank, view: RunView) -> float:
    """Return for how long a rank without a step has been in its phase; if it gives none but counts steps, there."""
    if (seconds := rank.phase_seconds(view.now)) is not None:
        return seconds
    return 0.0 if rank.series.total(catalog.TRAIN_STEPS.key) is None else view.now - rank.began


def _is_pausing(ranks: Collection[Rank], view: RunView) -> bool:
    """Return whether ranks are pausing, but for saves, evaluations and times between steps that have just begun."""
    phases = {rank: doing(rank) for rank in ranks}
    brief = (*diagnosis.QUIET_PHASES, "other")
    return is_pause(
        [
            phase
            for rank, phase in phases.items()
            if phase not in brief or (rank.phase_seconds(view.now) or 0.0) > EXCUSED_SECONDS
        ]
    )
