"""Whether the run hangs: how long it has made no step, how long it may, and the evidence, which is shown only then.

How long it may go without a step depends on what its ranks do. A node says what follows from its own; the rules take
the node that allows most: run:hung_seconds:min.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from tachograph import diagnosis
from tachograph.catalog import index as catalog
from tachograph.catalog.rank import PAUSES
from tachograph.node.ranks.conclusions import hang_words
from tachograph.node.ranks.conclusions.pace import EXCUSED_SECONDS
from tachograph.node.ranks.conclusions.suspects import by_group, entered, evidence, left, members, of_the_hang, per_step
from tachograph.node.ranks.conclusions.view import RunView, gauge, seat
from tachograph.node.ranks.rank import Rank
from tachograph.node.ranks.rank_samples import wall_of
from tachograph.node.samples import Sample

START_SECONDS = 180.0
"""Before the first step, evidence is shown once no rank has moved on for so long."""
PAUSE_MEMORY_SECONDS = 6 * 3600.0
UNMARKED, UNKNOWN, STUCK_SAVE = "unmarked", "unknown", "stuck_save"
KNOWN_SAVES, SAVE_FACTOR = 3, 5.0
"""Once so many saves are known, one is stuck beyond so many times the longest. NVIDIA's resiliency extension has that
factor: its timeouts are 5 times the longest interval that it has seen (`safety_factor`)."""

MOST_PAUSE, ONE_STAYS_AWAY, SOME_PAUSE, NONE_WAITS = catalog.PAUSE_LIMITS
LONG_PAUSE_SECONDS = 1800.0
"""Most ranks start, save or evaluate; or half have finished and the others wait for nobody: an upload after the end."""
FIRST_SAVE_SECONDS = 900.0
"""One rank saves for the first time, which nobody knows the length of."""
PAUSE_SECONDS = 300.0
"""A rank is outside of every phase, saves or evaluates; or no rank waits for others: a compilation."""
STAYS_AWAY_SECONDS = 240.0
"""Instead of that, most ranks save or evaluate, and wait for one that does not come to their collective."""
PAUSE_FACTOR = 3.0
"""A pause may last so many times the longest of six hours, but no more than a long one."""
ONCE_FACTOR, REGULAR = 1.5, 3
"""Within a step, ranks may make others wait for so many times as long as they have done before, where that was so often
as to be regular for PAUSE_FACTOR times: to generate, to simulate, to compile again."""
ONCE_STEPS = 1000.0
"""What happened once, and not again within so many steps, was no habit."""
QUIET = (*PAUSES, STUCK_SAVE)


class Gap(NamedTuple):
    """A standstill that `ended` with a step, after `seconds` in which ranks were in these phases, and after `steps`."""

    ended: float
    seconds: float
    phases: frozenset[str]
    steps: float


class TimeWithoutStep(NamedTuple):
    """For how many seconds a run is overdue, 0 before that, and after how many it hangs.

    `is_hung` says whether it does, as far as one node can tell. `of`: for which of catalog.PAUSE_LIMITS it has that
    long; empty where it pauses in no way.
    """

    seconds: float
    limit: float
    is_hung: bool
    of: str = ""


def is_pause(phases: Collection[str]) -> bool:
    """Return whether ranks that do this may be pausing: one is outside a step's phases, or none waits for others."""
    return _some_pause(phases) or _none_waits(phases)


def _some_pause(phases: Collection[str]) -> bool:
    return not {*PAUSES, "other"}.isdisjoint(phases)


def _none_waits(phases: Collection[str]) -> bool:
    return {*diagnosis.WAITING_PHASES, UNKNOWN}.isdisjoint(phases)


def _are_quiet(phases: Sequence[str]) -> bool:
    return 2 * sum(phase in QUIET for phase in phases) > len(phases)


def _are_left(phases: Sequence[str], gone: int) -> bool:
    """Return whether half have finished, and the others wait for nobody."""
    return gone >= len(phases) and {*PAUSES, "other"}.issuperset(phases)


def pauses(
    phases: Sequence[str], longest: float, *, has_step: bool, has_saved: bool, generated: float = 0.0
) -> dict[str, float]:
    """Return how long ranks that do this may pause, beside three usual steps, by catalog.PAUSE_LIMITS.

    `longest` is the longest pause so far, `generated` that of those in which the loop generated, 0 while too few did.
    While the usual step is not known, every pause may be a long one, and so may generation while that is not known.
    """
    seconds = FIRST_SAVE_SECONDS if "checkpoint" in phases and not has_saved else PAUSE_SECONDS
    if not {*catalog.GENERATION}.isdisjoint(phases):
        longest = generated or LONG_PAUSE_SECONDS
    seconds = max(seconds, min(PAUSE_FACTOR * longest, LONG_PAUSE_SECONDS)) if has_step else LONG_PAUSE_SECONDS
    if _some_pause(phases):
        for_one = STAYS_AWAY_SECONDS if seconds == PAUSE_SECONDS else seconds
        return {MOST_PAUSE: LONG_PAUSE_SECONDS, ONE_STAYS_AWAY: for_one, SOME_PAUSE: seconds}
    if _none_waits(phases):
        return {NONE_WAITS: LONG_PAUSE_SECONDS if _are_quiet(phases) else seconds}
    return {}


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
    """Remembers the standstills of six hours, when a rank last paused, and when one last entered a collective.

    `_paused` is when a run that is overdue last paused, `_away` when a rank was last outside of a step since the last
    one, overdue or not: a pause that ends just before the limit leaves no time for the step after it.
    """

    def __init__(self) -> None:
        self._gaps: deque[Gap] = deque()
        self._without_step = 0.0
        self._phases: frozenset[str] = frozenset()
        self._paused: float | None = None
        self._is_pausing = False
        self._away: float | None = None
        self._is_away = False
        self._age = 0.0
        self._entered: Counter[str] = Counter()
        self._moved = 0.0

    def look(self, view: RunView) -> None:
        """Note whether the run pauses, and how long it did."""
        while self._gaps and view.now - self._gaps[0].ended > PAUSE_MEMORY_SECONDS:
            self._gaps.popleft()
        seconds = view.without_step
        ranks = members(view)
        if seconds is None or seconds < self._age:
            self._away = None
        lasting = _lasting(ranks, view)
        self._age, self._is_away = seconds or 0.0, _some_pause(lasting)
        if self._is_away:
            self._away = view.now
        if seconds is not None and seconds <= view.hang_limit:
            if self._without_step:
                self._gaps.append(Gap(view.now, self._without_step, self._phases, _steps(view)))
            self._without_step, self._paused, self._entered, self._phases = 0.0, None, Counter(), frozenset()
            return
        self._without_step = seconds or 0.0
        self._phases |= {doing(rank) for rank in ranks if self._away is None or _stands(rank, view)}
        self._is_pausing = seconds is not None and is_pause(lasting)
        if self._is_pausing:
            self._paused = view.now
        furthest: Counter[str] = Counter()
        for rank in ranks:
            furthest |= Counter({group: int(number) for group, number in entered(rank).items()})
        if furthest != self._entered or not furthest:
            self._entered, self._moved = furthest, view.now

    def without_step(self, view: RunView, told_seconds: float | None = None) -> TimeWithoutStep:
        """Return what this node makes of a run without a step; ranks were asked to end `told_seconds` ago, if any.

        The same as the rules where the run has no other nodes.
        """
        self.look(view)
        ranks = members(view)
        is_told = told_seconds is not None and told_seconds < diagnosis.TOLD_SECONDS
        is_apart = any(of_the_hang(ranks).values())
        if view.without_step is None:
            limit = diagnosis.FIRST_STEPS_APART_SECONDS if is_apart else diagnosis.FIRST_STEPS_SECONDS
            stalled = _start_stalled_seconds(ranks, view)
            return TimeWithoutStep(0.0, limit, stalled > limit)
        phases = [stands_in(rank, view) for rank in ranks]
        most = _are_quiet(phases) or _are_left(phases, len(left(view)))
        comes = not is_apart or view.now - self._moved <= diagnosis.STILL_SECONDS
        holds = {MOST_PAUSE: most and comes, ONE_STAYS_AWAY: most, SOME_PAUSE: True, NONE_WAITS: not is_apart}
        may = self._pauses_of(phases, view)
        of = next((when for when in catalog.PAUSE_LIMITS if when in may and holds[when]), "")
        limit = may.get(of, view.hang_limit)
        seconds = self._overdue_seconds(ranks, view)
        return TimeWithoutStep(seconds, limit, seconds > limit and not is_told, of)

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield who has finished, whether the run is overdue, and the evidence if it is."""
        finished = sorted((rank for rank in view.states if rank.outcome == "finished"), key=lambda rank: -rank.ended_at)
        for rank in finished[: diagnosis.CROWD + 1]:
            at = wall_of(rank.ended_at, view.now, view.wall)
            yield Sample(catalog.RUN_FINISHED, (view.run, *seat(rank), hang_words.at_step(rank.step)), at)
        ranks = members(view)
        if not ranks:
            return
        if view.without_step is None:
            seconds = _start_stalled_seconds(ranks, view)
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
        if self._away is not None and not self._is_away and view.now - self._away <= limit:
            return 0.0
        return seconds

    def _pauses_of(self, phases: Sequence[str], view: RunView) -> dict[str, float]:
        """Return for how long the run may make no step while it pauses, if it does."""
        longest = max((gap.seconds for gap in self._gaps), default=0.0)
        has_saved = any(rank.saved_at is not None or rank.saves.count for rank in view.states)
        has_step = view.step_seconds is not None
        of_generation = (gap.seconds for gap in self._gaps if not gap.phases.isdisjoint(catalog.GENERATION))
        is_known = any(rank.iterations.are_known for rank in members(view))
        generated = max(of_generation, default=view.hang_limit) if is_known else 0.0
        found = pauses(phases, longest, has_step=has_step, has_saved=has_saved, generated=generated)
        if not found and (usual := self._usual_gap(phases, view)):
            found = {SOME_PAUSE: usual}
        steps = diagnosis.HANG_STEPS * (view.step_seconds or 0.0)
        return {when: max(view.hang_limit, seconds + steps) for when, seconds in found.items()}

    def _usual_gap(self, phases: Sequence[str], view: RunView) -> float:
        """Return for how long ranks may make others wait in these phases, by how long they have; 0 if they have not.

        A node whose ranks all wait knows of no habit: the cause is elsewhere.
        """
        busy = {*phases} - {*diagnosis.WAITING_PHASES, UNKNOWN, STUCK_SAVE}
        alike = [gap for gap in self._gaps if busy and gap.phases.issuperset(phases)]
        if not alike or (len(alike) == 1 and _steps(view) - alike[0].steps > ONCE_STEPS):
            return 0.0
        factor = PAUSE_FACTOR if len(alike) >= REGULAR else ONCE_FACTOR
        return min(factor * max(gap.seconds for gap in alike), LONG_PAUSE_SECONDS)

    def _evidence(self, ranks: Collection[Rank], view: RunView) -> Iterator[Sample]:
        standing = {rank: stands_in(rank, view) for rank in ranks}
        for phase, count in sorted(Counter(standing.values()).items()):
            yield Sample(catalog.RUN_OVERDUE_RANKS, (view.run, phase), count)
        lines = Counter(rank.where.partition(", in ")[0] for rank in ranks if rank.where)
        if lines:
            line = min(lines, key=lambda line: (-lines[line], line))
            yield Sample(catalog.RUN_OVERDUE_LINE, (view.run, line), lines[line])
        if view.without_step is not None:
            for when, seconds in self._pauses_of(list(standing.values()), view).items():
                yield Sample(catalog.RUN_PAUSE_LIMIT, (view.run, when), seconds)
        yield Sample(catalog.RUN_HANG_STILL, (view.run, hang_words.stopped_at(view)), view.now - self._moved)
        yield from _collectives(ranks, view)
        for rank, why in evidence(ranks, left(view)).items():
            named = (view.run, *seat(rank))
            phase = rank.phase or UNKNOWN
            words = hang_words.doing_what(rank, phase, is_stuck=standing[rank] == STUCK_SAVE)
            of_rank = phase, why, rank.pid, rank.where, words
            yield Sample(catalog.RUN_HANG_SUSPECT, (*named, *of_rank), round(rank.phase_seconds(view.now) or 0.0))
            for group, number in sorted(entered(rank).items()):
                yield Sample(catalog.RUN_HANG_SUSPECT_ENQUEUED, (*named, group), number)


def _collectives(ranks: Collection[Rank], view: RunView) -> Iterator[Sample]:
    """Yield how far the first and the last rank are in each process group, and how many collectives make a step."""
    numbers = by_group({rank: entered(rank) for rank in ranks})
    kind = hang_words.only_kind(ranks)
    most: Mapping[str, float] = per_step(ranks)
    for group, each in sorted(numbers.items()):
        words = hang_words.collective(kind, max(each), group)
        for figure, value, said in (
            ("furthest", max(each), words),
            ("least", min(each), ""),
            ("per_step", most[group], ""),
        ):
            yield Sample(catalog.RUN_HANG_ENQUEUED, (view.run, group, figure, said), value)


def _stands(rank: Rank, view: RunView) -> bool:
    """Return whether a rank has been in its phase for longer than a whole step takes, so that it follows no pause."""
    return (rank.phase_seconds(view.now) or 0.0) > max(EXCUSED_SECONDS, view.step_seconds or 0.0)


def _steps(view: RunView) -> float:
    return max(view.totals(catalog.TRAIN_STEPS.key), default=0.0)


def _start_stalled_seconds(ranks: Collection[Rank], view: RunView) -> float:
    """Return for how long no rank of a run without a step has changed its phase."""
    return min((_standing_seconds(rank, view) for rank in ranks), default=0.0)


def _standing_seconds(rank: Rank, view: RunView) -> float:
    """Return for how long a rank without a step has been in its phase; if it gives none but counts steps, there."""
    if (seconds := rank.phase_seconds(view.now)) is not None:
        return seconds
    return 0.0 if rank.series.total(catalog.TRAIN_STEPS.key) is None else view.now - rank.began


def _lasting(ranks: Collection[Rank], view: RunView) -> list[str]:
    """Return what ranks do, without saves, evaluations and times between steps that have just begun."""
    brief = (*PAUSES, "other")
    return [
        phase
        for rank in ranks
        if (phase := doing(rank)) not in brief or (rank.phase_seconds(view.now) or 0.0) > EXCUSED_SECONDS
    ]
