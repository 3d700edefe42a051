"""Two recordings beside each other: the change of each measure, its interval, and what that says."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tachograph import humanize
from tachograph.compare import interval
from tachograph.compare.interval import Interval
from tachograph.compare.measures import MEASURES, STEP, Measure, Statistic
from tachograph.compare.recording import RecordedRun, Sample

REGRESSION, IMPROVEMENT, WITHIN, INCONCLUSIVE, NOT_JUDGED = (
    "regression", "improvement", "within the limit", "inconclusive", "not judged",
)  # fmt: skip
LIMIT = 0.05
"""A change for the worse that must not pass, as a share."""

SAME_WORK = 0.1
"""Steps of two runs that differ by more than this in their tokens or samples are not the same work."""


@dataclass(frozen=True)
class Row:
    """A measure of both runs. `change` is as measured, `low` and `high` its bounds, None without an interval."""

    measure: Measure
    first: float
    second: float
    change: float
    low: float | None
    high: float | None
    limit: float
    verdict: str
    why: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two recordings, a row for each measure that both have, and what makes them hard to compare."""

    first: RecordedRun
    second: RecordedRun
    rows: Sequence[Row]
    notes: Sequence[str]

    @property
    def verdict(self) -> str:
        """Return what holds of the pair: any regression, else what the first judged measure of its speed says."""
        verdicts = [row.verdict for row in self.rows]
        if REGRESSION in verdicts:
            return REGRESSION
        speed = [row for row in self.rows if row.measure.name in SPEED and row.verdict != NOT_JUDGED]
        if not speed or speed[0].verdict == INCONCLUSIVE:
            return INCONCLUSIVE
        return IMPROVEMENT if speed[0].verdict == IMPROVEMENT else WITHIN


SPEED = ("step_time", "throughput", "samples", "mfu")


def compare(first: RecordedRun, second: RecordedRun, limits: Mapping[str, float] | None = None) -> Comparison:
    """Return the comparison. `limits` are shares by a measure's name, that of `` for all that have none."""
    limits = limits or {}
    unlike, notes = _unlike(first, second)
    rows = []
    for measure in MEASURES:
        limit = limits.get(measure.name, limits.get("", LIMIT))
        judged = measure.judged or measure.name in limits
        if (row := _row(measure, first, second, limit, judged=judged)) is not None:
            if why := unlike.get(measure.name, ""):
                row = Row(measure, row.first, row.second, row.change, row.low, row.high, limit, NOT_JUDGED, why)
            rows.append(row)
    return Comparison(first, second, rows, notes)


def _unlike(first: RecordedRun, second: RecordedRun) -> tuple[dict[str, str], list[str]]:
    """Return why measures cannot be judged, by name, and a note on each fact that differs."""
    unlike: dict[str, str] = {}
    notes = []
    for fact, spoiled in _SPOILS.items():
        a, b = first.facts.get(fact), second.facts.get(fact)
        if a is None or b is None or a == b:
            continue
        if not isinstance(a, str) and not isinstance(b, str):
            if fact.endswith("_per_step") and abs(b - a) <= SAME_WORK * abs(a):
                continue
            a, b = humanize.significant(a, zeros=False), humanize.significant(b, zeros=False)
        notes.append(f"{fact.replace('_', ' ')}: {a} in the first, {b} in the second")
        unlike |= dict.fromkeys(spoiled, f"another {fact.replace('_', ' ')}")
    return unlike, notes


_STEPWISE = ("step_time", "mean_step_time", "loss")
_SPOILS = {
    "tokens_per_step": _STEPWISE,
    "samples_per_step": _STEPWISE,
    "ranks": (),
    "precision": (*_STEPWISE, "mfu", "memory", "reserved"),
    "flops_convention": ("mfu",),
    "device": ("memory", "reserved"),
}
"""What can differ, and the measures that cannot be judged then."""


def _row(measure: Measure, first: RecordedRun, second: RecordedRun, limit: float, *, judged: bool) -> Row | None:
    """Return the row of a measure, None where one of the recordings lacks it."""
    if measure.statistic is Statistic.PAIRED:
        return _paired(measure, first, second, limit, judged=judged)
    a, b = first.measures.get(measure.series, ()), second.measures.get(measure.series, ())
    if not a or not b:
        return None
    if measure.statistic is Statistic.LARGEST:
        return _levels(measure, a, b, limit, judged=judged)
    return _typical(measure, first, second, limit, judged=judged)


def _levels(measure: Measure, a: Sequence[Sample], b: Sequence[Sample], limit: float, *, judged: bool) -> Row | None:
    """Return the row of a level, which has no interval."""
    first, second = (max(value for _, value in each) for each in (a, b))
    if first <= 0:
        return None
    change = second / first - 1
    verdict = REGRESSION if change > limit else IMPROVEMENT if change < -limit else WITHIN
    return Row(measure, first, second, change, None, None, limit, verdict if judged else NOT_JUDGED)


def _typical(measure: Measure, first: RecordedRun, second: RecordedRun, limit: float, *, judged: bool) -> Row | None:
    """Return the row of a median or a mean, once the runs have settled."""
    a, b = (_steady(each, each.measures.get(measure.series, ())) for each in (first, second))
    scale = _steady(first, first.measures.get(STEP, ())) if measure.of_step else None
    if not a or not b or scale == []:
        return None
    if measure.statistic is Statistic.MEDIAN:
        found = interval.of_change(a, b, interval.median, scale)
    else:
        found = interval.of_change(_without_tail(first, a), _without_tail(second, b), interval.mean, scale)
    if found is not None:
        return _judge(measure, found, limit, judged=judged)
    few = min(len(a), len(b)) < interval.FEWEST
    why = f"fewer than {interval.FEWEST} samples" if few else "too few independent samples"
    first_middle, second_middle, unit = (sorted(each)[len(each) // 2] for each in (a, b, scale or a))
    return _undecided(measure, first_middle, second_middle, unit, limit, judged=judged, why=why)


def _undecided(
    measure: Measure, first: float, second: float, unit: float, limit: float, *, judged: bool, why: str
) -> Row | None:
    """Return the row of two values whose difference, in `unit`, has no interval."""
    if not unit:
        return None
    verdict = INCONCLUSIVE if judged else NOT_JUDGED
    return Row(measure, first, second, (second - first) / abs(unit), None, None, limit, verdict, why)


def _paired(measure: Measure, first: RecordedRun, second: RecordedRun, limit: float, *, judged: bool) -> Row | None:
    """Return the row of the loss at the steps that both runs made: the later half of them, past the steep beginning."""
    pairs = list(equal_steps(first.loss, second.loss))
    pairs = pairs[len(pairs) // 2 :]
    if not pairs:
        return None
    a, b = [one for one, _ in pairs], [other for _, other in pairs]
    found = interval.of_pairs(a, b)
    if found is None:
        why = "a loss that is not above 0 has no percentage" if sum(a) <= 0 else "too few steps in common"
        mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
        return _undecided(measure, mean_a, mean_b, mean_a, limit, judged=judged, why=why)
    return _judge(measure, found, limit, judged=judged)


def equal_steps(first: Sequence[Sample], second: Sequence[Sample]) -> Iterator[tuple[float, float]]:
    """Yield the losses of both runs at each step that the first has one of and the second spans.

    Where the second has none of exactly this step, as samples of Prometheus are seconds apart, it is interpolated.
    """
    others = sorted(dict(second).items())
    place = 0
    for step, loss in sorted(dict(first).items()):
        while place < len(others) and others[place][0] < step:
            place += 1
        if place == len(others):
            return
        after, value = others[place]
        if after == step:
            yield loss, value
        elif place:
            before, earlier = others[place - 1]
            yield loss, earlier + (value - earlier) * (step - before) / (after - before)


def _judge(measure: Measure, found: Interval, limit: float, *, judged: bool) -> Row:
    """Return the row of an interval: a regression if the limit may be reached, and half of it surely is.

    An interval that lies wholly above the limit would miss half of all changes of just the limit.
    """
    low, high = found.low, found.high
    if measure.more_is_worse:
        worst, best = high, low
    else:  # by how much more time the same work takes
        worst, best = _inverse(low), _inverse(high)
    if not judged:
        verdict = NOT_JUDGED
    elif worst >= limit and best > limit / 2:
        verdict = REGRESSION
    elif best <= -limit and worst < -limit / 2:
        verdict = IMPROVEMENT
    else:
        verdict = WITHIN if worst < limit else INCONCLUSIVE
    why = "the interval is too wide" if verdict == INCONCLUSIVE else ""
    return Row(measure, found.first, found.second, found.change, low, high, limit, verdict, why)


def _inverse(change: float) -> float:
    return 1 / (1 + change) - 1 if change > -1 else math.inf


def _without_tail(recording: RecordedRun, values: Sequence[float]) -> list[float]:
    """Return the values, each at most a typical step's length above the median one.

    A stall in every tenth step counts; three steps of ten times the length, which come and go by chance, count little.
    """
    steps = [value for _, value in recording.measures.get(STEP, ())]
    most = statistics.median(values) + statistics.median(steps or values)
    return [min(value, most) for value in values]


def _steady(recording: RecordedRun, samples: Sequence[Sample]) -> list[float]:
    """Return the values from where the run's step time has settled."""
    steps = recording.measures.get(STEP, ())
    first = steps[interval.steady_from([value for _, value in steps])][0] if steps else -math.inf
    return [value for at, value in samples if at >= first]
