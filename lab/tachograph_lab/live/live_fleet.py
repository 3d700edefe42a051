"""A simulated fleet in real time, all of it in this process: real exporters on real sockets, ranks that speak to them.

`python -m tachograph_lab.live.live_fleet SCENARIO FOLDER` plays a pickled scenario until ended and keeps
FOLDER/fleet.json, which says when it began and where each node is.
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
from tachograph_lab.fleet.messages import Link, Word
from tachograph_lab.live.live_node import EXPORTER_PORT, LiveNode, Node
from tachograph_lab.live.live_rank import LiveRank

ANNOUNCEMENT = "fleet.json"

LEAD_SECONDS = 8.0
"""How long the nodes are there before the scenario's second 0: Prometheus starts and scrapes each once meanwhile."""

LATE_SECONDS = 2.0
"""A fleet that speaks later than this is slower than the machine should make it, and what it shows is not the story."""

NODES_OF_AN_ADDRESS_BLOCK = 250
_SUBNETS = range(16, 250)
_GUARD = "127.{}.255.254"
_AT_ONCE = 32
"""Words that leave before the exporters are let at them."""


class Story(Protocol):
    """What moves the fleet: `fleet.Simulation`."""

    @property
    def nodes(self) -> Sequence[Node]: ...  # noqa: D102

    def advance(self, now: float) -> None:
        """Go on to a scenario second."""
        ...

    def words(self) -> Iterable[Word]:
        """Return what ranks say since the last call."""
        ...


class Place(NamedTuple):
    """Where a node is: addresses of its exporter and of its host's page, and the ranks' socket."""

    exporter: str
    host: str
    socket: str


@dataclass
class Announcement:
    """What the fleet's folder says: the Unix time of second 0, where nodes are, and what went wrong in the playing."""

    epoch: float
    places: dict[str, Place]
    faults: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Replace the file."""
        fresh = folder / f"{ANNOUNCEMENT}.new"
        fresh.write_text(json.dumps(asdict(self)), encoding="utf-8")
        fresh.replace(folder / ANNOUNCEMENT)


def read_announcement(folder: Path) -> Announcement | None:
    """Return what the fleet of a folder has announced, None before it has."""
    try:
        told = json.loads((folder / ANNOUNCEMENT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Announcement(told["epoch"], {name: Place(*place) for name, place in told["places"].items()}, told["faults"])


class LiveFleet:
    """Plays a story whose second 0 is the Unix time `epoch`; sockets and announcement are in `folder`."""

    def __init__(self, story: Story, epoch: float, folder: Path, subnet: int) -> None:
        self._story = story
        self._folder = folder
        self._epoch = epoch
        self._zero = time.monotonic() + epoch - time.time()
        clock = Clock(monotonic=self._unix)  # GPU readings carry the simulation's time
        self._nodes = {
            node.name: LiveNode(node, host, folder / f"{node.name}.sock", clock)
            for node, host in zip(story.nodes, _hosts(subnet), strict=False)
        }
        self._ranks: dict[Link, LiveRank] = {}
        self._announcement = Announcement(
            epoch,
            {
                name: Place(node.exporter_address, node.host_address, str(node.socket))
                for name, node in self._nodes.items()
            },
        )

    async def play(self, stop: asyncio.Event) -> None:
        """Open every node, announce them, and go on once a second from second 0 until told to stop."""
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
                        self._fault(f"the fleet fell behind at second {due:.0f}: too many ranks for this machine")
                    continue  # a second that is over already is left out; the next one says all of it
                self._story.advance(self._now())
                await self._pass_on()
        for rank in self._ranks.values():
            rank.end()

    def _now(self) -> float:
        """Return the scenario's second."""
        return time.monotonic() - self._zero

    def _unix(self) -> float:
        return self._epoch + self._now()

    async def _pass_on(self) -> None:
        """Bring nodes and ranks to where the story is now."""
        for node in self._nodes.values():
            await node.follow()
        for number, word in enumerate(self._story.words(), start=1):
            self._say(word)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def _say(self, word: Word) -> None:
        rank = self._ranks.get(word.connection)
        if word.line is None:
            if rank is not None:
                self._ranks.pop(word.connection).end()
            return
        if rank is None:
            rank = self._ranks[word.connection] = LiveRank(self._nodes[word.node].socket, self._refusal(word))
        rank.say(word.line)

    def _refusal(self, word: Word) -> Callable[[str], None]:
        run, number, attempt = word.connection
        return lambda text: self._fault(f"rank {number} of {run}, attempt {attempt}, is refused: {text}")

    def _fault(self, text: str) -> None:
        if text not in self._announcement.faults:
            self._announcement.faults.append(text)
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
    """Hold a second octet of 127.0.0.0/8 that no other fleet on this machine uses."""
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
    from tachograph_lab.fleet import Simulation

    logging.basicConfig(level=logging.WARNING)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # both ends of every connection are here
    scenario = pickle.loads(Path(sys.argv[1]).read_bytes())
    epoch = time.time() + LEAD_SECONDS
    with subnet_of_loopback() as subnet:
        asyncio.run(_serve(Simulation(scenario, epoch), epoch, Path(sys.argv[2]), subnet))


async def _serve(story: Story, epoch: float, folder: Path, subnet: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await LiveFleet(story, epoch, folder, subnet).play(stop)


if __name__ == "__main__":
    main()
