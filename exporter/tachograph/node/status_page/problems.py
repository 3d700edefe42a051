"""What is wrong on this node, worst first and in words: what the landing page begins with.

These are facts that one node can see, for a person who is looking at it. Whether somebody is woken is for the rules,
which see the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from tachograph.catalog import index as catalog
from tachograph.node.ranks.rank import Rank
from tachograph.node.status_page.html import ago, counted, name, plain

LAST_WORDS_LENGTH = 160
RANKS_NAMED = 6
LONGEST_IN_STEPS, SHORTEST_STALL, STALL_WITHOUT_STEPS = 5, 10.0, 60.0
"""A run without a step for five of its usual ones, and ten seconds, is worth a line; a minute where none is known."""
LATE, LITTLE_WAIT = 0.2, 0.6
"""A rank arrives late that waits a fifth of the time less than the median one, and less than 0.6 of it."""
COUNTABLE = 2.0**53
"""Beyond it a float skips whole numbers: a sequence number there was never counted."""
QUIET_PHASES = frozenset({"init", "checkpoint", "eval"})
"""Phases in which a rank makes no step for good reason."""


class Trouble(NamedTuple):
    """One thing that is wrong: the lower its weight the worse, a word for its kind, and a sentence of HTML."""

    weight: int
    kind: str
    html: str

    @property
    def look(self) -> str:
        """Return the class of its colour and shape."""
        return "bad" if self.weight < WARNING else "warn"


BROKEN_GPU, ENDED, SILENT, NOT_FINITE, STALLED, WARNING, BLIND, SLOWED, LATE_RANK, WORN = range(10)
"""What broke others comes before what it broke; from WARNING on nobody need hurry."""


class Seat(NamedTuple):
    """A rank with its state and how long it has been known to be so."""

    rank: Rank
    state: str
    seconds: float
    last_words: str = ""
    """What it said last, as far as the reader of the page may see it."""


def of_ranks(run: str, seats: Sequence[Seat], now: float, wall: float) -> Iterator[Trouble]:
    """Yield what is wrong with the ranks of one run on this node."""
    yield from _gone(run, seats)
    living = [seat.rank for seat in seats if seat.state == "running"]
    odd = [rank for rank in living if not _finite(rank.series.gauge(catalog.TRAIN_LOSS.key))]
    if odd:
        values = {"NaN" if math.isnan(rank.series.gauges[catalog.TRAIN_LOSS.key][""]) else "infinite" for rank in odd}
        yield Trouble(NOT_FINITE, "Loss", f"{_ranks(odd, run)}: the loss is {' or '.join(sorted(values))}.")
    stall = stalled_seconds(living, wall)
    if stall is not None:
        yield Trouble(
            STALLED, "No step", f"Run {name(run)} has made no step here for {ago(stall)}. {_suspects(living, now)}"
        )
        return
    for rank, lag in lags(living).items():
        own = rank.wait_share() or 0.0
        if lag > LATE and own < LITTLE_WAIT * (own + lag):
            yield Trouble(
                LATE_RANK, "Late rank",
                f"{_ranks([rank], run)} arrives last: it waits {own:.0%} of the time, the others here {own + lag:.0%}.",
            )  # fmt: skip


def _gone(run: str, seats: Sequence[Seat]) -> Iterator[Trouble]:
    for state, weight, end in (("dead", ENDED, "died"), ("failed", ENDED, "failed"), ("frozen", SILENT, "")):
        found = sorted((seat for seat in seats if seat.state == state), key=lambda seat: -seat.seconds)
        if not found:
            continue
        first, who = found[0], _ranks([seat.rank for seat in found], run)
        if state == "frozen":
            text = (
                f"{who} {'has' if len(found) == 1 else 'have'} said nothing for {ago(first.seconds)} on an open "
                "connection: stopped, or stuck in the kernel."
            )
        else:
            the_first = "" if len(found) == 1 else f"the first, rank {first.rank.key[1]}, "
            text = f"{who} {end}, {the_first}{ago(first.seconds)} ago"
            words = first.last_words or ("without a word: see the kernel’s log" if state == "dead" else "")
            text += f": {plain(words, LAST_WORDS_LENGTH)}" if words else "."
        yield Trouble(weight, f"Rank {state}", text)


def _ranks(ranks: Sequence[Rank], run: str) -> str:
    """Return `Rank 3 of run a`, `Ranks 0, 1 and 14 more of run a`."""
    shown = [rank.key[1] for rank in sorted(ranks, key=lambda rank: rank.hello.rank)]
    more = len(shown) - RANKS_NAMED
    listed = ", ".join(shown[:RANKS_NAMED]) + (f" and {more:,} more" if more > 0 else "")
    return f"Rank{'' if len(shown) == 1 else 's'} {listed} of run {name(run)}"


def _finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def stalled_seconds(living: Sequence[Rank], wall: float) -> float | None:
    """Return for how long no rank of a run has made a step, None while that is nothing to speak of."""
    made = [rank.progress for rank in living if rank.progress is not None]
    if not made or any(rank.phase in QUIET_PHASES for rank in living):
        return None
    age = wall - max(made)
    steps = [step for rank in living if (step := _step_seconds(rank)) is not None]
    limit = max(SHORTEST_STALL, LONGEST_IN_STEPS * median(steps)) if steps else STALL_WITHOUT_STEPS
    return age if age > limit else None


def _step_seconds(rank: Rank) -> float | None:
    """Return how long a step has taken a rank on average, what is no part of a step left out."""
    steps = rank.series.total(catalog.TRAIN_STEPS.key)
    phases = rank.series.counters.get(catalog.TRAIN_PHASE_SECONDS.key, {})
    seconds = sum(taken for phase, taken in phases.items() if phase not in QUIET_PHASES)
    return seconds / steps if steps and seconds else None


def _suspects(living: Sequence[Rank], now: float) -> str:
    """Return who holds a run up, as far as this node can tell: who is behind, else who is in a phase of its own."""
    behind = dict(_behind(living))
    if behind:
        first, lacking = max(behind.items(), key=lambda item: item[1])
        return f"Rank {first.key[1]} is {counted(lacking, 'collective')} behind the others here{_doing(first, now)}."
    phases: dict[str, list[Rank]] = {}
    for rank in living:
        if rank.phase is not None:
            phases.setdefault(rank.phase, []).append(rank)
    if len(phases) > 1:
        alone = min(phases.values(), key=len)
        if 2 * len(alone) < len(living):
            return f"Rank {alone[0].key[1]} is not where the others are{_doing(alone[0], now)}."
    where = f" All are in phase {next(iter(phases))}." if len(phases) == 1 else ""
    return f"No rank here stands out.{where} The one that holds it up may sit on another node."


def _doing(rank: Rank, now: float) -> str:
    seconds = rank.phase_seconds(now)
    return "" if seconds is None else f": in phase {rank.phase} for {ago(seconds)}"


def _behind(living: Sequence[Rank]) -> Iterator[tuple[Rank, int]]:
    """Yield the few ranks that have not entered a collective which the others of their process group have."""
    groups: dict[str, dict[Rank, float]] = {}
    for rank in living:
        for group, entered in rank.series.gauges.get(catalog.TRAIN_COLLECTIVE_ENQUEUED.key, {}).items():
            if 0 <= entered <= COUNTABLE:
                groups.setdefault(group, {})[rank] = entered
    for entered_by in groups.values():
        furthest = max(entered_by.values())
        late = {rank: furthest - entered for rank, entered in entered_by.items() if entered < furthest}
        if 2 * len(late) < len(entered_by):
            yield from ((rank, int(lacking)) for rank, lacking in late.items())


def lags(living: Iterable[Rank]) -> Mapping[Rank, float]:
    """Return by which share of the time each rank waits less than the median one here: who waits least arrives last.

    Nothing for fewer than three: of two ranks nobody can tell which is the odd one.
    """
    waits = {rank: share for rank in living if (share := rank.wait_share()) is not None}
    if len(waits) < 3:
        return {}
    usual = median(waits.values())
    return {rank: max(0.0, usual - share) for rank, share in waits.items()}
