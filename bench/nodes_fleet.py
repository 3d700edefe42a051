"""The fleet of bench/nodes.py: nodes with real exporters and ranks, and what watches them, on hosts of their own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nodes_network import Network, mount_small_disk
from nodes_rank import RUN
from tachograph import wire
from tachograph.servers.prometheus_api import Prometheus, PrometheusError
from tachograph_lab import binaries
from tachograph_lab.demo.stack import NODE_COLLECTORS
from tachograph_lab.live.cells import Cells, halves
from tachograph_lab.monitoring import START_SECONDS, Monitoring
from tachograph_lab.processes import Children, ProcessError, answers

NODES = tuple(f"node-{number}" for number in range(4))
RANKS_PER_NODE = 2
RANKS = RANKS_PER_NODE * len(NODES)
EXPORTER_PORT, HOST_PORT = 10024, 9100
PORTS = {"alertmanager": 9093, "above": 9090, "cell": 9090, "prometheus": 9090}
"""The usual ports, by the kind of a program."""

SEEN_SECONDS, END_SECONDS = 60.0, 20.0
SMALL_DISK_MB = 48
RANK_PROGRAM = Path(__file__).with_name("nodes_rank.py")


class Nodes:
    """The nodes: an exporter, a node_exporter and two ranks on each. `python` is that of the release they run."""

    def __init__(self, network: Network, children: Children, folder: Path, node_exporter: Path) -> None:
        self._network, self._children, self._folder = network, children, folder
        self._node_exporter = node_exporter

    def start(self, python: str = sys.executable) -> None:
        """Start everything on all nodes."""
        for node in NODES:
            self.start_exporter(node, python)
            self._start_host(node)
        for rank in range(RANKS):
            self.start_rank(rank, python)

    def start_exporter(self, node: str, python: str = sys.executable) -> None:
        """Start the exporter of a node, for the first time or again, and return once it answers here."""
        command = [*self._network.within(node), python, "-m", "tachograph", "exporter", "--no-gpu", "--gpu.kmsg="]
        command += ["--socket", str(self._socket(node)), f"--web.listen-address=:{EXPORTER_PORT}"]
        child = self._children.start(f"exporter-{node}", command)
        child.wait_until(lambda: answers(f"http://{node}:{EXPORTER_PORT}/-/ready"), START_SECONDS)

    def start_rank(self, rank: int, python: str = sys.executable) -> None:
        """Start a rank on its node."""
        node = NODES[rank // RANKS_PER_NODE]
        command = [*self._network.within(node), python, RANK_PROGRAM, rank, RANKS, NODES[0], self._folder]
        self._children.start(
            f"rank-{rank}", list(map(str, command)), {wire.SOCKET_ENVIRONMENT: str(self._socket(node))}
        )

    def stick(self, rank: int) -> None:
        """Have a rank stand still in its input."""
        (self._folder / f"stuck-{rank}").touch()

    def end_ranks(self) -> None:
        """Have all ranks end after the same step, as a training does that is finished; return once they have."""
        end = self._folder / "end"
        end.touch()
        ranks = [child for child in self._children.running if child.name.startswith("rank-")]
        await_condition(lambda: not any(child.running for child in ranks), END_SECONDS, "the ranks did not end")
        for child in ranks:
            self._children.end(child.name)
        end.unlink()

    def parts_of(self, node: str) -> list[str]:
        """Return the names of the processes on a node."""
        first = NODES.index(node) * RANKS_PER_NODE
        ranks = [f"rank-{first + number}" for number in range(RANKS_PER_NODE)]
        return [*ranks, f"exporter-{node}", f"host-{node}"]

    def _start_host(self, node: str) -> None:
        collectors = [f"--collector.{name}" for name in NODE_COLLECTORS]
        listening = f"--web.listen-address=:{HOST_PORT}"
        self._children.start(f"host-{node}", [*self._network.within(node), self._node_exporter, listening, *collectors])

    def _socket(self, node: str) -> Path:
        folder = self._folder / node
        folder.mkdir(exist_ok=True)
        return folder / "rank.sock"


class OnHosts(Monitoring):
    """Monitoring of which each program is on a host of its own, at the usual port, and the nodes that it watches."""

    hosts: Sequence[str]
    judges: Sequence[str]
    """The Prometheus that have all series of runs."""
    small_disk = ""
    """The program whose data is on a small disk of its own, if any."""

    def __init__(self, network: Network, folder: Path, pager_url: str, *, suite: str = binaries.SYSTEM) -> None:
        super().__init__(folder, pager_url, suite=suite)
        self.network = network
        self.nodes = Nodes(network, self.children, folder, binaries.find(suite)["node_exporter"])

    def address(self, part: str) -> str:
        """Return host and port of a program."""
        return f"{part}:{PORTS[part.partition('-')[0]]}"

    def data(self, part: str) -> Path:
        """Return the folder in which a program keeps its data."""
        return self._data(part)

    def kill(self, part: str) -> None:
        """End a program without a chance to save or to say so."""
        for child in self.children.running:
            if child.name == part:
                child.process.kill()
        self.children.end(part)

    def wait_seen(self) -> None:
        """Return once every judge shows every rank training; raise ProcessError."""
        await_condition(
            lambda: all(self._sees_all(part) for part in self.judges), SEEN_SECONDS, "not every rank is seen"
        )

    def _sees_all(self, part: str) -> bool:
        found = self.ask(part, f'sum(tachograph_run_ranks{{run="{RUN}",state="running"}})')
        return bool(found) and found[0] == RANKS

    def ask(self, part: str, expression: str) -> list[float]:
        """Return the values of an instant query of one Prometheus, none while it does not answer."""
        try:
            return [each.value for each in Prometheus(self.url(part)).instant(expression)]
        except PrometheusError:
            return []

    def _within(self, part: str) -> Sequence[str]:
        return self.network.within(part)


class TwoCells(OnHosts, Cells):
    """Two cells and a level above."""

    cells = halves(NODES)
    hosts = (*NODES, *Cells.parts)
    judges = ("above-0", "above-1")

    def _start_nodes(self) -> None:
        if self.small_disk:
            mount_small_disk(self.data(self.small_disk), SMALL_DISK_MB)
        self.nodes.start()

    def _cluster(self, replica: str) -> list[str]:
        other = next(part for part in self.parts if part.startswith("alertmanager") and not part.endswith(replica))
        return ["--cluster.listen-address=0.0.0.0:9094", f"--cluster.peer={other}:9094"]


def await_condition(met: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Return once a condition is met; raise ProcessError if that takes longer."""
    deadline = time.monotonic() + seconds
    while not met():
        if time.monotonic() > deadline:
            raise ProcessError(f"{otherwise} after {seconds:.0f} s")
        time.sleep(0.25)
