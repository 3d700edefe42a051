"""What `tachograph supervise` costs beside a healthy run: CPU of the supervisor's own process, by nodes of the run.

    bench/supervise_cost.py [--nodes N …] [--looks N]

It also measures the memory that its looks take beyond what the process had before the first.

The nodes are simulated, with 8 ranks each. What their exporters answer is real, and served with another time and later
steps each second over loopback HTTP from one process. In another one the real supervisor looks at them, at
its usual interval, and tells an exporter how it is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

from tachograph.node.web.server import Pages, Server
from tachograph.supervise import policy
from tachograph.supervise.heartbeat import Facts, Heartbeat
from tachograph.supervise.journal import DECISION, Journal
from tachograph.supervise.launcher import ChildCommand
from tachograph.supervise.ledger import SHADOW
from tachograph.supervise.run_seen import RunSeen, Unknown
from tachograph.supervise.several_nodes import SeveralNodes, sources_of
from tachograph.supervise.signals import Signals
from tachograph.supervise.supervisor import POLL_SECONDS, Supervisor
from tachograph.supervise.training import AttemptEnd
from tachograph.watch.private_exporter import private_exporter
from tachograph_lab.fleet.simulation import Simulation
from tachograph_lab.fleet.virtual_node import VirtualNode
from tachograph_lab.scenario.definition import Fleet, Scenario
from tachograph_lab.table import save, show

NODES = (1, 8, 32, 128)
LOOKS = 24
RANKS_PER_NODE = 8
BUDGET_PERCENT = 0.2
JOB = "4711"
NEVER = os.pipe()[0]
READY_SECONDS = 30.0
"""Of the simulation, before the first look: the ranks have made steps by then."""


def serve(nodes: int, told: Connection) -> None:
    """Serve the exporters of a healthy run on so many nodes; tell their addresses."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_serve(nodes, told))


async def _serve(nodes: int, told: Connection) -> None:
    fleet = Fleet(run="bench", nodes=nodes, gpus_per_node=RANKS_PER_NODE)
    epoch = time.time() - READY_SECONDS
    simulation = Simulation(Scenario(title="healthy", story="healthy", lasts=1e6, fleet=fleet), epoch)
    exporters = {node.name: VirtualNode(node, lambda: epoch + simulation.now) for node in simulation.nodes}
    simulation.advance(READY_SECONDS)
    for message in simulation.messages():
        exporters[message.node].receive(message)
    servers = [
        Server("127.0.0.1", 0, Pages(
            samples=lambda: (), status_page=lambda _: "", api_node=_going_on(exporter.api_node()),
            ready=lambda: (True, ""), generation=lambda: int(time.time()),
        )) for exporter in exporters.values()
    ]  # fmt: skip
    told.send([f"http://{await server.open()}" for server in servers])
    while True:
        for server in servers:
            server.tick()
        await asyncio.sleep(1.0)


def _going_on(page: str) -> Callable[[object], str]:
    """Return the page of a node whose ranks make a step each second from now on.

    They say that they are in the supervised job: simulated ones are in none.
    """
    said, began = json.loads(page.replace('"job_id": ""', f'"job_id": "{JOB}"')), time.time()
    ranks = [(rank, rank["step"]) for run in said["runs"] for rank in run["ranks"]]

    def render(_: object) -> str:
        said["time"] = time.time()
        for rank, step in ranks:
            rank["step"] = step + int(said["time"] - began)
        return json.dumps(said)

    return render


class Watch(SeveralNodes):
    """Notes when and after how much CPU each look began, and whether it showed the run."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        super().__init__(sources_of(addresses, ["bench"]), lambda: addresses)
        self.began: list[float] = []
        self.cpu: list[float] = []
        self.unknown: list[str] = []

    def begin(self) -> None:
        """Take the ranks for this attempt's: they trained before it."""

    def look(self, attempt_seconds: float, *, in_turns: bool = False) -> RunSeen | Unknown:
        """Return the run."""
        self.began.append(time.monotonic())
        self.cpu.append(time.process_time())
        seen = super().look(attempt_seconds, in_turns=in_turns)
        if isinstance(seen, Unknown):
            self.unknown.append(seen.why)
        return seen


class Command:
    """An attempt that ends after so many looks; its ranks are the simulation's."""

    pid, job, outlives = 0, JOB, False
    status: int | None = None

    def __init__(self, watch: Watch, looks: int) -> None:
        self._watch, self._looks = watch, looks

    def fileno(self) -> int:
        """Return the descriptor of something that never has news."""
        return NEVER

    def send_signal(self, number: int) -> None:
        """Do nothing: nobody sends any."""

    def has_ended(self) -> bool:
        """Return whether there were enough looks."""
        return len(self._watch.cpu) > self._looks

    def end(self) -> AttemptEnd:
        """Fail: shadow mode ends nothing."""
        raise AssertionError

    def wait(self) -> AttemptEnd:
        """Return that it ended well."""
        return AttemptEnd(0)


def supervise(addresses: Sequence[str], looks: int, socket: Path, folder: Path) -> dict[str, float]:
    """Supervise a run on these nodes for so many looks; return what a look costs."""
    watch = Watch({f"node-{number}": address for number, address in enumerate(addresses)})
    before = own_bytes()
    journal = Journal(folder)
    blind: list[object] = []

    def noted(facts: Facts) -> Facts:
        blind.append(facts["blind_seconds"])
        return facts

    with Heartbeat(str(socket), "bench") as heartbeat, Signals() as signals:
        Supervisor(
            "bench", policy.read(policy.DEFAULT), SHADOW, journal, watch,
            launcher=ChildCommand(lambda _: Command(watch, looks)), keep=lambda *_: "", say=lambda _: None,
            signals=signals, tell=lambda facts: heartbeat.tell(lambda: noted(facts())),
        ).supervise("bench")  # fmt: skip
    journal.close()
    if watch.unknown or any(blind) or any(one["kind"] == DECISION for one in journal.entries):
        raise SystemExit(f"the run is not healthy, or not known: {watch.unknown[:1]}")
    # The first look warms up; those after the command has ended follow one another.
    cpu, began = watch.cpu[1 : looks + 1], watch.began[1 : looks + 1]
    each = [1e3 * (after - before) for before, after in pairwise(cpu)]
    mean = sum(each) / len(each)
    apart = statistics.median(after - before for before, after in pairwise(began))
    if apart < POLL_SECONDS:
        raise SystemExit(f"something seemed wrong with the run: it was looked at every {apart:.1f} s")
    return {
        "nodes": len(addresses), "s between looks": apart, "ms a look": mean, "median": statistics.median(each),
        "% of a core": mean / 10 / apart, "MB more": (own_bytes() - before) / 1e6,
    }  # fmt: skip


def own_bytes() -> int:
    """Return the memory that this process has for itself alone."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def measured(nodes: int, looks: int, socket: Path) -> dict[str, float]:
    """Return what a look at a run on so many nodes costs, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        here, there = multiprocessing.Pipe()
        server = multiprocessing.Process(target=serve, args=(nodes, there), daemon=True)
        server.start()
        try:
            addresses = here.recv()
            with ProcessPoolExecutor(1) as pool:
                return pool.submit(supervise, addresses, looks, socket, Path(folder)).result()
        finally:
            server.kill()
            server.join()


def main() -> None:
    """Print the table and write bench/out/supervise_cost.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES, metavar="N", help="nodes of the run")
    parser.add_argument("--looks", type=int, default=LOOKS, metavar="N", help="looks at each")
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    with private_exporter() as exporter:
        rows = [measured(nodes, options.looks, exporter.socket) for nodes in options.nodes]
    for row in rows:
        row["times the first"] = row["% of a core"] / rows[0]["% of a core"]
    show("tachograph supervise beside a healthy run", rows, f"budget: <= {BUDGET_PERCENT} % of a core")
    save("supervise_cost", {"rows": rows})


if __name__ == "__main__":
    main()
