"""Recordings on two sides: the change of each measure, its interval, and what that says."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tachograph.compare import interval
from tachograph.compare.interval import Interval
from tachograph.compare.measures import MEASURES, STEP, STEPS, Measure, Statistic
from tachograph.compare.recording import RecordedRun, Sample
from tachograph.text import humanize

REGRESSION, IMPROVEMENT, WITHIN, INCONCLUSIVE, NOT_JUDGED = (
    "regression", "improvement", "within the limit", "inconclusive", "not judged",
)  # fmt: skip
LIMIT = 0.05
"""A change for the worse that must not pass, as a share."""

LATE_STEPS = 4
"""Steps that a rank has made and whose tokens and samples are not counted yet, at most."""

SAME_WORK, SAME_LEARNING = 0.01, 0.1
"""By how much the tokens or samples of a step may differ: beyond the first, the time of a step says nothing, and tokens
a second are judged in its place; beyond the second, nor does the loss."""


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
    """Recordings on two sides, a row for each measure that all have, and what makes them hard to compare."""

    first: Sequence[RecordedRun]
    second: Sequence[RecordedRun]
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


def compare(
    first: Sequence[RecordedRun], second: Sequence[RecordedRun], limits: Mapping[str, float] | None = None
) -> Comparison:
    """Return the comparison. `limits` are shares by a measure's name, that of `` for all that have none."""
    limits = limits or {}
    unlike, notes = _unlike([*first, *second])
    sides = [[_Settled.of(run) for run in side] for side in (first, second)]
    if len(first) == len(second) == 1 and first[0].run != second[0].run:
        notes.append("how far runs of the same code differ is not in these intervals: give more (A A2 -- B B2)")
    rows = []
    for measure in MEASURES:
        limit = limits.get(measure.name, limits.get("", LIMIT))
        judged = measure.judged or measure.name in limits
        if (row := _row(measure, sides, limit, judged=judged)) is not None:
            if why := unlike.get(measure.name, ""):
                row = replace(row, verdict=NOT_JUDGED, why=why)
            rows.append(row)
    return Comparison(first, second, rows, notes)


def _unlike(runs: Sequence[RecordedRun]) -> tuple[dict[str, str], list[str]]:
    """Return why measures cannot be judged, by name, and a note on each fact that differs."""
    unlike: dict[str, str] = {}
    notes = []
    for fact, spoiled in _SPOILS.items():
        words = fact.replace("_", " ")
        known = [value for run in runs if (value := run.facts.get(fact)) is not None]
        slack = 2 * max(map(_slack, runs)) if fact.endswith("_per_step") else 0.0
        differing = {
            name for name, same in spoiled.items() if any(_differ(known[0], one, same + slack) for one in known[1:])
        }
        unlike |= dict.fromkeys(differing, f"another {words}")
        if differing or (not spoiled and len(set(known)) > 1):
            shown = [one if isinstance(one, str) else humanize.short(one) for one in known]
            notes.append(f"{words}: {' and '.join(dict.fromkeys(shown))}")
    return unlike, notes


def _slack(run: RecordedRun) -> float:
    """Return the share that the work of a run's steps may be off: counters of work are read a few steps late."""
    steps = run.facts.get(STEPS)
    return LATE_STEPS / steps if isinstance(steps, float) and steps else 0.0


def _differ(one: float | str, other: float | str, same: float) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one != other
    return abs(other - one) > same * abs(one)


_STEPWISE = ("step_time", "mean_step_time", "loss")
_WORK = {"step_time": SAME_WORK, "mean_step_time": SAME_WORK, "loss": SAME_LEARNING}
_SPOILS: Mapping[str, Mapping[str, float]] = {
    "tokens_per_step": _WORK,
    "samples_per_step": _WORK,
    "ranks": {},
    "precision": dict.fromkeys((*_STEPWISE, "mfu", "memory", "reserved"), 0.0),
    "flops_convention": {"mfu": 0.0},
    "device": {"memory": 0.0, "reserved": 0.0},
}
"""What can differ, and the measures that cannot be judged then: from which share on, 0 for any."""


@dataclass(frozen=True)
class _Settled:
    """A run, and the step or time from which on its step time has settled."""

    run: RecordedRun
    start: float

    @classmethod
    def of(cls, run: RecordedRun) -> _Settled:
        steps = run.measures.get(STEP, ())
        return cls(run, steps[interval.steady_from([value for _, value in steps])][0] if steps else -math.inf)

    def values(self, series: str) -> list[float]:
        """Return the values of a series from there on."""
        return [value for at, value in self.run.measures.get(series, ()) if at >= self.start]

    def without_tail(self, series: str) -> list[float]:
        """Return the same, each at most a typical step's length above the median one.

        A stall in every tenth step counts; three steps of ten times the length, which come and go by chance, count
        little.
        """
        values = self.values(series)
        most = statistics.median(values) + statistics.median(_values(self.run, STEP) or values) if values else 0.0
        return [min(value, most) for value in values]


_Sides = Sequence[Sequence[_Settled]]


def _row(measure: Measure, sides: _Sides, limit: float, *, judged: bool) -> Row | None:
    """Return the row of a measure, None where one of the recordings lacks it."""
    if measure.statistic is Statistic.PAIRED:
        return _paired(measure, sides, limit, judged=judged)
    if not all(one.run.measures.get(measure.series) for side in sides for one in side):
        return None
    if measure.statistic is Statistic.LARGEST:
        return _levels(measure, sides, limit, judged=judged)
    return _typical(measure, sides, limit, judged=judged)


def _levels(measure: Measure, sides: _Sides, limit: float, *, judged: bool) -> Row | None:
    """Return the row of a level: where it never varies it has no interval."""
    found = _estimated(interval.highest, [[_values(one.run, measure.series) for one in side] for side in sides])
    if found is None:
        return None
    row = _judge(measure, found, limit, judged=judged)
    return row if found.low < found.high else replace(row, low=None, high=None)


def _typical(measure: Measure, sides: _Sides, limit: float, *, judged: bool) -> Row | None:
    """Return the row of a median or a mean, once the runs have settled."""
    if measure.statistic is Statistic.MEDIAN:
        statistic, values = interval.median, [[one.values(measure.series) for one in side] for side in sides]
    else:
        statistic, values = interval.mean, [[one.without_tail(measure.series) for one in side] for side in sides]
    steps = [value for one in sides[0] for value in one.values(STEP)]
    if not all(each for side in values for each in side) or (measure.of_step and not steps):
        return None
    unit = statistics.median(steps) if measure.of_step else 0.0
    found = _estimated(statistic, values, unit)
    if found is not None:
        return _judge(measure, found, limit, judged=judged)
    few = min(len(each) for side in values for each in side) < interval.FEWEST
    why = f"fewer than {interval.FEWEST} samples" if few else "the interval is too wide"
    middle_a, middle_b = (statistics.median(value for each in side for value in each) for side in values)
    return _undecided(measure, middle_a, middle_b, unit or middle_a, limit, judged=judged, why=why)


def _estimated(
    statistic: interval.Statistic, sides: Sequence[Sequence[Sequence[float]]], unit: float = 0.0
) -> Interval | None:
    """Return the interval of a statistic's change; None where a run has too little of it."""
    first, second = ([statistic(values) for values in side] for side in sides)
    known_first, known_second = ([one for one in side if one is not None] for side in (first, second))
    if len(known_first) < len(first) or len(known_second) < len(second):
        return None
    return interval.of_change(known_first, known_second, unit)


def _values(run: RecordedRun, series: str) -> list[float]:
    return [value for _, value in run.measures.get(series, ())]


def _undecided(
    measure: Measure, first: float, second: float, unit: float, limit: float, *, judged: bool, why: str
) -> Row | None:
    """Return the row of two values whose difference, in `unit`, has no interval."""
    if not unit:
        return None
    verdict = INCONCLUSIVE if judged else NOT_JUDGED
    return Row(measure, first, second, (second - first) / abs(unit), None, None, limit, verdict, why)


def _paired(measure: Measure, sides: _Sides, limit: float, *, judged: bool) -> Row | None:
    """Return the row of the loss at the steps that all runs made: the later half of them, past the steep beginning.

    Of few steps, as many as an interval needs.
    """
    losses = list(at_equal_steps([one.run.loss for side in sides for one in side]))
    losses = losses[max(0, min(len(losses) // 2, len(losses) - interval.FEWEST)) :]
    if not losses:
        return None
    runs = list(zip(*losses, strict=True))
    a, b = runs[: len(sides[0])], runs[len(sides[0]) :]
    found = interval.of_pairs(a, b)
    if found is None:
        mean_a, mean_b = (statistics.fmean(value for run in side for value in run) for side in (a, b))
        why = "a loss that is not above 0 has no percentage" if mean_a <= 0 else "too few steps in common"
        return _undecided(measure, mean_a, mean_b, mean_a, limit, judged=judged, why=why)
    return _judge(measure, found, limit, judged=judged)


def at_equal_steps(runs: Sequence[Sequence[Sample]]) -> Iterator[tuple[float, ...]]:
    """Yield the losses of all runs at each step that the first has one of and the others span.

    Where another has none of exactly this step, as samples of Prometheus are seconds apart, it is interpolated.
    """
    first, *others = (dict(run) for run in runs)
    known = [sorted(other.items()) for other in others]
    for step, loss in sorted(first.items()):
        found = [_interpolated(other, step) for other in known]
        if all(value is not None for value in found):
            yield (loss, *(value for value in found if value is not None))


def _interpolated(samples: Sequence[Sample], step: float) -> float | None:
    """Return the value at a step, None where it is beyond the ends."""
    place = bisect.bisect_left(samples, (step,))
    if place == len(samples):
        return None
    after, value = samples[place]
    if after == step:
        return value
    if not place:
        return None
    before, earlier = samples[place - 1]
    return earlier + (value - earlier) * (step - before) / (after - before)


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
