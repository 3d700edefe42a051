"""A node of a live replay: the real exporter on a socket and an address of its own, and a page like node_exporter's.

Every node has its own address in 127.0.0.0/8, as it would have in a cluster, and the usual ports there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from aiohttp import web

from tachograph.node.app import Exporter
from tachograph.node.clock import Clock
from tachograph.node.config import read_config
from tachograph.node.nic.port_reading import PortReader
from tachograph.node.shown_gpus import GpuReader
from tachograph_lab.live.tcp_proxy import MUTE, OPEN, SHUT, TcpProxy

EXPORTER_PORT, HOST_PORT = 21024, 21100
"""Not the usual ones: a program of this machine that listens there on all addresses would hold them on every node's."""

INSIDE = 1
"""The servers listen this many ports above the proxies that Prometheus scrapes."""

START_SECONDS = 10.0
_POLL_SECONDS = 0.01

HostSample = tuple[str, Mapping[str, str], float]


class Node(PortReader, Protocol):
    """The state of a simulated node now; `fleet.SimulatedNode` documents each attribute."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def gpus(self) -> GpuReader: ...  # noqa: D102

    @property
    def exporter_up(self) -> bool: ...  # noqa: D102

    @property
    def up(self) -> bool: ...  # noqa: D102

    @property
    def reachable(self) -> bool: ...  # noqa: D102

    @property
    def ahead(self) -> float: ...  # noqa: D102

    def host_samples(self) -> Iterator[HostSample]:
        """Yield the samples that node_exporter would expose: name, labels, value."""
        ...


class LiveNode:
    """Runs a node as the simulation says: `follow` starts and stops its exporter and sets its proxies."""

    def __init__(self, node: Node, host: str, socket: Path, clock: Clock) -> None:
        self.node = node
        self.socket = socket
        self.exporter_address = f"{host}:{EXPORTER_PORT}"
        self.host_address = f"{host}:{HOST_PORT}"
        self._clock = clock
        self._inside = (host, EXPORTER_PORT + INSIDE)
        self._exporter_proxy = TcpProxy((host, EXPORTER_PORT), self._inside)
        self._host_inside = (host, HOST_PORT + INSIDE)
        self._host_proxy = TcpProxy((host, HOST_PORT), self._host_inside)
        self._stop = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._states = (SHUT, SHUT)

    async def open(self) -> None:
        """Start serving the host's page; raise OSError if the address is taken."""
        page = web.Application()
        page.router.add_get("/metrics", self._host_page)
        self._runner = web.AppRunner(page, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, *self._host_inside).start()
        await self.follow()

    async def follow(self) -> None:
        """Bring exporter and proxies to the node's present state."""
        node = self.node
        lives = node.up and node.exporter_up
        if lives and self._life is None:
            await self._start()
        elif not lives and self._life is not None:
            await self._end()
        elif self._life is not None and self._life.done():
            self._life.result()  # raises what ended it
        passable = OPEN if node.reachable else MUTE
        states = (passable if lives else SHUT, passable if node.up else SHUT)
        if states != self._states:
            self._states = states
            for proxy, state in zip((self._exporter_proxy, self._host_proxy), states, strict=True):
                await proxy.set_state(state)

    async def close(self) -> None:
        """Stop everything."""
        for proxy in (self._exporter_proxy, self._host_proxy):
            await proxy.set_state(SHUT)
        if self._life is not None:
            await self._end()
        await self._runner.cleanup()

    async def _start(self) -> None:
        """Start an exporter without an earlier one's state; return once it answers."""
        host, port = self._inside
        config = read_config(["--web.listen-address", f"{host}:{port}", "--socket", str(self.socket), "--no-gpu"], {})
        self._stop = asyncio.Event()
        exporter = Exporter(config, self.node.gpus, self._clock, ports=self.node)
        self._life = asyncio.get_running_loop().create_task(exporter.run(self._stop))
        for _ in range(round(START_SECONDS / _POLL_SECONDS)):
            if self._life.done():
                self._life.result()
            try:
                _, writer = await asyncio.open_connection(host, port)
            except OSError:
                await asyncio.sleep(_POLL_SECONDS)
            else:
                writer.transport.abort()
                return
        raise TimeoutError(f"the exporter of {self.node.name} does not answer on {host}:{port}")

    async def _end(self) -> None:
        """Stop the exporter; its connections break as they do when it is killed."""
        life, self._life = self._life, None
        self._stop.set()
        if life is not None:
            await life

    async def _host_page(self, _: web.Request) -> web.Response:
        return web.Response(text=exposition(self.node.host_samples()), content_type="text/plain")


def exposition(samples: Iterable[HostSample]) -> str:
    """Return samples in Prometheus' text format."""
    return "".join(f"{name}{_labels(labels)} {value!r}\n" for name, labels, value in samples)


def _labels(labels: Mapping[str, str]) -> str:
    escaped = (
        (name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in labels.items()
    )
    inner = ",".join(f'{name}="{value}"' for name, value in escaped)
    return f"{{{inner}}}" if inner else ""
