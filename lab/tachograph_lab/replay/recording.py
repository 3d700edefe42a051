"""The recording of everything that Prometheus would scrape from a simulated fleet, node by node.

Prometheus scrapes its targets at different moments of the interval, by a hash of each. So does a recording, on a grid
of one second: node i's exporter at (i mod 5) seconds of every five, its host's page two seconds later; of longer
intervals at (11 i) seconds, which spreads few nodes over all of it. A rule then sees nodes as they were up to an
interval ago, with the samples' real timestamps, some of them before a fault and some after.
Gaps make promtool read more text; in a recording of more than `STAGGERED_RANK_SECONDS` all targets share one moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from tachograph.node.ranks.saved_totals import SavedTotals
from tachograph_lab.fleet.cluster import simulate
from tachograph_lab.fleet.cluster_node import ClusterNode
from tachograph_lab.fleet.messages import RankMessage
from tachograph_lab.fleet.simulated_node import SimulatedNode
from tachograph_lab.fleet.virtual_node import VirtualNode
from tachograph_lab.replay.scraped import ScrapedSeries, Target
from tachograph_lab.scenario import Scenario

EXPORTER_JOB, NODE_JOB = "tachograph", "node"
"""The jobs of the shipped prometheus.yml whose targets are the nodes."""


STAGGERED_RANK_SECONDS = 400_000
"""Up to here – ranks times seconds of the scenario – each target has its own moment; beyond, all share one."""

GRID_SECONDS = 1.0
HOST_LATER = 0.4
"""The part of an interval from the scrape of a node's exporter to that of its host's page."""

STATE_SECONDS = 5.0
"""The longest time between two states that a rank sends here; a real one sends one a second."""

APART = 11
"""Grid steps from the scrape of a node to that of the next one, where an interval is longer than `STATE_SECONDS`."""


class Recording:
    """Everything scraped, every `scrape_seconds` on a grid of `grid_seconds`, from second 0 to `seconds`."""

    def __init__(
        self, targets: Sequence[Target], scrape_seconds: float, seconds: float, grid_seconds: float | None = None
    ) -> None:
        self._targets = targets
        self.scrape_seconds = scrape_seconds
        self.seconds = seconds
        self.grid_seconds = grid_seconds or scrape_seconds

    @property
    def spacing(self) -> int:
        """Grid steps from a target's scrape to its next."""
        return round(self.scrape_seconds / self.grid_seconds)

    def series(self) -> Iterator[ScrapedSeries]:
        """Yield every series, target by target."""
        for target in self._targets:
            yield from target.series()


class _Now:
    """The scenario's clock, advanced by `record`."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class _Rhythm(NamedTuple):
    """When a node is scraped, in steps: its exporter's page at `moment` of every `spacing`, its host's at `later`.

    Its ranks send their states at least every `states` steps.
    """

    moment: int
    later: int
    spacing: int
    states: int


class _RecordedNode:
    """A node, the exporter that is running on it, if any, and its two scraped pages."""

    def __init__(
        self,
        node: SimulatedNode | ClusterNode,
        clock: Callable[[], float],
        kept: Collection[str],
        rhythm: _Rhythm,
        flags: Sequence[str],
    ) -> None:
        self._node = node
        self._start: Callable[[SavedTotals | None], VirtualNode] = lambda memory: VirtualNode(
            node, clock, memory, flags
        )
        self._exporter: VirtualNode | None = None
        self._memory: SavedTotals | None = None
        self._rhythm = rhythm
        self._kept = kept
        self._exporter_page = Target(EXPORTER_JOB, node.name, kept, rhythm.moment)
        self._node_page = Target(NODE_JOB, node.name, kept, rhythm.later)
        self._second_pages: dict[tuple[str, str], Target] = {}

    def targets(self, with_host: bool) -> Iterator[Target]:
        """Yield its pages as Prometheus scraped them, with that of its host or without."""
        yield self._exporter_page
        yield from self._second_pages.values()
        if with_host:
            yield self._node_page

    def is_due(self, step: int) -> bool:
        """Return whether its ranks send their states at a step: before each scrape, and in between."""
        return (step % self._rhythm.spacing - self._rhythm.moment) % self._rhythm.states == 0

    def receive(self, messages: Sequence[RankMessage]) -> None:
        """Pass the ranks' messages to the exporter, which is started if it was down; one that is down gets none."""
        if not (self._node.up and self._node.exporter_up):
            if self._exporter is not None:
                self._memory = self._exporter.memory
            if not self._node.up:
                self._memory = None
            self._exporter = None
            return
        self._exporter = self._exporter or self._start(self._memory)
        for message in messages:
            self._exporter.receive(message)

    def scrape(self, step: int) -> None:
        """Scrape the pages that are due, if they can be reached."""
        reachable = self._node.up and self._node.reachable
        if step % self._rhythm.spacing == self._rhythm.moment:
            if self._exporter is not None:
                self._exporter.tick()
            exporter = self._exporter if reachable else None
            if self._node.listed:
                self._exporter_page.scrape_exporter(None if exporter is None else exporter.samples())
            else:
                self._exporter_page.leave()
            if self._node.second is not None and self._node.second not in self._second_pages:
                self._second_pages[self._node.second] = Target(*self._node.second, self._kept, step)
            for known, page in self._second_pages.items():
                if known == self._node.second:
                    page.scrape_exporter(None if exporter is None else exporter.samples())
                else:
                    page.leave()
        if step % self._rhythm.spacing == self._rhythm.later:
            self._node_page.scrape(self._node.host_samples() if reachable else None)


def is_staggered(scenario: Scenario) -> bool:
    """Return whether each target of a scenario's recording has its own moment."""
    return scenario.ranks * scenario.lasts <= STAGGERED_RANK_SECONDS


def record(scenario: Scenario, kept: Collection[str]) -> Recording:
    """Simulate a scenario and scrape its nodes' exporters and hosts; keep the metrics named in `kept`.

    Ranks send their state right before each scrape, and every five seconds where scrapes are rarer, and their exporter
    ticks; other messages, such as a bye, arrive within a second, or five where all targets share one moment. Scenario
    second 0 is Unix time 0, where promtool's clock starts.
    """
    scrape_seconds, staggered = scenario.scrape, is_staggered(scenario)
    step_seconds = GRID_SECONDS if staggered else scrape_seconds / math.ceil(scrape_seconds / STATE_SECONDS)
    now = _Now()
    simulation = simulate(scenario, epoch=0.0)
    spacing = round(scrape_seconds / step_seconds)
    states = min(spacing, round(STATE_SECONDS / step_seconds))
    apart = 0 if not staggered else APART if spacing > states else 1
    later = round(HOST_LATER * spacing) if staggered else 0
    moments = [number * apart % spacing for number in range(len(simulation.nodes))]
    flags = [f"--limits.{name}={value}" for name, value in scenario.site_limits.set().items()]
    nodes = {
        node.name: _RecordedNode(node, now, kept, _Rhythm(moment, (moment + later) % spacing, spacing, states), flags)
        for node, moment in zip(simulation.nodes, moments, strict=True)
    }
    steps = int(scenario.lasts // step_seconds)
    for step in range(steps + 1):
        now.seconds = step * step_seconds
        simulation.advance(now.seconds)
        received: dict[str, list[RankMessage]] = {name: [] for name in nodes}
        for message in simulation.messages({name for name, node in nodes.items() if node.is_due(step)}):
            received[message.node].append(message)
        for name, node in nodes.items():
            node.receive(received[name])
            node.scrape(step)
    targets = [target for node in nodes.values() for target in node.targets(scenario.node_exporter)]
    return Recording(targets, scrape_seconds, steps * step_seconds, GRID_SECONDS if staggered else scrape_seconds)
