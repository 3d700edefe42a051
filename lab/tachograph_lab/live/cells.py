"""A fleet in two cells, as `tachograph bundle --scale-out` has it: a Prometheus in each, and a level above, twice."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tachograph.bundle import scale_out
from tachograph.bundle.site import Site
from tachograph_lab import binaries
from tachograph_lab.live.watched_fleet import WatchedFleet
from tachograph_lab.monitoring import SHIPPED_PAGER, Monitoring
from tachograph_lab.processes import free_port
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.definition import SCRAPE_SECONDS

CELLS = ("a", "b")
REPLICAS = ("0", "1")
PEER_TIMEOUT = "--cluster.peer-timeout=5s"
"""Shorter than the `group_interval` of pages, or the one that waits for the other repeats what has ended."""


class Cells(Monitoring):
    """Two cells, each with half of the nodes, and a level above with the bundle's own configuration.

    Two replicas of the level above judge runs, and a pair of Alertmanagers notifies.
    """

    parts: Sequence[str] = (
        *(f"alertmanager-{each}" for each in REPLICAS), *(f"above-{each}" for each in REPLICAS),
        *(f"cell-{each}" for each in CELLS),
    )  # fmt: skip
    store = "above-0"
    ruler = "above-0"
    cells: Mapping[str, Sequence[str]]
    """The nodes of each cell."""
    scrape_seconds = 0
    """The interval of scrapes instead of the shipped one, if not 0."""

    def _cluster(self, replica: str) -> list[str]:
        """Return the flags by which an Alertmanager finds the other one."""
        raise NotImplementedError

    def _programs(self) -> dict[str, Path]:
        found = super()._programs()
        kinds = {"alertmanager": "alertmanager", "above": "prometheus", "cell": "prometheus"}
        return {part: found[kinds[part.partition("-")[0]]] for part in self.parts}

    def _arguments(self, part: str) -> list[str]:
        kind, _, name = part.partition("-")
        if kind == "alertmanager":
            return [
                f"--config.file={self.folder / 'alertmanager/alertmanager.yml'}",
                f"--storage.path={self._data(part)}",
                f"--web.external-url={self.url(part)}",
                *self._cluster(name),
                PEER_TIMEOUT,
            ]
        above = kind == "above"
        file = f"above/prometheus-{name}.yml" if above else f"cells/{name}/prometheus.yml"
        return [
            f"--config.file={self.folder / file}",
            f"--storage.tsdb.path={self._data(part)}",
            f"--web.external-url={self.url(part)}",
            "--rules.alert.for-grace-period=15s",
            *(["--web.enable-remote-write-receiver"] if above else []),
        ]

    def _render(self) -> None:
        """Write the bundle; only addresses differ from it."""
        site = Site({}, scrape_seconds=self.scrape_seconds)
        above, alertmanagers = (
            [self.address(f"{kind}-{each}") for each in REPLICAS] for kind in ("above", "alertmanager")
        )
        plan = scale_out.ScaleOut(self.cells, scale_out.PORTS, above, alertmanagers)
        for part in ("above", "cells", "alertmanager"):
            shutil.rmtree(self.folder / part, ignore_errors=True)
        for name, text in scale_out.files(site, plan).items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace(SHIPPED_PAGER, self._pager_url), encoding="utf-8")
        for cell in CELLS:
            path = self.folder / f"cells/{cell}/targets/prometheus.yml"
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace("localhost:9090", self.address(f"cell-{cell}")), encoding="utf-8")

    def aim(self, file: str, instances: Mapping[str, str]) -> None:
        """Write the targets of a file to each cell's `targets/`: those of its nodes."""
        for cell, nodes in self.cells.items():
            targets = [(address, {"instance": name}) for name, address in instances.items() if name in nodes]
            self._write_targets(file, targets, f"cells/{cell}")


class CellFleet(Cells, WatchedFleet):
    """A scenario's fleet of which the first half of the nodes is cell a and the others cell b.

    A page takes two more writes than with one Prometheus.
    """

    later_seconds = 10.0

    def __init__(self, scenario: Scenario, folder: Path, pager_url: str, *, suite: str = binaries.SYSTEM) -> None:
        super().__init__(scenario, folder, pager_url, suite=suite)
        nodes = dict.fromkeys(run.fleet.node_name(n) for run in scenario.every_run for n in range(run.fleet.nodes))
        self.cells = halves(list(nodes))
        seconds = round(scenario.scrape)
        self.scrape_seconds = 0 if seconds == SCRAPE_SECONDS else seconds
        self._gossip = {replica: free_port() for replica in REPLICAS}

    def _cluster(self, replica: str) -> list[str]:
        return [
            f"--cluster.listen-address=127.0.0.1:{self._gossip[replica]}",
            *(f"--cluster.peer=127.0.0.1:{port}" for other, port in self._gossip.items() if other != replica),
        ]


def halves(nodes: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return nodes by cell: the first half is cell a, the others cell b."""
    half = (len(nodes) + 1) // 2
    return dict(zip(CELLS, (nodes[:half], nodes[half:]), strict=True))
