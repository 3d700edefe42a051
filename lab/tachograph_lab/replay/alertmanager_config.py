"""The parts of an Alertmanager configuration that decide who is notified of what, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tachograph.files import shipped
from tachograph.text import duration
from tachograph_lab.replay import matchers
from tachograph_lab.replay.matchers import LabelMatchers, all_hold
from tachograph_lab.replay.time_intervals import TimeInterval

_WAITS = {"group_wait": "30s", "group_interval": "5m", "repeat_interval": "4h"}
"""Alertmanager's own defaults."""

_SENDS_RESOLVED = frozenset({
    "webhook_configs", "pagerduty_configs", "opsgenie_configs", "victorops_configs", "pushover_configs",
    "telegram_configs", "discord_configs", "webex_configs", "msteams_configs", "msteamsv2_configs", "sns_configs",
    "jira_configs", "rocketchat_configs", "incidentio_configs",
})  # fmt: skip
"""Integrations whose `send_resolved` defaults to true; for mail, Slack and WeChat it is false."""


@dataclass(frozen=True)
class Route:
    """A node of the routing tree with its inherited settings; `group_by` None groups by all labels."""

    key: str
    receiver: str
    matchers: LabelMatchers
    group_by: frozenset[str] | None
    group_wait: float
    group_interval: float
    repeat_interval: float
    goes_on: bool
    muted: tuple[str, ...]
    active: tuple[str, ...]
    children: tuple[Route, ...] = ()

    def of(self, labels: Mapping[str, str]) -> Iterator[Route]:
        """Yield an alert's routes: the deepest that match, and only the first child's unless that sets `continue`."""
        if not all_hold(self.matchers, labels):
            return
        found = False
        for child in self.children:
            for route in child.of(labels):
                found = True
                yield route
            if found and not child.goes_on and all_hold(child.matchers, labels):
                break
        if not found:
            yield self


@dataclass(frozen=True)
class Inhibition:
    """While a source fires, targets with the same values of the labels in `equal` are inhibited."""

    source: LabelMatchers
    target: LabelMatchers
    equal: tuple[str, ...]

    def equal_values(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return the values to compare; a missing label counts as empty."""
        return tuple(labels.get(name, "") for name in self.equal)

    def holds(self, source: Mapping[str, str], target: Mapping[str, str]) -> bool:
        """Return whether one alert inhibits another; of two that each match both sides neither does."""
        return (
            all_hold(self.target, target)
            and all_hold(self.source, source)
            and self.equal_values(source) == self.equal_values(target)
            and not (all_hold(self.source, target) and all_hold(self.target, source))
        )


@dataclass(frozen=True)
class Configuration:
    """Routes, inhibitions, and for each receiver whether it gets resolved alerts; None: it sends nothing at all."""

    route: Route
    inhibitions: tuple[Inhibition, ...]
    receivers: Mapping[str, bool | None]
    time_intervals: Mapping[str, tuple[TimeInterval, ...]] = field(default_factory=dict)


def read(path: Path) -> Configuration:
    """Read a configuration file."""
    content = shipped.read_yaml(path)
    intervals = [*(content.get("time_intervals") or ()), *(content.get("mute_time_intervals") or ())]
    return Configuration(
        route=_route(content["route"], {**_WAITS, "group_by": []}, "0"),
        inhibitions=tuple(map(_inhibition, content.get("inhibit_rules") or ())),
        receivers={receiver["name"]: _sends_resolved(receiver) for receiver in content["receivers"]},
        time_intervals={one["name"]: tuple(map(TimeInterval.read, one["time_intervals"])) for one in intervals},
    )


def _route(section: Mapping[str, Any], inherited: Mapping[str, Any], key: str) -> Route:
    settings = {**inherited, **{name: section[name] for name in ("receiver", "group_by", *_WAITS) if name in section}}
    group_by = settings["group_by"] or ()
    return Route(
        key=key,
        receiver=settings["receiver"],
        matchers=matchers.read(section),
        group_by=None if "..." in group_by else frozenset(group_by),
        **{name: duration.parse(str(settings[name])) for name in _WAITS},
        goes_on=bool(section.get("continue")),
        muted=tuple(section.get("mute_time_intervals") or ()),
        active=tuple(section.get("active_time_intervals") or ()),
        children=tuple(_route(child, settings, f"{key}/{i}") for i, child in enumerate(section.get("routes") or ())),
    )


def _inhibition(section: Mapping[str, Any]) -> Inhibition:
    return Inhibition(
        source=matchers.read(section, "source_"),
        target=matchers.read(section, "target_"),
        equal=tuple(section.get("equal") or ()),
    )


def _sends_resolved(receiver: Mapping[str, Any]) -> bool | None:
    resolved = [
        bool(one.get("send_resolved", kind in _SENDS_RESOLVED))
        for kind, ones in receiver.items()
        if kind.endswith("_configs")
        for one in ones or ()
    ]
    return any(resolved) if resolved else None
