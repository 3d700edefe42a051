"""Which nodes, GPUs and links were culprits, how often, and whether that could be chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tachograph.findings.kinds import NIC_DOWN, NIC_ERRORS, NIC_SLOW
from tachograph.history.chance import some_node
from tachograph.history.recorded import NodeIncident
from tachograph.servers.prometheus_api import Prometheus, quoted

LINKS: Mapping[str, str] = {
    NIC_DOWN.alert: "max by (device, port) (max_over_time(node:nic_down_seconds:max{{{}}}[5m]))",
    NIC_ERRORS.alert: "max by (device, port) (node:nic_errors:increase1h{{{}}}) > 1000",
    NIC_SLOW.alert: "min by (device, port) (node:nic_speed:ratio{{{}}}) < 1",
}
"""Which ports an alert was about, asked of its node."""
MOST_ASKED = 200
"""Incidents of links that are asked for."""


@dataclass(frozen=True)
class BlamedPart:
    """A node, or a GPU or link of it, and what it was blamed for; `chance`, of a node: that of any to have as many."""

    node: str
    part: str
    incidents: int
    share: float
    alerts: Mapping[str, int]
    runs: Sequence[str]
    last: float
    chance: float | None = None


def nodes(incidents: Sequence[NodeIncident], fleet: int) -> list[BlamedPart]:
    """Return the nodes that were blamed, those with most incidents first, of a fleet of so many."""
    fleet = max(fleet, len({one.node for one in incidents}))
    return _ranked(((one, "") for one in incidents), len(incidents), fleet)


def gpus(incidents: Sequence[NodeIncident]) -> list[BlamedPart]:
    """Return the GPUs that were named, those with most incidents first."""
    named = ((one, f"GPU {one.gpu}" + (f" ({one.uuid})" if one.uuid else "")) for one in incidents if one.gpu)
    return _ranked(named, len(incidents))


def links(prometheus: Prometheus, incidents: Sequence[NodeIncident]) -> list[BlamedPart]:
    """Return the network ports that incidents were about, those with most first; raise PrometheusError."""
    asked = [one for one in incidents if one.alert in LINKS]
    found = []
    for one in sorted(asked, key=lambda one: one.at)[-MOST_ASKED:]:
        expression = LINKS[one.alert].format(f"instance={quoted(one.node)}")
        for port in prometheus.instant(expression, one.at + 60):
            device, number = (port.labels.get(name, "") for name in ("device", "port"))
            found.append((one, f"{device} port {number}" if number else device))
    return _ranked(found, len(incidents))


def _ranked(named: Iterable[tuple[NodeIncident, str]], total: int, fleet: int | None = None) -> list[BlamedPart]:
    groups: dict[tuple[str, str], list[NodeIncident]] = {}
    for one, part in named:
        groups.setdefault((one.node, part), []).append(one)
    found = [
        BlamedPart(
            node,
            part,
            len(ones),
            len(ones) / total,
            dict(Counter(one.alert for one in ones).most_common()),
            sorted({one.run for one in ones if one.run}),
            max(one.at for one in ones),
            None if fleet is None else some_node(len(ones), total, fleet),
        )
        for (node, part), ones in groups.items()
    ]
    return sorted(found, key=lambda one: (-one.incidents, -one.last, one.node, one.part))


def half(found: Sequence[BlamedPart]) -> int:
    """Return how many of the nodes, those with most incidents, have more than half of all; 0 if there is none."""
    total, so_far = sum(one.incidents for one in found), 0
    for number, one in enumerate(found, 1):
        so_far += one.incidents
        if 2 * so_far > total:
            return number
    return 0
