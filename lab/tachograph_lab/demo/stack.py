"""The whole stack on loopback: exporter, node_exporter, Prometheus and Alertmanager with the shipped configuration."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tachograph_lab import binaries
from tachograph_lab.fake_nvml.library import lacks_nvml, simulated_gpus
from tachograph_lab.monitoring import START_SECONDS, Monitoring, get
from tachograph_lab.processes import Child, answers

SIMULATED_GPUS = 4
NODE_COLLECTORS = ("filesystem", "infiniband", "meminfo", "netclass", "netdev", "pressure")
"""The collectors of node_exporter that the rules need; a distribution's package may disable some of them."""


class Stack(Monitoring):
    """The running stack of one node, as a context manager.

    `gpus` are environment variables that give the exporter its GPUs; by default this machine's, else simulated ones.
    """

    parts: Sequence[str] = ("exporter", "node_exporter", "alertmanager", "prometheus")
    exporter_options: Sequence[str] = ()

    def __init__(
        self,
        folder: Path,
        pager_url: str,
        *,
        suite: str = binaries.SYSTEM,
        keep: bool = False,
        gpus: Mapping[str, str] | None = None,
        intervals: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(folder, pager_url, suite=suite, keep=keep, intervals=intervals)
        self.simulated_gpus = SIMULATED_GPUS if gpus is None and lacks_nvml() else 0
        self.exporter: Child
        self._gpu_environment = gpus or {}

    def scrape(self) -> str:
        """Return the exporter's metrics now."""
        return get(f"{self.url('exporter')}/metrics")

    def start_exporter(self) -> None:
        """Start the exporter on its address and socket, for the first time or again."""
        command = [sys.executable, "-m", "tachograph", "exporter", "--web.listen-address", self.address("exporter")]
        command += ["--socket", str(self.socket), *self.exporter_options]
        self.exporter = self.children.start("exporter", command, self._gpu_environment)
        self.exporter.wait_until(lambda: answers(f"{self.url('exporter')}/-/ready"), START_SECONDS)

    @property
    def socket(self) -> Path:
        """The path of the socket to which ranks connect."""
        return self.scratch / "rank.sock"

    def _start_nodes(self) -> None:
        self.aim("tachograph", {self.node: self.address("exporter")})
        self.aim("node", {self.node: self.address("node_exporter")})
        if self.simulated_gpus:
            self._gpu_environment = simulated_gpus(self.folder / "nvml", self.simulated_gpus)
        self.start_exporter()

    def _arguments(self, part: str) -> list[str]:
        if part == "node_exporter":
            return [f"--collector.{name}" for name in NODE_COLLECTORS]
        return super()._arguments(part)
