"""The history as a person reads it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from tachograph.history.causes import HANDFUL, Periodicity, Precedence
from tachograph.history.culprits import BlamedPart, half
from tachograph.history.recorded import Recorded
from tachograph.text import humanize

SHOWN = 10
"""Nodes, GPUs and links each that are shown; `--json` has all."""
UNLIKELY = 0.01

_EVENTS: Mapping[str, tuple[str, str]] = {
    "save": ("save", "saves"),
    "evaluation": ("evaluation", "evaluations"),
    "learning rate": ("jump of the learning rate", "jumps of the learning rate"),
    "batch": ("change of the batch", "changes of the batch"),
    "restart": ("restart", "restarts"),
    "hardware": ("hardware event", "hardware events"),
}
_RETENTION = "Prometheus keeps no more (--storage.tsdb.retention.time)"
_DAYS = ("Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday")
"""From the day of the Unix epoch."""


@dataclass(frozen=True)
class History:
    """Everything that is shown: the past, who was blamed in it, and what precedes failures."""

    recorded: Recorded
    nodes: Sequence[BlamedPart]
    gpus: Sequence[BlamedPart]
    links: Sequence[BlamedPart]
    failures: int
    precedences: Sequence[Precedence]
    periodicities: Sequence[Periodicity]


def shown(history: History) -> Iterator[str]:
    """Yield the lines of the history; names in it are as others chose them."""
    past = history.recorded
    begin = past.start if past.first is None else max(past.first, past.start)
    yield (
        f"From {_time(begin)} to {_time(past.end)} ({humanize.span(past.end - begin)}): "
        f"{humanize.plural(past.nodes, 'node')}, {humanize.plural(len(past.runs), 'run')}"
    )
    if past.first is None:
        yield f"Nothing is recorded of this time: {_RETENTION}, or has just begun."
        return
    if past.first - past.start > 3600:
        yield f"  Before that nothing is recorded: {_RETENTION}, or began then."
    yield ""
    yield from _culprits(history)
    yield ""
    yield from _causes(history)


def _culprits(history: History) -> Iterator[str]:
    total = len(history.recorded.incidents)
    if not total:
        yield "No node was blamed for an incident."
        return
    few, fleet = half(history.nodes), humanize.plural(history.recorded.nodes, "node")
    share = humanize.percent(sum(one.share for one in history.nodes[:few]))
    incidents = humanize.plural(total, "incident")
    yield f"{incidents} with a culprit; {few} of {fleet} {'has' if few == 1 else 'have'} {share} of them"
    for title, found in (("Nodes", history.nodes), ("GPUs", history.gpus), ("Links", history.links)):
        if found:
            yield f"{title}:"
        for one in found[:SHOWN]:
            yield _culprit(one, history.recorded.end)
        if len(found) > SHOWN:
            yield f"  and {len(found) - SHOWN} more"
    if not any(one.chance is not None and one.chance < UNLIKELY for one in history.nodes):
        yield "No node has more incidents than chance gives some node of so many."


def _culprit(one: BlamedPart, now: float) -> str:
    alerts = ", ".join(f"{name} {number}" for name, number in one.alerts.items())
    words = [
        alerts,
        f"runs {humanize.listed(one.runs)}" if one.runs else "no run",
        f"last {humanize.age(now - one.last)} ago",
    ]
    if one.chance is not None and one.chance < UNLIKELY:
        words.append(f"by chance {humanize.percent(one.chance, 2) if one.chance >= 1e-4 else 'below 0.01%'}")
    return f"  {one.incidents:3}  {f'{one.node} {one.part}'.strip()}: {'; '.join(words)}"


def _causes(history: History) -> Iterator[str]:
    yield f"{humanize.plural(history.failures, 'failure')} of runs"
    if history.failures < HANDFUL:
        yield f"  Too few to say what precedes them: {HANDFUL} are needed."
        return
    for one in history.precedences:
        yield f"  {_precedence(one)}"
    for each in history.periodicities:
        yield f"  {_periodicity(each)}"
    if not history.periodicities:
        yield "  No regularity: neither in the time since a start, nor by hour, day or week."


def _precedence(one: Precedence) -> str:
    noun, nouns = _EVENTS[one.event]
    events = humanize.plural(one.events, noun, nouns)
    if not one.events:
        return f"no {noun} is recorded"
    if one.verdict == "always":
        return (
            f"{events}: nearly all of the time is within {humanize.age(one.within)} after one; nothing can be compared"
        )
    came = f"{one.after} of {humanize.plural(one.failures, 'failure')} came within {humanize.age(one.within)} after one"
    if one.verdict == "too few" or one.ratio is None or one.low is None or one.high is None:
        return f"{events}: {came} ({one.expected:.1f} by chance); too few to name a ratio"
    interval = f"{_times(one.ratio)} as often as at other times (95%: {_times(one.low)} to {_times(one.high)})"
    words = {"precedes": "MORE FAILURES SOON AFTER ONE", "fewer": "fewer failures soon after one"}
    return f"{events}: {came}, {interval}: {words.get(one.verdict, 'no difference')}"


def _periodicity(one: Periodicity) -> str:
    if one.period == "uptime":
        return f"REGULAR: failures come {humanize.span(one.at)} ± {humanize.span(one.spread)} after a start"
    day, rest = divmod(one.at, 86_400)
    clock = humanize.utc(rest, "%H:%M UTC")
    moment = {"hour": f"minute {rest / 60:.0f} of the hour", "day": clock, "week": f"{_DAYS[int(day)]}, {clock}"}
    chance = humanize.percent(one.chance, 2) if one.chance is not None and one.chance >= 1e-4 else "below 0.01%"
    return f"REGULAR: failures gather about {moment[one.period]} (by chance {chance})"


def _times(ratio: float) -> str:
    return "any number of times" if math.isinf(ratio) else f"{ratio:.1f}×" if ratio < 10 else f"{ratio:.0f}×"


def _time(at: float) -> str:
    return humanize.utc(at, "%Y-%m-%d %H:%M UTC")


def as_json(history: History) -> dict[str, object]:
    """Return the history as an object; times are Unix seconds, a limit that is infinite is null."""
    past = history.recorded
    return {
        "start": past.start,
        "end": past.end,
        "recorded_since": past.first,
        "nodes_seen": past.nodes,
        "runs": sorted(past.runs),
        "incidents": len(past.incidents),
        "nodes": [asdict(one) for one in history.nodes],
        "gpus": [asdict(one) for one in history.gpus],
        "links": [asdict(one) for one in history.links],
        "failures": history.failures,
        "precedes": [_finite(asdict(one)) for one in history.precedences],
        "periodicity": [asdict(one) for one in history.periodicities],
    }


def _finite(row: dict[str, object]) -> dict[str, object]:
    return {name: None if isinstance(value, float) and math.isinf(value) else value for name, value in row.items()}
