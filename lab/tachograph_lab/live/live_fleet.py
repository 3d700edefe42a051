"""A simulated fleet in real time, all in one process: real exporters on real sockets, and ranks that connect to them.

`python -m tachograph_lab.live.live_fleet SCENARIO FOLDER` plays a pickled scenario until it is stopped and maintains
FOLDER/fleet.json with the start time and the addresses of each node.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import pickle
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from tachograph.node.clock import Clock
from tachograph.wire import HEARTBEAT_SECONDS
from tachograph_lab.fleet.messages import Link, RankMessage
from tachograph_lab.live.live_node import EXPORTER_PORT, LiveNode, Node
from tachograph_lab.live.live_rank import LiveRank

ANNOUNCEMENT = "fleet.json"

LEAD_SECONDS = 8.0
"""How long the nodes run before the scenario's second 0: Prometheus starts and scrapes each of them once meanwhile."""

LATE_SECONDS = 2.0
"""A fleet that is later than this is too slow on this machine, and no longer shows the scenario."""

NODES_OF_AN_ADDRESS_BLOCK = 250
_SUBNETS = range(16, 250)
_GUARD = "127.{}.255.254"
_AT_ONCE = 32
"""Messages sent before the exporters get a turn."""


class SimulatedFleet(Protocol):
    """The simulation that drives the fleet: `fleet.Simulation`."""

    @property
    def nodes(self) -> Sequence[Node]: ...  # noqa: D102

    def advance(self, now: float) -> None:
        """Advance to a second of the scenario."""
        ...

    def messages(self) -> Iterable[RankMessage]:
        """Return the ranks' messages since the last call."""
        ...


class NodeAddresses(NamedTuple):
    """The addresses of a node's exporter and host page, and the path of its ranks' socket."""

    exporter: str
    host: str
    socket: str


@dataclass
class Announcement:
    """The content of `fleet.json`: the Unix time of second 0, the nodes' addresses, and errors while playing."""

    epoch: float
    nodes: dict[str, NodeAddresses]
    errors: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Replace the file."""
        fresh = folder / f"{ANNOUNCEMENT}.new"
        fresh.write_text(json.dumps(asdict(self)), encoding="utf-8")
        fresh.replace(folder / ANNOUNCEMENT)


def read_announcement(folder: Path) -> Announcement | None:
    """Return the announcement in a fleet's folder, None before there is one."""
    try:
        content = json.loads((folder / ANNOUNCEMENT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Announcement(
        content["epoch"], {name: NodeAddresses(*node) for name, node in content["nodes"].items()}, content["errors"]
    )


class LiveFleet:
    """Plays a simulation whose second 0 is the Unix time `epoch`; sockets and announcement are in `folder`."""

    def __init__(self, fleet: SimulatedFleet, epoch: float, folder: Path, subnet: int) -> None:
        self._fleet = fleet
        self._folder = folder
        self._epoch = epoch
        self._zero = time.monotonic() + epoch - time.time()
        self._nodes = {
            node.name: LiveNode(node, host, folder / f"{node.name}.sock", self._clock(node))
            for node, host in zip(fleet.nodes, _hosts(subnet), strict=False)
        }
        self._ranks: dict[Link, LiveRank] = {}
        self._announcement = Announcement(
            epoch,
            {
                name: NodeAddresses(node.exporter_address, node.host_address, str(node.socket))
                for name, node in self._nodes.items()
            },
        )

    async def play(self, stop: asyncio.Event) -> None:
        """Open every node, announce them, and advance once a second from second 0 until `stop` is set."""
        async with AsyncExitStack() as opened:
            for node in self._nodes.values():
                opened.push_async_callback(node.close)
                await node.open()
            self._announcement.write(self._folder)
            behind = False
            for second in itertools.count():
                due = second * HEARTBEAT_SECONDS
                await _wait(stop, due - self._now())
                if stop.is_set():
                    break
                if (late := self._now() - due) > HEARTBEAT_SECONDS:
                    if late > LATE_SECONDS and not behind:
                        behind = True
                        self._error(f"the fleet fell behind at second {due:.0f}: too many ranks for this machine")
                    continue  # a second that has passed is skipped; the next one sends everything
                self._fleet.advance(self._now())
                await self._pass_on()
        for rank in self._ranks.values():
            rank.end()

    def _clock(self, node: Node) -> Clock:
        """Return a node's clock; GPU readings carry the simulation's time."""
        return Clock(monotonic=self._unix, wall=lambda: time.time() + node.ahead)

    def _now(self) -> float:
        """Return the scenario's second."""
        return time.monotonic() - self._zero

    def _unix(self) -> float:
        return self._epoch + self._now()

    async def _pass_on(self) -> None:
        """Bring nodes and ranks to the simulation's present state."""
        for node in self._nodes.values():
            await node.follow()
        for number, message in enumerate(self._fleet.messages(), start=1):
            self._say(message)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def _say(self, message: RankMessage) -> None:
        rank = self._ranks.get(message.connection)
        if message.frame is None:
            if rank is not None:
                self._ranks.pop(message.connection).end()
            return
        if rank is None:
            rank = self._ranks[message.connection] = LiveRank(self._nodes[message.node].socket, self._refusal(message))
        rank.send(message.frame)

    def _refusal(self, message: RankMessage) -> Callable[[str], None]:
        run, number, attempt, _ = message.connection
        return lambda text: self._error(f"rank {number} of {run}, attempt {attempt}, was refused: {text}")

    def _error(self, text: str) -> None:
        if text not in self._announcement.errors:
            self._announcement.errors.append(text)
            self._announcement.write(self._folder)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except asyncio.TimeoutError:
        return


def _hosts(subnet: int) -> Iterator[str]:
    for number in itertools.count():
        block, place = divmod(number, NODES_OF_AN_ADDRESS_BLOCK)
        yield f"127.{subnet}.{block}.{place + 1}"


@contextmanager
def subnet_of_loopback() -> Iterator[int]:
    """Reserve a second octet of 127.0.0.0/8 that no other fleet on this machine uses."""
    for subnet in _SUBNETS:
        with socket.socket() as guard:
            try:
                guard.bind((_GUARD.format(subnet), EXPORTER_PORT))
            except OSError:
                continue
            guard.listen()
            yield subnet
            return
    raise OSError(f"no free addresses from 127.{_SUBNETS[0]}.0.0 to 127.{_SUBNETS[-1]}.0.0")


def main() -> None:
    """Play a scenario until SIGTERM or SIGINT."""
    from tachograph_lab.fleet import simulate

    logging.basicConfig(level=logging.WARNING)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # both ends of every connection are here
    scenario = pickle.loads(Path(sys.argv[1]).read_bytes())
    epoch = time.time() + LEAD_SECONDS
    with subnet_of_loopback() as subnet:
        asyncio.run(_serve(simulate(scenario, epoch), epoch, Path(sys.argv[2]), subnet))


async def _serve(fleet: SimulatedFleet, epoch: float, folder: Path, subnet: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await LiveFleet(fleet, epoch, folder, subnet).play(stop)


if __name__ == "__main__":
    main()
