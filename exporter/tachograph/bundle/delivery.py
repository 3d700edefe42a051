"""Which of our alerts a configuration of Alertmanager delivers: each is sent through its routes and inhibitions.

Routing and inhibition follow dispatch.Route and inhibit.Inhibitor of Alertmanager; times (mute_time_intervals) are left
out, as they are a site's choice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tachograph.bundle import routes, rules
from tachograph.findings.kinds import severities
from tachograph.text.humanize import listed, plural

Labels = Mapping[str, str]
Matcher = tuple[str, str, str]

ALERT, SEVERITY = re.compile(r" +- alert: (\S+)"), re.compile(r" +(?:labels: \{)?severity: '?(\{\{.+?\}\}|\w+)")
TIERS = ("standard", "hero", "dev")
OURS, YOURS = "tachograph", "AlertOfYours"


class Undelivered(NamedTuple):
    """Alerts that do not reach whom they should: what happens to them, why, and what to change."""

    what: str
    then: str


@dataclass(frozen=True)
class _Taken:
    """A route that takes an alert: its path from the root, whether ours is on it, and its receiver."""

    path: tuple[int, ...]
    is_ours: bool
    receiver: str
    matchers: str


def undelivered(theirs: Mapping[str, Any]) -> list[Undelivered]:
    """Return the alerts of ours that the configuration does not deliver; raise ValueError, TypeError, AttributeError.

    Of a configuration without our route nothing is said: `merged` says that, and it decides where they go.
    """
    alerts = list(synthetic_alerts())
    found = [*_lost_on_routes(theirs, alerts), *_inhibited(theirs, alerts)]
    return found if _has_ours(theirs) else []


def _has_route(theirs: Mapping[str, Any]) -> bool:
    return any(routes.parsed(routes.COMPONENT) in _matchers(route) for route in _every(theirs["route"]))


def _has_ours(theirs: Mapping[str, Any]) -> bool:
    """Return whether our routes are there, below one of their own or as the whole configuration."""
    names = {one["receiver"] for one in _every(routes.shipped_configuration()["route"]) if "receiver" in one}
    return _has_route(theirs) or names <= {one.get("receiver") for one in _every(theirs["route"])}


def synthetic_alerts() -> Iterator[dict[str, str]]:
    """Yield one alert of each name, severity and tier, on a run or on a node alone, that the rules can send."""
    for name, severity in sorted({each for text in rules.all_rendered({}).values() for each in _alerts(text)}):
        for tier in TIERS:
            alert = {"component": OURS, "alertname": name, "severity": severity, "instance": "node-1", "tier": tier}
            yield {**alert, "run": "run-1"}
            yield alert


def _alerts(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and severity of the alerts of a rule file, which is not parsed as YAML: that would take a second."""
    name = ""
    for line in text.splitlines():
        if found := ALERT.match(line):
            name = found[1]
        elif name and (found := SEVERITY.match(line)):
            yield from ((name, severity) for severity in severities(found[1]))
            name = ""


def receivers(configuration: Mapping[str, Any], labels: Labels) -> list[str]:
    """Return the receivers to which the configuration sends an alert, as `amtool config routes test` does."""
    return [taken.receiver for taken in _taken(configuration["route"], labels)]


def mutes(rule: Mapping[str, Any], source: Labels, target: Labels) -> bool:
    """Return whether an inhibition keeps the target quiet while the source fires."""
    of_source, of_target = _matchers(rule, "source_"), _matchers(rule, "target_")
    if not (_hold(of_source, source) and _hold(of_target, target)):
        return False
    if _hold(of_source, target) and _hold(of_target, source):
        return False
    return all(source.get(name, "") == target.get(name, "") for name in rule.get("equal") or ())


def _lost_on_routes(theirs: Mapping[str, Any], alerts: Sequence[Labels]) -> Iterator[Undelivered]:
    known = theirs.get("receivers") or ()
    defined = {one["name"] for one in known}
    notifying = {one["name"] for one in known if any(key.endswith("_configs") and one[key] for key in one)}
    shipped = routes.shipped_configuration()
    has_route = _has_route(theirs)
    nobody: dict[tuple[str, str], list[Labels]] = {}
    others: dict[tuple[str, str], list[Labels]] = {}
    for alert in alerts:
        if receivers(shipped, alert) == ["null"]:
            continue
        taken = _taken(theirs["route"], alert)
        if not any(one.receiver in notifying for one in taken):
            nobody.setdefault((taken[0].matchers, taken[0].receiver), []).append(alert)
        elif has_route and not any(one.is_ours for one in taken):
            others.setdefault((taken[0].matchers, taken[0].receiver), []).append(alert)
    for (matchers, receiver), found in nobody.items():
        is_defined = receiver in defined
        yield Undelivered(
            f"{_named(found)} would not arrive: {matchers} sends to `{receiver}`, which "
            + ("notifies nobody" if is_defined else "is not defined"),
            f"give the receiver `{receiver}` a *_configs" if is_defined else f"add `{receiver}` to `receivers:`",
        )
    for (matchers, receiver), found in others.items():
        yield Undelivered(
            f"{_named(found)} would not come by our route: {matchers} in front of it sends to `{receiver}`, "
            "with its own grouping and times",
            f"move the route {routes.COMPONENT} before it, or give it `continue: true`",
        )


def _inhibited(theirs: Mapping[str, Any], alerts: Sequence[Labels]) -> Iterator[Undelivered]:
    """Yield what silences alerts of other runs and nodes than that of its source, so by accident.

    A source is an alert of ours, or what the matchers of an inhibition name as one of somebody else's.
    """
    shipped = routes.shipped_configuration()
    sent = [alert for alert in alerts if receivers(shipped, alert) != ["null"]]
    elsewhere = [{**alert, "instance": "node-2"} | ({"run": "run-2"} if "run" in alert else {}) for alert in alerts]
    for rule in theirs.get("inhibit_rules") or ():
        of_source, of_target = _matchers(rule, "source_"), _matchers(rule, "target_")
        targets = [alert for alert in sent if _hold(of_target, alert)]
        for sources, whose in (
            ([alert for alert in elsewhere if _hold(of_source, alert)], "an alert of ours on another run"),
            (list(_foreign(of_source)), "an alert of yours"),
        ):
            pairs = ((source, target) for source in sources for target in targets if mutes(rule, source, target))
            if muted := {tuple(target.items()): (source, target) for source, target in pairs}:
                (source, target), *_ = muted.values()
                absent = [name for name in rule.get("equal") or () if name not in source and name not in target]
                why = f": neither has {listed(absent)}, which counts as equal" if absent else ""
                yield Undelivered(
                    f"{_named([target for _, target in muted.values()])} would be silenced by {whose}, through the "
                    f"inhibition {_text(of_source) or 'of everything'} → {_text(of_target)}{why}",
                    'put component!="tachograph" into its target_matchers',
                )


def _foreign(of_source: Iterable[Matcher]) -> Iterator[dict[str, str]]:
    """Yield an alert of somebody else with the labels that the matchers ask for, if there can be one."""
    labels = {"alertname": YOURS}
    for name, operator, value in of_source:
        if operator == "=":
            labels[name] = value
        elif operator == "=~":
            first = value.partition("|")[0].strip("()")
            labels[name] = first if re.fullmatch(r"[\w-]+", first) else "any"
    if labels.get("component") != OURS and _hold(of_source, labels):
        yield labels


def _taken(
    route: Mapping[str, Any], labels: Labels, path: tuple[int, ...] = (), above: _Taken | None = None
) -> list[_Taken]:
    """Return the routes that take an alert, which matches this one or that reaches it as the root."""
    found = _matchers(route)
    here = _Taken(
        path,
        (above is not None and above.is_ours) or routes.parsed(routes.COMPONENT) in found,
        str(route.get("receiver") or (above.receiver if above is not None else "")),
        f"the route {_text(found)}" if above is not None else "the root",
    )
    taken: list[_Taken] = []
    for place, child in enumerate(route.get("routes") or ()):
        if _hold(_matchers(child), labels):
            taken += _taken(child, labels, (*path, place), here)
            if not child.get("continue"):
                break
    return taken or [here]


def _every(route: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield route
    for child in route.get("routes") or ():
        yield from _every(child)


def _matchers(holder: Mapping[str, Any], side: str = "") -> list[Matcher]:
    """Return the matchers of a route or of one side of an inhibition, in each of the three notations."""
    found = [one for text in holder.get(f"{side}matchers") or () for one in routes.all_parsed(text)]
    for operator, key in (("=", f"{side}match"), ("=~", f"{side}match_re")):
        found += [(name, operator, str(value)) for name, value in (holder.get(key) or {}).items()]
    return found


def _hold(matchers: Iterable[Matcher], labels: Labels) -> bool:
    return all(_holds(matcher, labels) for matcher in matchers)


def _holds(matcher: Matcher, labels: Labels) -> bool:
    name, operator, value = matcher
    given = labels.get(name, "")
    same = given == value if operator in ("=", "!=") else re.fullmatch(value, given) is not None
    return same if operator in ("=", "=~") else not same


def _named(alerts: Sequence[Labels]) -> str:
    """Return of what alerts a group consists: their names, severities and tiers."""
    names = list(dict.fromkeys(alert["alertname"] for alert in alerts))
    severities = sorted({alert["severity"] for alert in alerts})
    tiers = [tier for tier in TIERS if any(alert["tier"] == tier for alert in alerts)]
    of = "" if len(tiers) == len(TIERS) else f", tier {' and '.join(tiers)}"
    which = names[0] if len(names) == 1 else f"{plural(len(names), 'alert')} ({listed(names, 3)})"
    return f"{which} ({' and '.join(severities)}{of})"


def _text(matchers: Iterable[Matcher]) -> str:
    return ", ".join(f'{name}{operator}"{value}"' for name, operator, value in matchers)
