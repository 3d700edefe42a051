"""A fleet of nodes behind one port, in a process of its own: `/node/N/exporter`, `/node/N/host`, `/state/NAME`.

    python bench/rules_fleet.py PORT NODES FOLDER      # FOLDER holds exporter.prom and node_exporter.prom, the patterns

Pages are made before the port is opened. Every rank completes a step every 2 s; a state is one of FAULTS, entered once.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import numpy as np

from rules_conclusions import FAULTS, STEP_SECONDS, conclusions
from rules_pages import RANKS_PER_NODE, Page, concluded, exporter_lines, gpu_uuids, node_lines, plan

CULPRIT_NODE = 27
STANDING = ("hang", "killed")
"""States in which no rank makes steps."""


class Fleet:
    """All pages, and the progress of the run."""

    def __init__(self, nodes: int, exporter: str, host: str) -> None:
        noise = np.random.default_rng(1)
        plans = plan(exporter_lines(exporter, 0)), plan(node_lines(host))
        lines = [[*exporter_lines(exporter, node)] for node in range(nodes)]
        self.exporters = [Page(own, plans[0], noise) for own in lines]
        self.hosts = [Page([*node_lines(host)], plans[1], noise) for _ in range(nodes)]
        self.concluded: dict[str, list[Page]] = {}
        uuids = [gpu_uuids(own) for own in lines]
        ranks = nodes * RANKS_PER_NODE
        for state in FAULTS:
            culprits, others = conclusions(state)
            self.concluded[state] = [
                Page(*concluded(culprits if node == CULPRIT_NODE else others, uuids[node], node, ranks), noise)
                for node in range(nodes)
            ]
        self._paused = 0.0
        self._stopped: float | None = None
        self._began = time.time()
        for page in self.exporters:
            page.start(self._began)
        self.enter("healthy")

    def page(self, kind: str, node: int) -> bytes:
        """Return a page with its present values."""
        now = time.time()
        steps = ((self._stopped or now) - self._began - self._paused) // STEP_SECONDS
        if kind == "host":
            return self.hosts[node].render(steps, now - self._began)
        shown = self.exporters[node].render(steps, now - self._began)
        return shown + self.concluded[self._state][node].render(0, now - self._entered)

    def enter(self, state: str) -> None:
        """Enter a state, in which nodes conclude what the lab's do a while after its fault."""
        now = time.time()
        if self._stopped is not None:
            self._paused += now - self._stopped
        self._stopped = now if state in STANDING else None
        self._state, self._entered = state, now
        for page in self.concluded[state]:
            page.start(now)


class Connection(asyncio.Protocol):
    """A connection from Prometheus, which keeps one per target and requests one page at a time."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._transport: asyncio.Transport
        self._asked = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer once the request's header is complete; a GET has no body."""
        self._asked += data
        while b"\r\n\r\n" in self._asked:
            head, self._asked = self._asked.split(b"\r\n\r\n", 1)
            body = self._answer(head.split(b" ", 2)[1].decode().strip("/").split("/"))
            status = b"200 OK" if body is not None else b"404 Not Found"
            body = body or b""
            self._transport.write(
                b"HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %d\r\n\r\n"
                % (status, len(body))
            )
            self._transport.write(body)

    def _answer(self, path: list[str]) -> bytes | None:
        match path:
            case ["node", number, "exporter" | "host" as kind]:
                return self._fleet.page(kind, int(number))
            case ["state", name] if name in FAULTS:
                self._fleet.enter(name)
                return b"ok\n"
            case ["ready"]:
                return b"ok\n"
        return None


async def serve(port: int, fleet: Fleet) -> None:
    """Serve until the process is stopped."""
    server = await asyncio.get_running_loop().create_server(lambda: Connection(fleet), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def main() -> None:
    """Generate the pages, then open the port."""
    port, nodes, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    fleet = Fleet(nodes, *((folder / f"{name}.prom").read_text() for name in ("exporter", "node_exporter")))
    asyncio.run(serve(port, fleet))


if __name__ == "__main__":
    main()
