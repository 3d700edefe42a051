"""A scenario of several runs in simulated time: each run is simulated, and nodes that they share are one."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace

from tachograph_lab.fleet.cluster_node import ClusterNode
from tachograph_lab.fleet.messages import RankMessage
from tachograph_lab.fleet.simulated_node import SimulatedNode
from tachograph_lab.fleet.simulation import EPOCH, Simulation
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.faults import (
    ClockSkew,
    DuplicateTarget,
    ExporterDown,
    Fault,
    IdlePortDown,
    LinkDown,
    NodeDown,
    Rollout,
    ScrapeBlocked,
    ScrapeFailure,
    ScrapeLost,
    Vanish,
)

_AT_A_NODE = (ExporterDown, IdlePortDown, LinkDown, NodeDown, ScrapeBlocked, ScrapeFailure)
_AT_NODES = (ClockSkew, DuplicateTarget, ScrapeLost, Vanish)
"""Faults of nodes, which concern every run on them."""


class SimulatedCluster:
    """Runs all runs of a scenario; `nodes` are those of the cluster, by name."""

    def __init__(self, scenario: Scenario, epoch: float = EPOCH) -> None:
        self._runs = [
            Simulation(replace(run, scrape=scenario.scrape, faults=tuple(_faults(scenario, run))), epoch, number)
            for number, run in enumerate(scenario.every_run)
        ]
        parts: dict[str, list[SimulatedNode]] = {}
        for run in self._runs:
            for node in run.nodes:
                parts.setdefault(node.name, []).append(node)
        self.nodes: Sequence[SimulatedNode | ClusterNode] = [
            shared[0] if len(shared) == 1 else ClusterNode(shared) for _, shared in sorted(parts.items())
        ]

    @property
    def now(self) -> float:
        """The second to which it was last advanced."""
        return self._runs[0].now

    def advance(self, now: float) -> None:
        """Run everything that is due up to second `now` of the scenario."""
        for run in self._runs:
            run.advance(now)

    def messages(self, nodes: Container[str] | None = None) -> list[RankMessage]:
        """Return all messages from ranks since the last call, run by run; see `Simulation`."""
        return [message for run in self._runs for message in run.messages(nodes)]


def simulate(scenario: Scenario, epoch: float = EPOCH) -> Simulation | SimulatedCluster:
    """Return the simulation of a scenario, of one run or of several."""
    return SimulatedCluster(scenario, epoch) if scenario.runs else Simulation(scenario, epoch)


def _faults(scenario: Scenario, run: Scenario) -> Iterator[Fault]:
    """Yield a run's own faults, and what happens to its nodes in those of the others."""
    yield from run.faults
    for other in scenario.every_run:
        if other is not run:
            for fault in _one_by_one(other.faults):
                yield from _seen_from(run, other, fault)


def _one_by_one(faults: Iterable[Fault]) -> Iterator[Fault]:
    for fault in faults:
        yield from fault.downs() if isinstance(fault, Rollout) else [fault]


def _seen_from(run: Scenario, other: Scenario, fault: Fault) -> Iterator[Fault]:
    """Yield a fault of another run's nodes with the numbers that these have in this run, if it has any of them."""
    shift = other.fleet.first_node - run.fleet.first_node
    if isinstance(fault, _AT_NODES):
        nodes = tuple(node + shift for node in fault.nodes if 0 <= node + shift < run.fleet.nodes)
        if nodes:
            yield replace(fault, nodes=nodes)
    elif isinstance(fault, _AT_A_NODE) and 0 <= fault.node + shift < run.fleet.nodes:
        yield replace(fault, node=fault.node + shift)
