"""The alerts that fired: what they named, when and for how long, and the text of their rules."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tachograph.report.queries import SectionQueries, held
from tachograph.servers.prometheus_api import PrometheusError, TimeSeries, own_labels, quoted

SERIES_PER_ALERT = 8
"""Series kept per alert: those that fired longest; `more` counts the others."""
EXACT = 32
"""Episodes whose beginning is queried to the second."""

SCOPES = (("$run", ""), ('run="",instance!=""', " and on (instance) $nodes"))
"""Alerts of the run, and alerts of its nodes that name no run: a broken GPU without a rank, a node that is down."""

MEANING = {"critical": "page", "warning": "ticket", "info": "information"}
"""The kind of notification that a severity causes."""

_NOT_NAMES = frozenset({"__name__", "alertname", "alertstate", "severity", "component", "tier", "run", "job"})
_ORDER = {"critical": 0, "warning": 1, "info": 2}
_LABEL = re.compile(r"\{\{-?\s*\$labels\.(\w+)\s*-?\}\}")


@dataclass(frozen=True)
class AlertEpisode:
    """One alert from the time it fired until it was resolved."""

    alert: str
    labels: Mapping[str, str]
    since: float | None
    """When its condition became true, None if that is not recorded."""
    fired: float
    ended: float
    before: bool
    """It fired before the window: `fired` is the beginning of the window."""
    still: bool
    """It is firing at the end of the window."""
    words: str = ""
    runbook: str = ""

    @property
    def severity(self) -> str:
        """Return critical, warning or info."""
        return self.labels.get("severity", "")

    @property
    def kind(self) -> str:
        """Return its severity, `info` for any that is not known."""
        return self.severity if self.severity in MEANING else "info"

    @property
    def named(self) -> str:
        """Return the rank, node and GPU that it named; empty for the run as a whole."""
        known = {"rank": "rank {}", "instance": "{}", "gpu": "GPU {}"}
        words = [form.format(self.labels[name]) for name, form in known.items() if self.labels.get(name)]
        rest = sorted(set(self.labels) - set(known) - _NOT_NAMES - {"uuid"})
        return ", ".join(words + [f"{name} {self.labels[name]}" for name in rest if self.labels[name]])

    @property
    def urgency(self) -> tuple[int, float]:
        """Return its sort key: severity, then time."""
        return _ORDER.get(self.severity, 3), self.fired


@dataclass(frozen=True)
class FiredAlerts:
    """All alerts that fired, by severity and time, and how many more series each alert had."""

    found: Sequence[AlertEpisode]
    more: Mapping[str, int]

    def pages(self) -> list[AlertEpisode]:
        """Return the episodes that paged."""
        return [episode for episode in self.found if episode.severity == "critical"]

    def first(self) -> AlertEpisode | None:
        """Return the page that fired first, else the first alert, None if none fired."""
        return min(self.pages() or self.found, key=lambda episode: (episode.fired, episode.alert), default=None)


def fired_alerts(queries: SectionQueries, now: float) -> FiredAlerts:
    """Return the alerts that fired on a run and on its nodes."""
    found: list[AlertEpisode] = []
    more: dict[str, int] = {}
    for matchers, within in SCOPES:
        selector = f'ALERTS{{alertstate="firing",{matchers}}}'
        longest = f"topk by (alertname) ({SERIES_PER_ALERT}, count_over_time({selector}[$window] @ end()){within})"
        firing = queries.range(f"{held(selector)} and {longest}")
        if not firing:
            continue
        state = f"ALERTS_FOR_STATE{{{matchers}}}"
        since = queries.range(f"{held(state)} and ignoring (alertstate) {longest}")
        for series in firing:
            began = _since(series.labels, since)
            found += _episodes(queries, series, began)
        counted = queries.at_end(f"count by (alertname) (count_over_time({selector}[$window]){within})")
        for series in counted:
            name = series.labels["alertname"]
            shown = sum(each.labels["alertname"] == name for each in firing)
            if shown < series.value < math.inf:
                more[name] = more.get(name, 0) + int(series.value) - shown
    found.sort(key=_urgency)
    found[:EXACT] = [_exact(queries, episode) for episode in found[:EXACT]]
    rules = _rules(queries)
    live = abs(now - queries.window.end) < 2 * queries.window.step
    return FiredAlerts(sorted((_with_text(each, rules, live=live) for each in found), key=_urgency), more)


def _urgency(episode: AlertEpisode) -> tuple[int, float]:
    return episode.urgency


def _since(labels: Mapping[str, str], since: Iterable[TimeSeries]) -> dict[float, float]:
    """Return, for each sample time, since when the condition of the alert has been true."""
    return next((dict(each.samples) for each in since if own_labels(each.labels) == own_labels(labels)), {})


def _episodes(queries: SectionQueries, series: TimeSeries, since: Mapping[float, float]) -> Iterator[AlertEpisode]:
    """Yield an episode for each sequence of samples in which the alert was firing."""
    step, window = queries.window.step, queries.window
    times = [time for time, _ in series.samples]
    starts = [i for i, time in enumerate(times) if not i or time - times[i - 1] > 1.5 * step]
    for i, last in zip(starts, [*(i - 1 for i in starts[1:]), len(times) - 1], strict=True):
        first = times[i]
        yield AlertEpisode(
            series.labels["alertname"],
            {name: text for name, text in series.labels.items() if name != "__name__"},
            since.get(times[last]),
            max(first - step, window.start),
            times[last],
            before=first - step < window.start,
            still=times[last] > window.end - step / 2,
        )


def _exact(queries: SectionQueries, episode: AlertEpisode) -> AlertEpisode:
    """Return an episode with the time it fired to a sixtieth of a step; the query is not listed on the page."""
    step = queries.window.step
    if episode.before:
        return episode
    matchers = ",".join(f"{name}={quoted(text)}" for name, text in episode.labels.items())
    try:
        fine = max(1.0, step / 60)
        found = queries.prometheus.range(f"ALERTS{{{matchers}}}", episode.fired, episode.fired + step, fine)
    except PrometheusError:
        return episode  # the step is exact enough
    fired = next((time for series in found for time, _ in series.samples), episode.fired)
    return replace(episode, fired=fired)


Rule = Mapping[str, Any]


def _rules(queries: SectionQueries) -> list[Rule]:
    try:
        return queries.prometheus.alerting_rules()
    except PrometheusError as error:
        queries.refused.append(str(error))
        return []


def _with_text(episode: AlertEpisode, rules: Sequence[Rule], *, live: bool) -> AlertEpisode:
    """Return an episode with the text of its rule: the description if it is still firing, else the summary."""
    named = [rule for rule in rules if rule["name"] == episode.alert]
    if not named:
        return episode
    # Of two rules, the one that names a rank stands first.
    annotations = named[0 if "rank" in episode.labels else -1].get("annotations", {})
    runbook = annotations.get("runbook_url", "")
    words = _summary(annotations.get("summary", ""), episode.labels)
    if live and episode.still:
        active = [
            alert for rule in named for alert in rule.get("alerts", ()) if alert["labels"] == own_labels(episode.labels)
        ]
        words = next((alert["annotations"].get("description", "") for alert in active), "") or words
    return replace(episode, words=words, runbook=runbook if re.match(r"https?://", runbook) else "")


def _summary(template: str, labels: Mapping[str, str]) -> str:
    """Return a summary with its labels filled in; empty if it has expressions that only Prometheus can evaluate."""
    words = _LABEL.sub(lambda found: labels.get(found[1], ""), template)
    return "" if "{{" in words else words
