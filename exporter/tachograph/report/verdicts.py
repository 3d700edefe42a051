"""What fired: which alert, whom it named, when and for how long, in the rule's own words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tachograph.prometheus_api import PrometheusError, Series, own_labels
from tachograph.report.asking import Asking, held

SERIES_PER_ALERT = 8
"""Whom one alert named: those with most firing samples; a rule that names hundreds says so in `more`."""
EXACT = 32
"""Episodes whose beginning is asked for to the second."""

SCOPES = (("$run", ""), ('run="",instance!=""', " and on (instance) $nodes"))
"""Alerts of the run; and those of its nodes that name no run: a broken GPU without a rank, a node that is down."""

MEANING = {"critical": "page", "warning": "ticket", "info": "information"}
"""What a severity means to whoever is on call."""

_NOT_NAMES = frozenset({"__name__", "alertname", "alertstate", "severity", "tier", "run", "job"})
_ORDER = {"critical": 0, "warning": 1, "info": 2}
_LABEL = re.compile(r"\{\{-?\s*\$labels\.(\w+)\s*-?\}\}")


@dataclass(frozen=True)
class Verdict:
    """One alert from when it fired until it stopped."""

    alert: str
    labels: Mapping[str, str]
    since: float | None
    """When its condition became true."""
    fired: float
    ended: float
    before: bool
    """It fired before the window began: `fired` is the window's beginning."""
    still: bool
    """It fires at the window's end."""
    words: str = ""
    runbook: str = ""

    @property
    def severity(self) -> str:
        """Return critical, warning or info."""
        return self.labels.get("severity", "")

    @property
    def kind(self) -> str:
        """Return its severity, `info` for all that nobody has to act on."""
        return self.severity if self.severity in MEANING else "info"

    @property
    def named(self) -> str:
        """Return whom it named, in words; empty for the run as a whole."""
        known = {"rank": "rank {}", "instance": "{}", "gpu": "GPU {}"}
        words = [form.format(self.labels[name]) for name, form in known.items() if self.labels.get(name)]
        rest = sorted(set(self.labels) - set(known) - _NOT_NAMES - {"uuid"})
        return ", ".join(words + [f"{name} {self.labels[name]}" for name in rest if self.labels[name]])

    @property
    def urgency(self) -> tuple[int, float]:
        """Return where it stands in order of severity and time."""
        return _ORDER.get(self.severity, 3), self.fired


@dataclass(frozen=True)
class Verdicts:
    """All that fired, by severity and time, and how many more series each alert had."""

    found: Sequence[Verdict]
    more: Mapping[str, int]

    def pages(self) -> list[Verdict]:
        """Return those that page."""
        return [verdict for verdict in self.found if verdict.severity == "critical"]

    def first(self) -> Verdict | None:
        """Return the page that fired first, else whatever fired first."""
        return min(self.pages() or self.found, key=lambda verdict: (verdict.fired, verdict.alert), default=None)


def verdicts(asking: Asking, now: float) -> Verdicts:
    """Return what fired on a run and on its nodes."""
    found: list[Verdict] = []
    more: dict[str, int] = {}
    for matchers, within in SCOPES:
        selector = f'ALERTS{{alertstate="firing",{matchers}}}'
        longest = f"topk by (alertname) ({SERIES_PER_ALERT}, count_over_time({selector}[$window] @ end()){within})"
        firing = asking.range(f"{held(selector)} and {longest}")
        if not firing:
            continue
        state = f"ALERTS_FOR_STATE{{{matchers}}}"
        since = asking.range(f"{held(state)} and ignoring (alertstate) {longest}")
        for series in firing:
            began = _since(series.labels, since)
            found += _episodes(asking, series, began)
        counted = asking.at_end(f"count by (alertname) (count_over_time({selector}[$window]){within})")
        for series in counted:
            name = series.labels["alertname"]
            shown = sum(each.labels["alertname"] == name for each in firing)
            if shown < series.value < math.inf:
                more[name] = more.get(name, 0) + int(series.value) - shown
    found = [_exact(asking, verdict) if i < EXACT else verdict for i, verdict in enumerate(sorted(found, key=_urgency))]
    rules = _rules(asking)
    live = abs(now - asking.window.end) < 2 * asking.window.step
    return Verdicts(sorted((_worded(each, rules, live=live) for each in found), key=_urgency), more)


def _urgency(verdict: Verdict) -> tuple[int, float]:
    return verdict.urgency


def _since(labels: Mapping[str, str], since: Iterable[Series]) -> dict[float, float]:
    """Return, for each moment, since when the alert's condition was true."""
    return next((dict(each.samples) for each in since if own_labels(each.labels) == own_labels(labels)), {})


def _episodes(asking: Asking, series: Series, since: Mapping[float, float]) -> Iterator[Verdict]:
    """Yield a verdict for each stretch of cells in which the alert fired."""
    step, window = asking.window.step, asking.window
    times = [time for time, _ in series.samples]
    starts = [i for i, time in enumerate(times) if not i or time - times[i - 1] > 1.5 * step]
    for i, last in zip(starts, [*(i - 1 for i in starts[1:]), len(times) - 1], strict=True):
        first = times[i]
        yield Verdict(
            series.labels["alertname"],
            {name: text for name, text in series.labels.items() if name != "__name__"},
            since.get(times[last]),
            max(first - step, window.start),
            times[last],
            before=first - step < window.start,
            still=times[last] > window.end - step / 2,
        )


def _exact(asking: Asking, verdict: Verdict) -> Verdict:
    """Return a verdict with the moment it fired to a sixtieth of a step; it is not kept as a query of the picture."""
    step = asking.window.step
    if verdict.before:
        return verdict
    matchers = ",".join(f'{name}="{_quoted(text)}"' for name, text in verdict.labels.items())
    try:
        fine = max(1.0, step / 60)
        found = asking.prometheus.range(f"ALERTS{{{matchers}}}", verdict.fired, verdict.fired + step, fine)
    except PrometheusError:
        return verdict  # a step's width is exact enough
    fired = next((time for series in found for time, _ in series.samples), verdict.fired)
    return replace(verdict, fired=fired)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


Rule = Mapping[str, Any]


def _rules(asking: Asking) -> list[Rule]:
    try:
        return asking.prometheus.alerting_rules()
    except PrometheusError as error:
        asking.refused.append(str(error))
        return []


def _worded(verdict: Verdict, rules: Sequence[Rule], *, live: bool) -> Verdict:
    """Return a verdict in the words of its rule: what it says now where it still fires, else its summary."""
    named = [rule for rule in rules if rule["name"] == verdict.alert]
    if not named:
        return verdict
    alike = [rule for rule in named if rule.get("labels", {}).get("severity") == verdict.severity] or named
    runbook = alike[0].get("annotations", {}).get("runbook_url", "")
    words = _summary(alike[0].get("annotations", {}).get("summary", ""), verdict.labels)
    if live and verdict.still:
        active = [
            alert for rule in named for alert in rule.get("alerts", ()) if alert["labels"] == own_labels(verdict.labels)
        ]
        words = next((alert["annotations"].get("description", "") for alert in active), "") or words
    return replace(verdict, words=words, runbook=runbook if re.match(r"https?://", runbook) else "")


def _summary(template: str, labels: Mapping[str, str]) -> str:
    """Return a summary with its labels put in; empty where it holds more, which only Prometheus can fill in."""
    words = _LABEL.sub(lambda found: labels.get(found[1], ""), template)
    return "" if "{{" in words else words
