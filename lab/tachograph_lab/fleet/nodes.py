"""A node of the fleet: what can be reached on it, its GPUs, and what node_exporter says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tachograph_lab.fleet.gpus import SimulatedGpus
from tachograph_lab.fleet.host import Host
from tachograph_lab.scenario.faults import ScrapeBlocked, ScrapeFailure

SCRAPE_SECONDS = 5.0
"""Length of a failed scrape: as far as scrapes are apart."""


class SimulatedNode:
    """One node, as of the second to which its simulation was advanced last.

    `exporter_up`: its exporter runs; one that is up again is a new one. `up`: the node itself runs, and with it all
    exporters. `reachable`: Prometheus can scrape it.
    """

    def __init__(self, name: str, gpus: SimulatedGpus, host: Host) -> None:
        self.name = name
        self.gpus = gpus
        self.exporter_up = True
        self.up = True
        self.reachable = True
        self._host = host

    def host_samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Yield what node_exporter says of this node, as far as our rules and dashboards read it."""
        return self._host.samples()


def is_unreachable(fault: ScrapeFailure | ScrapeBlocked, node: int, now: float) -> bool:
    """Return whether a fault keeps Prometheus from a node's scrape at a second."""
    if fault.node != node or not fault.at <= now < fault.until:
        return False
    if isinstance(fault, ScrapeBlocked):
        return True
    since = (now - fault.at) % fault.every if fault.every is not None else now - fault.at
    return since < SCRAPE_SECONDS
