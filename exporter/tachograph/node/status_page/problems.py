"""The problems of this node's ranks, worst first and in words: the top of the status page.

These are facts that one node can see, for a person who is looking at it. Whether somebody is paged is for the rules,
which see the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from tachograph import diagnosis
from tachograph.catalog import index as catalog
from tachograph.humanize import age, listed, percent, plural
from tachograph.node.ranks.rank import Rank
from tachograph.node.status_page.html import name, plain
from tachograph.wire import MAX_NOTICE_BYTES, MAX_NOTICES

REASON_LENGTH = 160
RANKS_NAMED = 6
COUNTABLE = 2.0**53
"""Beyond it a float skips whole numbers: a sequence number there was never counted."""

BROKEN_GPU, ENDED, SILENT, NOT_FINITE, STALLED, WARNING, BLIND, SLOWED, LATE_RANK, WORN, MISUSED = range(11)
"""The order of problems. What broke others comes before what it broke; from WARNING on nobody need hurry."""


class NodeProblem(NamedTuple):
    """One thing that is wrong: its place in the order, a word for its kind, and a sentence of HTML."""

    order: int
    kind: str
    html: str

    @property
    def look(self) -> str:
        """Return the class of its colour and shape."""
        return "bad" if self.order < WARNING else "warn"


class RankStatus(NamedTuple):
    """A rank with its state and for how long it has been in it.

    Its failure reason and the misuses that it reports are withheld where the reader may not see them.
    """

    rank: Rank
    state: str
    seconds: float
    reason: str = ""
    notices: tuple[str, ...] = ()


def of_ranks(run: str, ranks: Sequence[RankStatus], now: float, wall: float) -> Iterator[NodeProblem]:
    """Yield the problems of one run's ranks on this node."""
    yield from _not_running(run, ranks)
    yield from _misused(run, ranks)
    running = [each.rank for each in ranks if each.state == "running"]
    losses = [(rank, loss) for rank in running if (loss := rank.series.gauge(catalog.TRAIN_LOSS.key)) is not None]
    if odd := [(rank, loss) for rank, loss in losses if not math.isfinite(loss)]:
        values = sorted({"NaN" if math.isnan(loss) else "infinite" for _, loss in odd})
        who = _ranks([rank for rank, _ in odd], run)
        yield NodeProblem(NOT_FINITE, "Loss", f"{who}: the loss is {' or '.join(values)}.")
    stalled = stalled_seconds(running, wall)
    if stalled is not None:
        text = f"Run {name(run)} has not completed a step here for {age(stalled)}. {_culprit(running, now)}"
        yield NodeProblem(STALLED, "No step", text)
        return
    for rank, lag in lags(running).items():
        wait = rank.wait_share() or 0.0
        if diagnosis.is_straggler(lag, wait, _thresholds(running, "straggler_ratio")):
            text = (
                f"{_ranks([rank], run)} arrives last: it waits {percent(wait)} of the time, the others here "
                f"{percent(wait + lag)}."
            )
            yield NodeProblem(LATE_RANK, "Late rank", text)


def _not_running(run: str, ranks: Sequence[RankStatus]) -> Iterator[NodeProblem]:
    for state, order, verb in (("dead", ENDED, "died"), ("failed", ENDED, "failed"), ("frozen", SILENT, "")):
        found = sorted((each for each in ranks if each.state == state), key=lambda each: -each.seconds)
        if not found:
            continue
        first, who = found[0], _ranks([each.rank for each in found], run)
        if state == "frozen":
            text = (
                f"{who} {'has' if len(found) == 1 else 'have'} sent nothing for {age(first.seconds)} over an open "
                "connection: stopped, or stuck in the kernel."
            )
        else:
            text = f"{who} {verb}{f', rank {first.rank.key[1]} first,' * (len(found) > 1)} {age(first.seconds)} ago"
            if first.reason:
                text += f": {plain(first.reason, REASON_LENGTH)}"
            else:
                text += " without giving a reason: see the kernel log." if state == "dead" else "."
        yield NodeProblem(order, f"Rank {state}", text)


def _misused(run: str, ranks: Sequence[RankStatus]) -> Iterator[NodeProblem]:
    """Yield what the script of a run got wrong with the recorder, each once, with the ranks that say so."""
    texts = dict.fromkeys(text for each in ranks for text in each.notices)
    for text in list(texts)[:MAX_NOTICES]:
        who = _ranks([each.rank for each in ranks if text in each.notices], run)
        yield NodeProblem(MISUSED, "Misuse", f"{who}: {plain(text, MAX_NOTICE_BYTES)}")


def _ranks(ranks: Sequence[Rank], run: str) -> str:
    """Return `Rank 3 of run a`, `Ranks 0, 1 and 14 more of run a`."""
    shown = [rank.key[1] for rank in sorted(ranks, key=lambda rank: rank.hello.rank)]
    return f"Rank{'' if len(shown) == 1 else 's'} {listed(shown, RANKS_NAMED)} of run {name(run)}"


def _thresholds(ranks: Iterable[Rank], threshold: str) -> list[float]:
    """Return what the ranks of a run set for a threshold of its alerts."""
    return [rank.series.gauges.get(catalog.TRAIN_THRESHOLD.key, {}).get(threshold, 0.0) for rank in ranks]


def stalled_seconds(running: Sequence[Rank], wall: float) -> float | None:
    """Return for how long no rank of a run has completed a step, None while that is no longer than usual."""
    made = [rank.progress for rank in running if rank.progress is not None]
    phases = [rank.phase for rank in running]
    if not made or 2 * sum(phase in diagnosis.QUIET_PHASES for phase in phases) > len(phases):
        return None
    seconds = wall - max(made)
    steps = [step for rank in running if (step := _step_seconds(rank)) is not None]
    own, pauses = _thresholds(running, "hang_seconds"), diagnosis.is_pause(phases)
    limit = diagnosis.hang_limit(median(steps) if steps else None, own, pauses=pauses)
    return seconds if seconds > limit else None


def _step_seconds(rank: Rank) -> float | None:
    """Return the mean time of a rank's steps, without the phases that are not part of a step."""
    steps = rank.series.total(catalog.TRAIN_STEPS.key)
    phases = rank.series.counters.get(catalog.TRAIN_PHASE_SECONDS.key, {})
    seconds = sum(taken for phase, taken in phases.items() if phase not in diagnosis.QUIET_PHASES)
    return seconds / steps if steps and seconds else None


def _culprit(running: Sequence[Rank], now: float) -> str:
    """Return who holds a run up, as far as this node can tell."""
    entered = {
        rank: {
            group: number
            for group, number in rank.series.gauges.get(catalog.TRAIN_COLLECTIVE_ENQUEUED.key, {}).items()
            if 0 <= number <= COUNTABLE
        }
        for rank in running
    }
    phases = {rank: rank.phase for rank in running}
    suspects = diagnosis.hang_suspects(entered, phases)
    if suspects and not diagnosis.is_crowd(len(suspects), len(running)):
        rank, behind = max(suspects.items(), key=lambda item: item[1])
        seconds = rank.phase_seconds(now)
        what = f"is {plural(behind, 'collective')} behind the others here" if behind else "is not where the others are"
        doing = "" if seconds is None else f"; it has been in phase {rank.phase} for {age(seconds)}"
        return f"Rank {rank.key[1]} {what}{doing}."
    common = set(phases.values())
    where = f"; all are in phase {next(iter(common))}" if len(common) == 1 and None not in common else ""
    return f"No rank here stands out{where}. The cause may be on another node."


def lags(running: Iterable[Rank]) -> Mapping[Rank, float]:
    """Return by which share of the time each rank waits less than is usual here: who waits least arrives last."""
    waits = {rank: share for rank in running if (share := rank.wait_share()) is not None}
    usual = diagnosis.usual_wait(waits.values())
    return {} if usual is None else {rank: max(0.0, usual - share) for rank, share in waits.items()}
