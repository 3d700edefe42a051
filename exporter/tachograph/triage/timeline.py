"""The events around an incident, in order: alerts, ends and restarts, hardware, saves, changes of configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from tachograph.report.alert_episodes import MEANING, fired_alerts
from tachograph.report.hardware import KINDS
from tachograph.report.queries import SectionQueries
from tachograph.report.window import SHORTEST, Window
from tachograph.servers.prometheus_api import Prometheus
from tachograph.text import humanize

BEFORE_SECONDS = 1800.0
"""Seconds before the beginning of an incident from which on events are listed."""

SHORTEST_SECONDS = 3600.0
MOST_SAVES = 6
MOST_EVENTS = 80


class IncidentEvent(NamedTuple):
    """Something that happened at a Unix time."""

    time: float
    kind: str
    words: str


def window_of(since: float | None, at: float) -> Window:
    """Return the window of an incident: an hour at least, and half an hour before it began."""
    begin = min(at - SHORTEST_SECONDS, (at if since is None else since) - BEFORE_SECONDS)
    return Window.between(max(begin, 0.0), max(at, SHORTEST))


def events(prometheus: Prometheus, run: str, window: Window) -> tuple[list[IncidentEvent], list[str]]:
    """Return the events in order, of too many the last ones, and why queries were refused."""
    queries = SectionQueries(prometheus, run, window)
    found: list[IncidentEvent] = list(_alerts(queries))
    for kind, (template, in_words) in LABELLED.items():
        found += [IncidentEvent(time, kind, in_words(labels)) for time, labels in _appearances(queries, template)]
    for kind, (template, of_value) in CHANGING.items():
        changes = list(_changes(queries, template))[-MOST_SAVES:]
        found += [IncidentEvent(time, kind, of_value(value)) for time, value in changes]
    for what, name in KINDS:
        if not name.startswith("ALERTS"):
            template = f"max by (instance, gpu, device, xid) ({name}) and on (instance) $nodes"
            begun = _appearances(queries, template)
            found += [IncidentEvent(time, "hardware", f"{_place(labels)} {what}") for time, labels in begun]
    return sorted(found)[-MOST_EVENTS:], list(dict.fromkeys(queries.refused))


def _alerts(queries: SectionQueries) -> Iterator[IncidentEvent]:
    for one in fired_alerts(queries, queries.window.end).found:
        kind = MEANING[one.kind]
        who = f", {one.named}" if one.named else ""
        yield IncidentEvent(one.fired, "alert", f"{one.alert} ({kind}){who}" + (", from before" if one.before else ""))
        if not one.still:
            yield IncidentEvent(one.ended, "alert", f"{one.alert}{who} ended")


Labels = Mapping[str, str]

LABELLED: Mapping[str, tuple[str, Callable[[Labels], str]]] = {
    "restart": (
        "group by (attempt) (tachograph_run_restarts{$run})",
        lambda one: f"attempt {one.get('attempt', '?')} began",
    ),
    "end": (
        "max by (rank, instance, gpu, reason) (rank:first_end:timestamp{$run})",
        lambda one: f"rank {one.get('rank')} ({one.get('instance')}) ended ({one.get('reason')})",
    ),
    "configuration": (
        "group by (global_batch, precision) (tachograph_train_config_info{$run})",
        lambda one: f"global batch {one.get('global_batch') or '?'}, precision {one.get('precision') or '?'}",
    ),
}  # fmt: skip
"""Events that begin a series: kind -> the query, and the event in words by its labels."""

CHANGING: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "checkpoint": ("run:checkpoint_step:max{$run}", lambda value: f"saved step {humanize.count(value)}"),
    "world size": ("run:ranks:count{$run}", lambda value: f"the run has {humanize.plural(value, 'rank')}"),
}
"""Events that change a value: kind -> the query, and the event in words by the new value."""


def _appearances(queries: SectionQueries, template: str) -> Iterator[tuple[float, Labels]]:
    """Yield when each series began that did so within the window."""
    for series in queries.range(template):
        first = series.samples[0][0]
        if first > queries.window.start + queries.window.step / 2:
            yield first, series.labels


def _changes(queries: SectionQueries, template: str) -> Iterator[tuple[float, float]]:
    """Yield each change of a value within the window: when, and to what."""
    for series in queries.range(template):
        for (_, before), (time, value) in pairwise(series.samples):
            if value != before:
                yield time, value


def _place(labels: Labels) -> str:
    gpu = f"GPU {labels['gpu']} of " if labels.get("gpu") else f"{labels['device']} of " if labels.get("device") else ""
    return gpu + labels.get("instance", "") + (f" Xid {labels['xid']}" if labels.get("xid") else "")
