"""Whether a change fixed what an alert is about: the alert's own expression, asked of the run before and after."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tachograph.compare.comparison import REGRESSION, Comparison
from tachograph.compare.measures import STEP
from tachograph.compare.recording import Condition, RecordedRun, RecordingError, Sample
from tachograph.findings.kinds import severities
from tachograph.servers.prometheus_api import Prometheus, TimeSeries, quoted
from tachograph.text import humanize

FIXED, NOT_FIXED, INCONCLUSIVE = "fixed", "not fixed", "inconclusive"

FINEST, POINTS = 15.0, 480
"""An expression is asked every 15 s, of long windows at this many times."""

SETTLES = 600.0
"""Seconds of a run before the rules know what is usual for it: before, silence says nothing."""

UNLIKELY = 3.0
"""What came k times in a window came, with 95 %, once in 3/k windows: the rule of three."""


@dataclass(frozen=True)
class FixVerdict:
    """Fixed, not fixed, regression or inconclusive, and the reason in a sentence."""

    alert: str
    verdict: str
    why: str


def conditions(prometheus: Prometheus, alert: str, run: str, start: float, end: float) -> tuple[Condition, ...]:
    """Return when the expression of each rule of an alert held for a run or one of its nodes.

    Raise PrometheusError, and RecordingError where Prometheus has no such alert.
    """
    rules = prometheus.alerting_rules()
    named = [rule for rule in rules if rule["name"] == alert]
    if not named:
        hint = humanize.suggestion(alert, sorted({rule["name"] for rule in rules}) or ["one of ours"])
        raise RecordingError(f"Prometheus at {prometheus.url} has no alert {alert!r:.60}: {hint}")
    window = f"{math.ceil(end - start)}s"
    found = prometheus.instant(
        f"group by (instance) (last_over_time(node:run:info{{run={quoted(run)}}}[{window}]))", end
    )
    nodes = {one.labels["instance"] for one in found if "instance" in one.labels}

    def is_its(series: TimeSeries) -> bool:
        its_run = series.labels.get("run", "")
        return its_run == run or (not its_run and series.labels.get("instance") in nodes)

    step = max(FINEST, (end - start) / POINTS)
    return tuple(
        _condition(rule, filter(is_its, prometheus.range(str(rule["query"]), start, end, step)), step) for rule in named
    )


def _condition(rule: Mapping[str, Any], found: Iterable[TimeSeries], step: float) -> Condition:
    """Return when any of the series of a rule's expression held for a run."""
    held = [each for series in found for each in stretches((at for at, _ in series.samples), step)]
    severity = severities(str(rule.get("labels", {}).get("severity", "")))[0]
    return Condition(str(rule["query"]), float(rule.get("duration", 0.0)), severity, tuple(sorted(held)))


def stretches(times: Iterable[float], step: float) -> Iterator[tuple[float, float]]:
    """Yield the first and the last of times that follow each other without a gap."""
    first = last = None
    for at in times:
        if first is None or last is None or at - last > 1.5 * step:
            if first is not None and last is not None:
                yield first, last
            first = at
        last = at
    if first is not None and last is not None:
        yield first, last


def judge(alert: str, comparison: Comparison) -> FixVerdict:
    """Return whether the second run is free of what an alert said of the first."""
    verdict, why = _judge(alert, comparison)
    return FixVerdict(alert, verdict, why)


def _judge(alert: str, comparison: Comparison) -> tuple[str, str]:
    (first,), (second,) = comparison.first, comparison.second
    before, after = first.conditions.get(alert), second.conditions.get(alert)
    if before is None or after is None:
        which = "first" if before is None else "second"
        return INCONCLUSIVE, f"it was not asked of the {which} run: save that from Prometheus with --fixes {alert}"
    fired = _fired(before)
    if again := _fired(after):
        return NOT_FIXED, f"its condition held for {_length(again)} in the second run"
    if not fired:
        return INCONCLUSIVE, "it would not have fired in the first run: there was nothing to fix"
    if held := [stretch for one in after for stretch in one.held]:
        return INCONCLUSIVE, f"its condition held {len(held)} more times, but not for long enough to fire"
    return _silent(comparison, _watched(second), _needed(first, before, fired), _length(fired))


def _silent(comparison: Comparison, watched: float, needed: float, held: str) -> tuple[str, str]:
    """Return what it means that the condition held in the first run, and never in the second."""
    if watched < needed:
        return INCONCLUSIVE, f"it was silent for {humanize.span(watched)}; {humanize.span(needed)} are needed to tell"
    if comparison.verdict == REGRESSION:
        worse = [row.measure.title.strip() for row in comparison.rows if row.verdict == REGRESSION]
        return REGRESSION, f"it is silent, but worse than before: {', '.join(worse)}"
    return FIXED, f"its condition held for {held} in the first run, and never in {humanize.span(watched)} of the second"


def _fired(found: Sequence[Condition]) -> list[Sample]:
    """Return the stretches that were long enough to fire."""
    return sorted(stretch for one in found for stretch in one.held if stretch[1] - stretch[0] >= one.seconds)


def _length(fired: Sequence[Sample]) -> str:
    """Return how long it held, of stretches that may overlap."""
    total, reached = 0.0, -math.inf
    for begin, end in fired:
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return humanize.span(total) if total else "a moment"


def _watched(second: RecordedRun) -> float:
    """Return for how long the second run made steps."""
    times = [at for at, _ in second.measures.get(STEP, ())]
    return max(times) - min(times) if times else 0.0


def _needed(first: RecordedRun, before: Sequence[Condition], fired: Sequence[Sample]) -> float:
    """Return how long a run must be silent to be called fixed.

    What lasted to the end came after a while, and would again; what came and went, came so often.
    """
    longest = max(one.seconds for one in before)
    lasting = fired[-1][1] >= first.end - 2 * max(FINEST, first.seconds / POINTS)
    if lasting:
        return max(SETTLES, fired[-1][0] - first.start) + longest
    return max(SETTLES + longest, UNLIKELY * first.seconds / len(fired))
